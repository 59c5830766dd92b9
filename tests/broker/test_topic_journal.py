"""Many topics: what a change of one costs, and that none is lost between the journal and topics.json."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.broker.topics import config as topics_file
from mq.store.directory import config_file
from mq.store.directory import root as directories
from mq.store.directory.root import BEGIN_MEMBER
from mq.store.directory.topic_journal import TopicJournal, listed_topics
from mq.store.recovery.topic_begins import lower_begins
from tests.support.insides import catalog_of, store_of
from tests.support.interrupting import called_at
from tests.support.store.small_store import log_files

COUNT = topics_file.JOURNAL_FROM + 40
NAMES = sorted(f"topic{number:03}" for number in range(COUNT))


def fill(broker: mq.Broker) -> None:
    for name in NAMES:
        broker.create_topic(name, 1)


def listed(directory: Path) -> dict[str, dict[str, object]]:
    """What a RocketMQ broker would find."""
    table: dict[str, dict[str, object]] = json.loads((directory / "config" / "topics.json").read_bytes())[
        "topicConfigTable"
    ]
    table.pop("TBW102")
    return table


def test_a_change_of_one_topic_does_not_write_all(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, write = [], config_file.write_config

    def counting(path: Path, text: str) -> None:
        written.append(len(text))
        write(path, text)

    monkeypatch.setattr(topics_file, "write_config", counting)
    with mq.open(directory, duties=False) as broker:
        fill(broker)
        assert len(written) <= topics_file.JOURNAL_FROM
        written.clear()
        journal = TopicJournal(directory)
        sizes = []
        for number in range(200):
            broker.create_topic(f"more{number:03}", 1)
            sizes.append(journal.read()[2])
        assert written == []
        steps = {after - before for before, after in itertools.pairwise(sizes)}
        assert max(steps) < 400
        for number in range(200):
            broker.delete_topic(f"more{number:03}")
        assert written == []
        assert broker.topics() == NAMES


def test_a_topic_is_there_while_it_is_changed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others read the table meanwhile, and would take it for deleted."""
    from_json, missed = topics_file.TopicSettings.from_json, []

    def looked_at(name: str, *arguments: Any) -> topics_file.TopicSettings:
        missed.extend([name] if name not in table else [])
        return from_json(name, *arguments)

    with mq.open(directory, duties=False) as broker:
        fill(broker)
        topics = topics_file.Topics(directory)
        table = topics.load()
        monkeypatch.setattr(topics_file.TopicSettings, "from_json", looked_at)
        broker.create_topic(NAMES[0], 3)
        assert topics.load()[NAMES[0]].read_queue_count == 3
    assert missed == []


