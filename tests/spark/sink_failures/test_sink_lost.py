"""The rest of an epoch is lost of which the log has a part; and what fails when all of it is in the log."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mq.broker.bulk import LocalBulk
from mq.broker.local import LocalBroker
from mq.spark import abandon
from mq.spark.errors import SparkError
from mq.spark.sink import commit
from mq.spark.sink.check import leftovers, problems
from mq.spark.sink.ledger import Step, key_of
from mq.spark.sink.sinks import sinks
from mq.spark.sink.staging import is_unfinished, remove, remove_abandoned, sink_directory
from tests.spark.committers import TOPIC, TXN, bodies_of, rows_of, stage_epoch, wrong_with
from tests.spark.epochs import BATCH, commit_one, grow_old, half_done, staged_files
from tests.spark.reading import forget_brokers
from tests.spark.writing import batches, writer
from tests.support.store.small_store import open_small


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory, flush_interval=3600.0) as broker:
        broker.create_topic(TOPIC, 2)
        yield broker
        forget_brokers()


def files_left(broker: LocalBroker) -> list[Path]:
    """Those that the ledger names."""
    last = commit.last_entry(broker, TXN)
    assert last is not None
    return [sink_directory(broker.path, TXN) / name for name in last.files]


def half_done_and_lost(broker: LocalBroker) -> list[Path]:
    """Three of eight rows are in the log, and the file with the last four is gone."""
    half_done(broker)
    lost = files_left(broker)[-1:]
    for file in lost:
        file.unlink()
    return lost


def test_every_later_attempt_names_it_and_the_way_out(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    (lost,) = half_done_and_lost(broker)
    path = str(broker.path)
    for epoch in (0, 1, 1, 2):
        with pytest.raises(SparkError) as caught:
            commit_one(broker, epoch, 1)
        said = str(caught.value)
        assert said.startswith(
            f"[MQ_STAGING_LOST] sink {TXN!r}: the log has the first rows of epoch 0, and the rest cannot be"
            f" appended: the staged rows {lost} cannot be read: "
        )
        assert said.endswith(
            "; put back what is gone, and the next commit appends the rest; or give it up by"
            f" mq.spark.abandon({path!r}, {TXN!r}), which marks the epoch as complete without it"
        )
    commit.tidy(broker.path, lambda: broker)
    assert "mq.spark.abandon(" in caplog.text
    (problem,) = problems(broker.path)
    assert problem.startswith(f"{lost}: it is missing; ")
    assert f"mq.spark.abandon({path!r}, {TXN!r})" in problem
    assert next(iter(leftovers(broker.path))).startswith(str(sink_directory(broker.path, TXN)))


def test_what_was_put_back_is_appended(broker: LocalBroker) -> None:
    half_done(broker)
    (*_, file) = files_left(broker)
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(SparkError, match="put back what is gone"):
        commit_one(broker, 1)
    file.write_bytes(content)
    assert commit_one(broker, 1) == [Step.FINISH, Step.APPEND]
    assert wrong_with(bodies_of(broker), 2) == []


@pytest.mark.parametrize("txn", [TXN, BATCH])
def test_what_is_left_of_the_rest_stays_for_as_long_as_it_takes(broker: LocalBroker, txn: str) -> None:
    """Until the file is put back, other sinks write and sweep abandoned files."""
    half_done(broker, txn)
    place = sink_directory(broker.path, key_of(txn))
    kept, gone = sorted(place.rglob("*.arrow"))
    content = gone.read_bytes()
    gone.unlink()
    with pytest.raises(SparkError, match=r"\[MQ_STAGING_LOST\]"):
        commit.discard_epoch(broker, txn, stage_epoch(broker.path, 0, rows_of(0, 1), txn))
    remove(place)  # As a batch write does that failed.
    for _ in range(2):
        grow_old(broker.path / "mq" / "spark")
        commit.tidy(broker.path, lambda: broker)
        remove_abandoned(place)
    assert staged_files(broker) == [kept]
    gone.write_bytes(content)
    if txn == TXN:
        assert commit_one(broker, 0, 1) == [Step.FINISH]
    else:  # It is not committed again.
        assert abandon(broker.path, txn) == []
    assert wrong_with(bodies_of(broker), 1) == []
    assert staged_files(broker) == []
    grow_old(broker.path / "mq" / "spark")
    commit.tidy(broker.path, lambda: broker)
    assert not place.exists()


@pytest.mark.parametrize("is_all_gone", [False, True])
def test_the_rest_is_given_up(broker: LocalBroker, is_all_gone: bool) -> None:
    lost = half_done_and_lost(broker)
    if is_all_gone:
        lost = files_left(broker)
        lost[0].unlink()
    rows = [row for task in rows_of(0, 0) for row in task]
    assert bodies_of(broker) == rows[:3]
    assert abandon(broker.path, TXN) == lost
    whole = rows[: 3 if is_all_gone else 4]  # The fourth was there still.
    assert bodies_of(broker) == whole
    (sink,) = sinks(broker)
    assert sink.last is not None
    assert (sink.last.epoch, sink.last.is_whole, sink.rows) == (0, True, len(whole))
    assert list(problems(broker.path)) == list(leftovers(broker.path)) == []
    assert not is_unfinished(sink_directory(broker.path, TXN))
    assert staged_files(broker) == []
    # The query goes on, as after any other epoch.
    assert commit_one(broker, 0, 1) == [Step.SKIP]
    assert commit_one(broker, 1) == [Step.APPEND]
    assert bodies_of(broker) == [*whole, *(row for task in rows_of(1, 0) for row in task)]


def test_nothing_is_given_up_that_is_not_lost(broker: LocalBroker) -> None:
    with pytest.raises(
        SparkError, match=r"\[MQ_OPTION\] there is no sink 'query' in .*, of which anything is"
    ):
        abandon(broker.path, TXN)
    with pytest.raises(SparkError, match="give 1 to 200 letters"):
        abandon(broker.path, "..")
    assert not (broker.path / "mq" / "spark").exists()
    half_done(broker)
    assert abandon(str(broker.path), TXN) == []  # It is finished: nothing of it was lost.
    assert abandon(broker.path, TXN) == []
    assert wrong_with(bodies_of(broker), 1) == []
    assert staged_files(broker) == []
    with pytest.raises(FileNotFoundError):
        abandon(broker.path / "not there", TXN)


def test_a_topic_with_fewer_queues_keeps_no_other_sink_from_planning(
    broker: LocalBroker, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    half_done(broker)
    broker.create_topic(TOPIC, 1, shrink=True)
    commit.tidy(broker.path, lambda: broker)
    (told,) = caplog.records
    assert "files left by dead processes stay for now: topic results has queues 0 to 0" in told.getMessage()
    broker.create_topic("others", 1)
    to = writer(directory, stream=False, topic="others")
    to.commit([to.write_task(batches(b"x"), to.run, 0, 0, 0)])
    assert bodies_of(broker, "others") == [b"x"]
    broker.create_topic(TOPIC, 2)
    commit.tidy(broker.path, lambda: broker)
    assert wrong_with(bodies_of(broker), 1) == []


def test_an_abort_says_why_it_finishes_nothing(
    broker: LocalBroker, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    half_done(broker)
    broker.create_topic(TOPIC, 1, shrink=True)
    to = writer(directory, topic=TOPIC, txnAppId=TXN)
    caplog.clear()
    to.abort([to.write_task(batches(b"x"), TXN, 0, 0, 0)], 1)
    (told,) = caplog.records
    assert "stay until a later sweep: topic results has queues 0 to 0" in told.getMessage()
    broker.create_topic(TOPIC, 2)
    commit.tidy(broker.path, lambda: broker)
    assert wrong_with(bodies_of(broker), 1) == []


FAILS = """
import gc, sys
from pathlib import Path
import pyarrow as pa
import mq
from mq.broker.bulk import LocalBulk
from mq.spark.sink.append import append_batches
from mq.spark.sink.staging import StagedBatch
from tests.support.store.small_store import open_small
with open_small(Path(sys.argv[1])) as broker:
    broker.create_topic("orders", 1)
    rows = pa.record_batch({"body": pa.array([b"x"]), "properties": pa.array([b""])})
    for _ in range(20):
        try:
            append_batches(broker, [StagedBatch(mq.MessageQueue("orders", "mq", 7), rows)])
        except ValueError as error:
            error.itself = error
    gc.collect()
