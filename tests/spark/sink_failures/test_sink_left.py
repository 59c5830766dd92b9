"""What failed commits leave behind, and what repairs it; concurrent commits; what is held in memory."""

from __future__ import annotations

import fcntl
import resource
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.errors import StoreFull
from mq.spark.errors import SparkError
from mq.spark.sink import commit, staging
from mq.spark.sink.append import append_batches
from mq.spark.sink.ledger import Entry, Step
from mq.spark.sink.staging import StagedBatch, commit_lock, remove, sink_directory, stage
from mq.store.native import lib
from tests.spark.committers import TOPIC, TXN, bodies_of, rows_of, stage_epoch, wrong_with
from tests.spark.epochs import BATCH, SEVERAL, commit_one, full_after, grow_old, half_done, staged_files
from tests.support.appending import append_one
from tests.support.insides import store_of
from tests.support.store.small_store import expire_at, fill, open_small

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory, flush_interval=3600.0) as broker:
        broker.create_topic(TOPIC, 2)
        yield broker


def test_a_write_that_cannot_be_repeated_is_not_looked_up(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up has all of the log indexed first, which took as long as half of the write."""
    half_done(broker, BATCH)
    commit_one(broker, 0, 1, txn=BATCH)  # But for one that was begun.
    assert wrong_with(bodies_of(broker), 1) == []
    monkeypatch.delattr(commit, "last_entry")
    commit_one(broker, 1, txn=BATCH)
    assert wrong_with(bodies_of(broker), 2) == []


@pytest.mark.parametrize("txn", [TXN, BATCH])
def test_an_abort_finishes_what_the_commit_began(broker: LocalBroker, txn: str) -> None:
    half_done(broker, txn)
    commit.discard_epoch(broker, txn, stage_epoch(broker.path, 0, rows_of(0, 1), txn))
    assert wrong_with(bodies_of(broker), 1) == []
    assert staged_files(broker) == []
    remove(sink_directory(broker.path, txn))
    assert staging.sink_directories(broker.path) == []


def test_the_next_writer_finishes_what_an_abort_could_not(broker: LocalBroker) -> None:
    half_done(broker, BATCH)
    with full_after(0), pytest.raises(StoreFull):
        commit.discard_epoch(broker, BATCH, [])
    remove(sink_directory(broker.path, BATCH))
    assert len(bodies_of(broker)) == 3
    commit.known_entries.clear()
    commit.tidy(broker.path, lambda: broker)
    assert wrong_with(bodies_of(broker), 1) == []
    assert staged_files(broker) == []


def test_an_epoch_in_progress_is_not_finished_by_another_process(broker: LocalBroker) -> None:
    half_done(broker)
    with commit_lock(sink_directory(broker.path, TXN)):
        commit.tidy(broker.path, lambda: broker)
        assert len(bodies_of(broker)) == 3
    commit.tidy(broker.path, lambda: broker)
    assert wrong_with(bodies_of(broker), 1) == []


def test_what_cannot_be_finished_is_told_once_and_is_no_reason_to_refuse_others(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    half_done(broker)
    for file in staged_files(broker):
        file.unlink()
    for _ in range(2):
        commit.tidy(broker.path, lambda: broker)
    (told,) = caplog.records
    assert "[MQ_STAGING_LOST]" in told.getMessage()
    with pytest.raises(SparkError, match=r"\[MQ_STAGING_LOST\]"):
        commit_one(broker, 0, 1)


def test_what_a_power_cut_brought_back_is_removed(broker: LocalBroker) -> None:
    """The end of a commit, of which the directory knows nothing any more."""
    commit_one(broker, 0)
    place = sink_directory(broker.path, TXN)
    stage_epoch(broker.path, 0, rows_of(0, 0))
    (place / "unfinished").touch()
    commit.tidy(broker.path, lambda: broker)
    assert staged_files(broker) == []
    assert not staging.is_unfinished(place)
    assert wrong_with(bodies_of(broker), 1) == []


def test_what_the_dead_have_staged_goes_after_a_while(broker: LocalBroker) -> None:
    commit_one(broker, 0)
    for txn in ("dead", "alive", "writing"):
        stage_epoch(broker.path, 3, rows_of(3, 0), txn)
    half_done_place = sink_directory(broker.path, "half")
    half_done_place.mkdir()
    (half_done_place / "unfinished").touch()
    grow_old(broker.path / "mq" / "spark")
    stage_epoch(broker.path, 4, rows_of(4, 0), "alive")
    writing = next(sink_directory(broker.path, "writing").rglob("*.arrow"))
    with writing.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        commit.tidy(broker.path, lambda: broker)
    left = {place.name for place in staging.sink_directories(broker.path)}
    assert left == {"alive", "writing", "half"}
    assert wrong_with(bodies_of(broker), 1) == []
    # The query that rested goes on.
    assert commit_one(broker, 0, 1) == [Step.SKIP]
    assert commit_one(broker, 1, 1) == [Step.APPEND]
    assert wrong_with(bodies_of(broker), 2) == []


def test_whatever_lies_there_a_sink_can_be_planned(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    staged = broker.path / "mq" / "spark"
    commit.tidy(broker.path, lambda: broker)
    staged.touch()
    commit.tidy(broker.path, lambda: broker)
    staged.unlink()
    half_done(broker)
    (staged / "file").touch()
    (staged / "link").symlink_to(broker.path / "commitlog", target_is_directory=True)
    lock = staged / "no lock"
    (lock / "lock").mkdir(parents=True)
    grow_old(lock)
    commit.tidy(broker.path, lambda: broker)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert wrong_with(bodies_of(broker), 1) == []


def test_what_is_done_for_others_is_bounded(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "TIDIED_MAX", 3)
    for number in range(10):
        sink_directory(broker.path, f"dead{number}").mkdir(parents=True)
    grow_old(broker.path / "mq" / "spark")
    for left in (7, 4, 1, 0):
        commit.tidy(broker.path, lambda: broker)
        assert len(staging.sink_directories(broker.path)) == left


def test_a_lock_that_was_removed_is_no_lock(tmp_path: Path) -> None:
    place = sink_directory(tmp_path, TXN)
    is_inside, may_leave = threading.Event(), threading.Event()

    def wait_for_it() -> None:
        with commit_lock(place):
            is_inside.set()
            assert may_leave.wait(120)

    with ThreadPoolExecutor(1) as pool:
        with commit_lock(place) as is_mine:
            assert is_mine
            waiting = pool.submit(wait_for_it)
            assert not is_inside.wait(0.05)
            remove(place)
        assert is_inside.wait(120)
        with commit_lock(place, wait=False) as is_mine:
            assert not is_mine
        may_leave.set()
        waiting.result()
    with commit_lock(place, wait=False) as is_mine:
        assert is_mine


def test_two_drivers_of_one_query_append_each_epoch_once(broker: LocalBroker) -> None:
    """Each with rows of its own, at the same time. One that falls behind by more than one epoch fails."""

    def commit_or_not(epoch: int, attempt: int) -> list[Step]:
        try:
            return commit_one(broker, epoch, attempt, (1 << 20, SEVERAL)[epoch % 2])
        except SparkError as error:
            if error.code != "MQ_TXN_MISMATCH":
                raise
            return [Step.SKIP]

    def drive(attempt: int) -> list[list[Step]]:
        return [commit_or_not(epoch, attempt) for epoch in range(8)]

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(drive, (0, 1)))
    assert wrong_with(bodies_of(broker), 8) == []
    for steps in zip(*done, strict=True):
        assert sorted(steps, key=str) == [[Step.APPEND], [Step.SKIP]]
    assert staged_files(broker) == []


@pytest.mark.parametrize("is_half_done", [False, True])
def test_a_query_that_rests_for_longer_than_messages_are_kept(
    broker: LocalBroker, is_half_done: bool
) -> None:
    """Its driver had died before Spark took note of the last epoch."""
    broker.create_topic("others", 1)
    if is_half_done:
        half_done(broker)
    else:
        commit_one(broker, 0)
    before = bodies_of(broker)
    for _ in range(2):
        fill(broker, "others", 40)
        later_ms = time.time_ns() // 1_000_000 + 3_600_000
        assert expire_at(broker, later_ms)
    assert bodies_of(broker) == []
    commit.known_entries.clear()
    assert commit_one(broker, 0, 1) == [Step.FINISH if is_half_done else Step.SKIP]
    assert wrong_with([*before, *bodies_of(broker)], 1) == []


def test_a_replay_is_on_disk_before_spark_is_told(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver died between the append and the sync."""

    def dies(*_: Any) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(broker.bulk, "sync", dies)
        with pytest.raises(InterruptedError):
            commit_one(broker, 0)
    store = store_of(broker)
    assert store.word(lib.MQ_FLUSHED_END) < store.word(lib.MQ_LOG_END)
    assert commit_one(broker, 0, 1)[0] in (Step.SKIP, Step.FINISH)
    assert store.word(lib.MQ_FLUSHED_END) == store.word(lib.MQ_LOG_END)
    assert wrong_with(bodies_of(broker), 1) == []


def test_an_epoch_of_any_size_is_not_held_in_memory(tmp_path: Path) -> None:
    """48 MiB of rows, in steps of 2: never more than a few steps, in Arrow's memory or in Python's."""
    size, step = 48 << 20, 2 << 20
    held: list[int] = []

    def append(*arguments: Any, **options: Any) -> None:
        append_batches(*arguments, **options)
        held.append(pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[1])

    with mq.open(tmp_path / "store", commitlog_file_size=16 << 20) as broker:
        broker.create_topic(TOPIC, 1)
        rows = pa.record_batch({"body": pa.array([b"x" * 4096] * 1024), "properties": pa.array([b""] * 1024)})
        queue = mq.MessageQueue(TOPIC, "mq", 0)
        count = size // rows.nbytes
        staged = stage(
            sink_directory(broker.path, TXN), 0, "0-0", (StagedBatch(queue, rows) for _ in range(count))
        )
        before = pa.total_allocated_bytes()
        tracemalloc.start()
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(commit, "append_batches", append)
                commit.commit_epoch(broker, TXN, TXN, 0, [staged], chunk_bytes=step)
        finally:
            tracemalloc.stop()
        assert broker.max_offset(queue) == count * 1024
    assert len(held) >= size // (3 * step)
    assert max(held) < size // 3, held


def test_large_batches_are_cut_as_they_are_staged(tmp_path: Path) -> None:
    rows = pa.record_batch({"body": pa.array([b"x" * (1 << 20)] * 20), "properties": pa.array([b""] * 20)})
    batch = StagedBatch(mq.MessageQueue(TOPIC, "mq", 0), rows)
    staged = stage(tmp_path, 0, "0-0", [batch])
    found = [part for _, part in staging.batches_of(tmp_path, [staged.file])]
    assert staged.rows == sum(part.rows.num_rows for part in found) == 20
    assert max(part.size for part in found) <= staging.BATCH_BYTES_MAX
    assert pa.Table.from_batches([part.rows for part in found]).to_pydict() == rows.to_pydict()


def test_more_files_than_a_process_may_open(broker: LocalBroker) -> None:
    tasks = [[b"%d" % number] for number in range(200)]
    staged = stage_epoch(broker.path, 0, tasks)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 50, hard))
    try:
        commit.commit_epoch(broker, TXN, TXN, 0, staged)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert bodies_of(broker) == [row for task in tasks for row in task]


def test_without_an_entry_by_key_the_newest_is_read(broker: LocalBroker) -> None:
    """Any program may send to any topic, and an entry that moved on lies behind newer ones."""
    for epoch in range(3):
        commit_one(broker, epoch)
    old = commit.last_entry(broker, TXN)
    assert isinstance(old, Entry)
    for body in (old._replace(epoch=1).encode(), b"no entry"):
        append_one(broker, "MQ_SINK_LEDGER", 0, mq.Message("MQ_SINK_LEDGER", body, keys=TXN), body, 0)
    for _ in range(2):
        assert commit.last_entry(broker, TXN) == old
        commit.known_entries.clear()
