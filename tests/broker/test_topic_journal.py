"""Many topics: what a change of one costs, and that none is lost between the journal and topics.json."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import mq
from mq.broker import topics as topics_file
from mq.broker.local import LocalBroker
from mq.store import configfile
from mq.store.topicjournal import TopicJournal

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
    written, write = [], configfile.write_config

    def counting(path: Path, text: str) -> None:
        written.append(len(text))
        write(path, text)

    monkeypatch.setattr(topics_file, "write_config", counting)
    with mq.open(directory, duties=False) as broker:
        fill(broker)
        assert len(written) <= topics_file.JOURNAL_FROM
        written.clear()
        journal = directory / "mq" / "topics.journal"
        sizes = []
        for number in range(200):
            broker.create_topic(f"more{number:03}", 1)
            sizes.append(journal.stat().st_size)
        assert written == []
        steps = {after - before for before, after in itertools.pairwise(sizes)}
        assert max(steps) < 400
        for number in range(200):
            broker.delete_topic(f"more{number:03}")
        assert written == []
        assert broker.topics() == NAMES


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
        broker._catalog.fold()
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
    monkeypatch.setattr("mq.broker.local.OFFSETS_INTERVAL", 0.05)
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


@pytest.mark.crash
@pytest.mark.parametrize("torn", [b"x", b'0123456789abcdef {"name": "half"', b"\0" * 64 + b"\n"])
def test_a_line_that_is_not_whole_is_none(directory: Path, torn: bytes) -> None:
    killed(directory)
    with (directory / "mq" / "topics.journal").open("ab") as file:
        file.write(torn)
    shutil.copytree(directory, directory.with_name("copy"))
    with mq.open(directory, duties=False) as broker:
        check(broker)
    # Of a process that died while another one lives.
    with mq.open(directory.with_name("copy"), duties=False) as broker:
        fill(broker)
        broker.create_topic("one", 1)
        with (directory.with_name("copy") / "mq" / "topics.journal").open("ab") as file:
            file.write(torn)
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
            second._catalog.fold()
        for thread in threads:
            thread.join(60.0)
        wanted = sorted([*NAMES, *(f"t{thread}-{number}" for thread in range(4) for number in range(20))])
        assert first.topics() == second.topics() == wanted
    assert sorted(listed(directory)) == wanted