"""


def test_an_append_that_fails_does_not_end_the_process(directory: Path) -> None:
    """When the garbage collector takes its traceback, with the buffers of Arrow that it had."""
    done = subprocess.run(
        [sys.executable, "-c", FAILS, str(directory)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_mark_that_cannot_be_removed_fails_no_commit(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are in the log by then: after an error the caller would write them again."""

    def refuses(*_: Any) -> None:
        raise PermissionError(13, "not for you")

    with monkeypatch.context() as patch:
        patch.setattr(commit, "clear_marks", refuses)
        assert commit_one(broker, 0) == [Step.APPEND]
    assert is_unfinished(sink_directory(broker.path, TXN))
    commit.tidy(broker.path, lambda: broker)
    assert not is_unfinished(sink_directory(broker.path, TXN))
    assert commit_one(broker, 1) == [Step.APPEND]
    assert wrong_with(bodies_of(broker), 2) == []


@pytest.mark.parametrize("semantics", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), OSError(24, "too many files")])
def test_a_flush_that_cannot_begin_fails_no_commit(
    broker: LocalBroker,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    semantics: str,
    error: Exception,
) -> None:
    def refuses(_: LocalBulk) -> None:
        raise error

    monkeypatch.setattr(LocalBulk, "flush_unattended", refuses)
    to = writer(directory, stream=False, topic=TOPIC, semantics=semantics)
    to.commit([to.write_task(batches(b"x"), to.run, 0, 0, 0)])
    assert bodies_of(broker) == [b"x"]