def test_a_message_is_looked_for_while_topics_are_made(directory: Path) -> None:
    numbers = itertools.count()
    with mq.open(directory, duties=False) as broker, mq.open(directory, duties=False) as other:
        fill(broker)

        def look() -> None:
            with pytest.raises(mq.MessageNotFound):
                broker.message("none has this id")

        size = called_at(look, 1 << 30, int)
        for at in range(0, size, size // 20):
            called_at(look, at, lambda: other.create_topic(f"more-{next(numbers)}", 1))
        assert len(broker.topics()) > COUNT + 15


def test_other_processes_see_each_change_at_once(directory: Path) -> None:
    with mq.open(directory, duties=False) as broker, mq.open(directory, duties=False) as other:
        fill(broker)
        assert other.topics() == NAMES
        for number, (here, there) in enumerate([(broker, other), (other, broker)] * 5):
            here.create_topic(f"more{number}", 3)
            assert len(there.topic(f"more{number}").queues) == 3
            there.create_topic(f"more{number}", 5)
            assert len(here.topic(f"more{number}").queues) == 5
            here.delete_topic(f"more{number}")
            assert there.topics() == NAMES
        catalog_of(broker).fold()
        assert other.topics() == NAMES
        other.create_topic("more", 1)
        assert broker.topics() == sorted([*NAMES, "more"])


def test_after_a_close_all_are_where_rocketmq_looks(directory: Path) -> None:
    with mq.open(directory, duties=False) as broker:
        fill(broker)
        assert len(listed(directory)) < COUNT
        assert TopicJournal(directory).signature() is not None
    assert sorted(listed(directory)) == NAMES
    assert TopicJournal(directory).signature() is None


def test_the_process_that_has_the_duties_writes_them_there(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.broker.parts.OFFSETS_INTERVAL", 0.05)
    folded = threading.Event()
    fold = topics_file.Topics.fold

    def told(topics: topics_file.Topics) -> None:
        fold(topics)
        if sorted(listed(directory)) == NAMES:
            folded.set()

    monkeypatch.setattr(topics_file.Topics, "fold", told)
    with mq.open(directory) as broker:
        fill(broker)
        assert folded.wait(60.0)
        assert broker.topics() == NAMES


def killed(directory: Path, more: str = "") -> None:
    """All processes of a store die when it has so many topics."""
    program = f"""
import os, signal, mq
broker = mq.open({str(directory)!r}, duties=False)
for name in {NAMES!r}:
    broker.create_topic(name, 1)
broker.create_topic("wide", 7, ordered=True)
broker.delete_topic({NAMES[0]!r})
{more}
os.kill(os.getpid(), signal.SIGKILL)
"""
    died = subprocess.run([sys.executable, "-c", program], check=False)
    assert died.returncode == -signal.SIGKILL


def check(broker: LocalBroker) -> None:
    assert broker.topics() == sorted([*NAMES[1:], "wide"])
    assert len(broker.topic("wide").queues) == 7
    assert broker.settings("wide").ordered


@pytest.mark.crash
def test_after_a_kill_of_all_the_next_one_has_all(directory: Path) -> None:
    killed(directory, "broker.topic('wide').send(b'kept')")
    assert "wide" not in listed(directory)
    with mq.open(directory, read_only=True) as reader:
        check(reader)
    with mq.open(directory, duties=False) as broker:
        check(broker)
        assert sorted(listed(directory)) == sorted([*NAMES[1:], "wide"])
        assert sum(queue.max_offset for queue in broker.topic("wide").queues) == 1


def tear(directory: Path, torn: bytes) -> None:
    """Write what a death leaves of a line, behind the last one."""
    journal = TopicJournal(directory)
    with journal.path.open("r+b") as file:
        file.seek(journal.read()[2])
        file.write(torn)


@pytest.mark.crash
@pytest.mark.parametrize("torn", [b"x", b'0123456789abcdef {"name": "half"', b"\0" * 64 + b"\n"])
def test_a_line_that_is_not_whole_is_none(directory: Path, torn: bytes) -> None:
    killed(directory)
    tear(directory, torn)
    shutil.copytree(directory, directory.with_name("copy"))
    with mq.open(directory, duties=False) as broker:
        check(broker)
    # Of a process that died while another one lives.
    with mq.open(directory.with_name("copy"), duties=False) as broker:
        fill(broker)
        broker.create_topic("one", 1)
        tear(directory.with_name("copy"), torn)
        broker.create_topic("another", 1)
        with mq.open(directory.with_name("copy"), duties=False) as other:
            assert {"one", "another", "wide"} < set(other.topics())


@pytest.mark.crash
def test_a_death_before_the_journal_goes_does_not_have_it_count_twice(directory: Path) -> None:
    killed(directory)
    journal = (directory / "mq" / "topics.journal").read_bytes()
    with mq.open(directory, duties=False) as broker:
        check(broker)
    (directory / "mq" / "topics.journal").write_bytes(journal)
    content = json.loads((directory / "config" / "topics.json").read_bytes())
    del content["topicConfigTable"]["wide"]
    (directory / "config" / "topics.json").write_text(json.dumps(content))
    with mq.open(directory, duties=False) as broker:
        assert broker.topics() == NAMES[1:]
        broker.create_topic("new", 1)
        assert broker.topics() == sorted([*NAMES[1:], "new"])
    assert sorted(listed(directory)) == sorted([*NAMES[1:], "new"])


@pytest.mark.crash
def test_what_another_program_added_to_topics_json_is_there_as_well(directory: Path) -> None:
    killed(directory)
    content = json.loads((directory / "config" / "topics.json").read_bytes())
    content["topicConfigTable"]["theirs"] = {**content["topicConfigTable"][NAMES[1]], "topicName": "theirs"}
    (directory / "config" / "topics.json").write_text(json.dumps(content))
    with mq.open(directory, duties=False) as broker:
        assert broker.topics() == sorted([*NAMES[1:], "wide", "theirs"])


def test_many_at_once_lose_none(directory: Path) -> None:
    with mq.open(directory, duties=False) as first, mq.open(directory, duties=False) as second:
        fill(first)

        def make(broker: mq.Broker, prefix: str) -> None:
            for number in range(20):
                broker.create_topic(f"{prefix}{number}", 1)
                broker.topics()

        brokers = (first, first, second, second)
        threads = [
            threading.Thread(target=make, args=(broker, f"t{number}-"))
            for number, broker in enumerate(brokers)
        ]
        for thread in threads:
            thread.start()
        for _ in range(5):
            catalog_of(second).fold()
        for thread in threads:
            thread.join(60.0)
        wanted = sorted([*NAMES, *(f"t{thread}-{number}" for thread in range(4) for number in range(20))])
        assert first.topics() == second.topics() == wanted
    assert sorted(listed(directory)) == wanted


def names_in(root: Path) -> list[str]:
    return [name for name, _ in TopicJournal(root).read()[1]]


def test_a_torn_line_ends_the_journal_and_is_written_over(tmp_path: Path) -> None:
    """Whatever of it came to disk, with the zeros that were written ahead or without them."""
    (tmp_path / "mq").mkdir()
    journal = TopicJournal(tmp_path)
    end = journal.append([("one", {}), ("two", None)], 0)
    whole = journal.append([("torn", {"perm": 6})], end)
    content = journal.path.read_bytes()
    for cut in range(end, whole):
        for rest in (bytes(len(content) - cut), b""):
            journal.path.write_bytes(content[:cut] + rest)
            assert names_in(tmp_path) == ["one", "two"]
            fresh = TopicJournal(tmp_path)
            assert fresh.read()[2] == end
            fresh.append([("three", None)], end)
            assert names_in(tmp_path) == ["one", "two", "three"]


def test_a_line_behind_a_lost_one_does_not_come_back(tmp_path: Path) -> None:
    """Of two lines the page of the second one came to disk. One as long as the first takes its place."""
    (tmp_path / "mq").mkdir()
    journal = TopicJournal(tmp_path)
    end = journal.append([("one", {})], 0)
    journal.append([("lost1", {}), ("left", {})], end)
    content = bytearray(journal.path.read_bytes())
    size = content.index(b"\n", end) + 1 - end
    content[end : end + size] = bytes(size)
    journal.path.write_bytes(content)
    assert names_in(tmp_path) == ["one"]
    fresh = TopicJournal(tmp_path)
    fresh.append([("lost2", {})], end)
    assert names_in(tmp_path) == ["one", "lost2"]


def test_a_journal_that_was_folded_and_not_removed_takes_no_more(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written to it is lost to a process that sees in topics.json that all of it is there."""
    with mq.open(directory, duties=False) as broker, mq.open(directory, duties=False) as other:
        fill(broker)
        with monkeypatch.context() as patch:
            patch.setattr(TopicJournal, "remove", lambda _journal: None)  # As one that dies before.
            catalog_of(other).fold()
        folded, lines, _end = TopicJournal(directory).read()
        assert lines
        # By one that saw the fold, and by one that has used the journal before.
        for number, maker in enumerate((broker, other, broker)):
            maker.create_topic(f"more{number}", 1)
            more = [f"more{each}" for each in range(number + 1)]
            assert broker.topics() == other.topics() == sorted([*NAMES, *more])
            assert set(listed_topics(directory) or {}) == {*NAMES, *more, "TBW102"}
        assert names_in(directory) == more
        assert TopicJournal(directory).read()[0] != folded
        with mq.open(directory, duties=False) as third:
            assert third.topics() == broker.topics()


def test_begins_that_come_down_are_one_change_that_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a recovery that ended the log before the begin of a topic."""
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "topics.json"
    before = json.dumps({"topicConfigTable": {"early": {BEGIN_MEMBER: 10}, "late": {BEGIN_MEMBER: 900}}})
    path.write_text(before)
    steps: list[str] = []
    real_replace, real_fsync, real_sync_names = Path.replace, os.fsync, directories.sync_names

    def replace(fresh: Path, target: Path) -> Path:
        steps.append("name")
        return real_replace(fresh, target)

    def fsync(fd: int) -> None:
        steps.append("file")
        real_fsync(fd)

    def sync_names(place: Path) -> None:
        steps.append("names")
        real_sync_names(place)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(config_file, "sync_names", sync_names)
    lower_begins(tmp_path, 100)
    assert [step for step in steps if step != "file"][:2] == ["name", "names"]
    assert steps[0] == "file"
    table = json.loads(path.read_text())["topicConfigTable"]
    assert table == {"early": {BEGIN_MEMBER: 10}, "late": {BEGIN_MEMBER: 100}}
    assert path.with_name("topics.json.bak").read_text() == before
    lower_begins(tmp_path, 100)
    assert path.with_name("topics.json.bak").read_text() == before


def test_the_begin_of_a_topic_that_the_journal_alone_has_comes_down_too(directory: Path) -> None:
    """A power cut took messages, and not the topic that was made after them."""
    code = """
import os, sys, mq
broker = mq.open(sys.argv[1], duties=False)
for number in range(100):
    broker.topic("topic000").send(b"lost")
broker.create_topic("late", 1)
os._exit(9)
"""
    with mq.open(directory, duties=False) as broker:
        fill(broker)
        broker.topic("topic000").send(b"kept")
        end = store_of(broker).end()
    subprocess.run([sys.executable, "-c", code, str(directory)], check=False)
    assert "late" not in listed(directory)
    with log_files(directory)[0].open("r+b") as log:
        log.seek(end)
        log.write(bytes(64 << 10))
    (directory / "mq" / "control").unlink()
    with mq.open(directory, duties=False) as broker:
        assert store_of(broker).end() == end
        assert listed(directory)["late"][BEGIN_MEMBER] == end
        broker.topic("late").send(b"new", keys="key")
        assert len(broker.query("late", "key")) == 1
    shutil.rmtree(directory / "consumequeue")
    shutil.rmtree(directory / "index")
    (directory / "mq" / "control").unlink()
    with mq.open(directory, duties=False) as broker:
        [message] = broker.topic("late").queues[0].read(0).messages
        assert message.body == b"new"
        assert broker.topic("late").send(b"newer").queue_offset == 1
