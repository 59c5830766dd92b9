"""Opening a store of many topics takes few steps for each, and still finds what is wrong with one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.store.directory import topic_journal
from mq.store.directory.config_file import write_config
from mq.store.directory.file_sizes import agree
from mq.store.native import lib
from mq.store.recovery.plausibility import is_complete
from mq.store.shared.control import Control
from tests.support.store.small_store import SMALL, fill, messages_of

NAMES = [f"topic{number:03}" for number in range(100)]
QUEUE_COUNT = 3
QUEUE_ID_AT, TOPIC_AT = 52, 128  # in an entry of the table: see control_internal.h


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store of many topics, each queue of which has a message."""
    path = tmp_path / "store"
    with mq.open(path, duties=False, **SMALL) as broker:
        for name in NAMES:
            broker.create_topic(name, QUEUE_COUNT)
            fill(broker, name, QUEUE_COUNT, QUEUE_COUNT)
    return path


def has_link_counts(directory: Path) -> bool:
    """Whether the link count of a directory tells how many are in it: some file systems have 1 for all."""
    return directory.stat().st_nlink == 2 + len(list(directory.iterdir()))


def test_no_call_of_python_is_for_a_queue_that_is_not_looked_into(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call for each file or directory would cost more than all else."""
    monkeypatch.setattr("mq.store.recovery.plausibility.FILES_LOOKED_INTO", 10)
    touched: list[str] = []

    def watched(call: Any) -> Any:
        def touching(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            touched.append(str(path))
            return call(path, *arguments, **options)

        return touching

    for name in ("scandir", "listdir", "stat", "open"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    with mq.open(path, duties=False, **SMALL) as broker:
        opened_with = list(touched)
        assert broker.topics() == NAMES
    assert [name for name in opened_with if NAMES[0] in name]
    if has_link_counts(path / "consumequeue" / NAMES[-1]):
        assert [name for name in opened_with if NAMES[-1] in name] == []


@pytest.mark.parametrize("topics", ["one queue", "all queues of a topic"])
def test_queues_that_the_table_lost_are_noticed(path: Path, topics: str) -> None:
    control, sizes = Control(path / "mq" / "control", create=False), agree(path, {})
    assert is_complete(control, path, sizes)
    for number, topic, queue_id in list(control.queues()):
        if topic == NAMES[50] and (queue_id == 1 or topics != "one queue"):
            lib.mq_control_queue_delete(control.handle, number)
    assert not is_complete(control, path, sizes)


def test_a_queue_is_noticed_that_the_table_has_twice(path: Path) -> None:
    """An id that damage changed hides that its queue has no entry any more."""
    control, sizes = Control(path / "mq" / "control", create=False), agree(path, {})
    entry = (path / "mq" / "control").read_bytes().index(NAMES[50].encode() + bytes(1)) - TOPIC_AT
    with (path / "mq" / "control").open("r+b") as file:
        file.seek(entry + QUEUE_ID_AT)
        was = int.from_bytes(file.read(4), "little")
        file.seek(entry + QUEUE_ID_AT)
        file.write(((was + 1) % QUEUE_COUNT).to_bytes(4, "little"))
    assert not is_complete(control, path, sizes)


@pytest.mark.parametrize("leftover", ["unknown/0", f"{NAMES[50]}/{QUEUE_COUNT}"])
def test_a_directory_of_a_queue_that_the_table_does_not_know(path: Path, leftover: str) -> None:
    """It is damage if there is a file in it."""
    control, sizes = Control(path / "mq" / "control", create=False), agree(path, {})
    directory = path / "consumequeue" / leftover
    directory.mkdir(parents=True)
    assert is_complete(control, path, sizes)
    shutil.copy2(path / "consumequeue" / NAMES[50] / "0" / f"{0:020}", directory)
    assert not is_complete(control, path, sizes)


def test_a_file_that_is_gone_is_noticed_behind_those_that_are_looked_into(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.store.recovery.plausibility.FILES_LOOKED_INTO", 10)
    file = path / "consumequeue" / NAMES[-1] / "2" / f"{0:020}"
    with file.open("r+b") as opened:
        opened.truncate(20)
    with mq.open(path, duties=False, **SMALL) as broker:
        assert len(messages_of(broker.topic(NAMES[-1]).queues[2])) == 1
    file.unlink()
    with mq.open(path, duties=False, **SMALL) as broker:
        assert len(messages_of(broker.topic(NAMES[-1]).queues[2])) == 1


@pytest.mark.crash
def test_a_short_journal_is_not_folded_into_many_topics(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"""
import os, signal, mq
broker = mq.open({str(path)!r}, duties=False)
broker.create_topic("new", 1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    died = subprocess.run([sys.executable, "-c", program], check=False)
    assert died.returncode == -signal.SIGKILL
    assert topic_journal.TopicJournal(path).read()[1]
    written: list[Path] = []

    def writing(file: Path, text: str) -> None:
        written.append(file)
        write_config(file, text)

    monkeypatch.setattr(topic_journal, "write_config", writing)
    with mq.open(path, duties=False) as broker:
        assert broker.topics() == ["new", *NAMES]
        assert written == []
    table = json.loads((path / "config" / "topics.json").read_bytes())["topicConfigTable"]
    assert {"new", *NAMES} < table.keys()
