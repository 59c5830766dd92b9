"""What happens to staged files between two looks at them, what lies in the way, and writes within a query."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.spark.sink import commit, task_identity
from mq.spark.sink.ledger import TOPIC as LEDGER
from mq.spark.sink.ledger import Step
from mq.spark.sink.staging import commit_lock, sink_directory
from tests.spark.committers import TOPIC, TXN, bodies_of, rows_of, stage_epoch, wrong_with
from tests.spark.epochs import commit_one, grow_old, half_done, staged_files
from tests.spark.writing import batches, writer
from tests.support.store.small_store import open_small


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory, flush_interval=3600.0) as broker:
        broker.create_topic(TOPIC, 2)
        yield broker


def before_the_lock(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have something happen after a directory was looked at, and before it is locked."""

    def locking(place: Path, *, wait: bool = True, timeout: float = 60.0) -> AbstractContextManager[bool]:
        if not wait:
            act()
        return commit_lock(place, wait=wait, timeout=timeout)

    monkeypatch.setattr(commit, "commit_lock", locking)


def test_what_its_owner_finishes_meanwhile_is_not_taken_for_dead(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_done(broker)

    def finish() -> None:
        commit.discard_epoch(broker, TXN, [])
        stage_epoch(broker.path, 1, rows_of(1, 0))  # Its next tasks are at it.

    before_the_lock(monkeypatch, finish)
    commit.tidy(broker.path, lambda: broker)
    assert wrong_with(bodies_of(broker), 1) == []
    assert len(staged_files(broker)) == len(rows_of(1, 0))


def test_what_comes_to_life_meanwhile_stays(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    stage_epoch(broker.path, 0, rows_of(0, 0))
    grow_old(broker.path / "mq" / "spark")
    before_the_lock(monkeypatch, lambda: stage_epoch(broker.path, 1, rows_of(1, 0)))
    commit.tidy(broker.path, lambda: broker)
    assert {file.parent.name for file in staged_files(broker)} >= {"1"}


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, lambda path: path.symlink_to(path)])
@pytest.mark.parametrize("name", ["99", "²", "99/x"])
def test_what_lies_in_the_way_fails_no_commit(
    broker: LocalBroker, name: str, make: Callable[[Path], None]
) -> None:
    """The rows are in the log by then: after an error the caller would write them again."""
    path = sink_directory(broker.path, TXN) / name
    path.parent.mkdir(parents=True)
    make(path)
    commit_one(broker, 0)
    assert wrong_with(bodies_of(broker), 1) == []


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path)])
@pytest.mark.parametrize("is_half_done", [False, True])
def test_a_lock_that_is_no_file_blocks_no_sink(
    broker: LocalBroker, make: Callable[[Path], None], is_half_done: bool
) -> None:
    place = sink_directory(broker.path, TXN)
    if is_half_done:
        half_done(broker)
        (place / "lock").unlink()
    else:
        stage_epoch(broker.path, 0, rows_of(0, 0))
    grow_old(place)
    make(place / "lock")
    os.utime(place, (0, 0))
    commit.tidy(broker.path, lambda: broker)
    with pytest.raises(OSError, match=str(place / "lock")):
        commit_one(broker, 0)
    (place / "lock").unlink()
    commit.tidy(broker.path, lambda: broker)
    assert commit_one(broker, 0, 1) == [Step.SKIP if is_half_done else Step.APPEND]
    assert wrong_with(bodies_of(broker), 1) == []


def test_a_pipe_and_a_name_that_is_no_text_keep_no_sink_from_planning(broker: LocalBroker) -> None:
    broker.create_topic(LEDGER, 1)
    place = sink_directory(broker.path, TXN)
    (place / "0").mkdir(parents=True)
    os.mkfifo(place / "0" / "pipe")
    foreign = place.parent / os.fsdecode(b"\xff")
    foreign.mkdir()
    (foreign / "unfinished").touch()
    grow_old(place)
    commit.tidy(broker.path, lambda: broker)


class _Context:
    """What a task of a batch write knows that runs within foreachBatch."""

    batch = 0

    @classmethod
    def get(cls) -> _Context:
        return cls()

    def getLocalProperty(self, name: str) -> str:  # noqa: N802 - the name is Spark's
        return {task_identity.QUERY_ID: "the query around it", task_identity.BATCH_ID: str(self.batch)}[name]

    def partitionId(self) -> int:  # noqa: N802 - the name is Spark's
        return 0

    def taskAttemptId(self) -> int:  # noqa: N802 - the name is Spark's
        return self.batch


def test_each_write_within_foreach_batch_is_one_of_its_own(
    broker: LocalBroker, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is a replay of another, unless the user counts them."""
    monkeypatch.setattr(task_identity, "TaskContext", _Context)
    for number in range(3):
        monkeypatch.setattr(_Context, "batch", number)
        for _ in range(2):
            to = writer(directory, stream=False, topic=TOPIC)
            to.commit([to.write(batches(b"%d" % number))])
    assert sorted(bodies_of(broker)) == [b"0", b"0", b"1", b"1", b"2", b"2"]
    assert staged_files(broker) == []
    assert list((directory / "mq" / "spark").iterdir()) == []
    for number, version in enumerate(("0", "0", "1")):
        monkeypatch.setattr(_Context, "batch", number)
        to = writer(directory, stream=False, topic=TOPIC, txnAppId="app", txnVersion=version)
        to.commit([to.write(batches(b"v" + version.encode()))])
    assert sorted(bodies_of(broker))[6:] == [b"v0", b"v1"]
    for number in range(2):
        to = writer(directory, stream=False, topic=TOPIC, txnAppId="uncounted")
        messages = [to.write(batches(b"w"))]
        if number:
            with pytest.raises(mq.MQError, match=r"\[MQ_TXN_MISMATCH\] .*or txnVersion"):
                to.commit(messages)
        else:
            to.commit(messages)
