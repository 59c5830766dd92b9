"""A checkpoint that is older than the log: from a backup, or after a power cut, as Spark forces none to disk.

Spark plans a batch of other rows then, under a number that the log has. Taken for a replay it would be passed
over, and rows would be missing silently.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq.broker.local import LocalBroker
from mq.spark.errors import SparkError
from mq.spark.sink import commit
from mq.spark.sink.ledger import Step
from tests.spark.committers import TOPIC, TXN, bodies_of, rows_of, stage_epoch, wrong_with
from tests.spark.epochs import SEVERAL, commit_one, half_done, staged_files
from tests.support.store.small_store import open_small


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory, flush_interval=3600.0) as broker:
        broker.create_topic(TOPIC, 2)
        yield broker


def test_a_batch_before_the_newest_is_not_passed_over(broker: LocalBroker) -> None:
    for epoch in range(3):
        commit_one(broker, epoch)
    staged = stage_epoch(broker.path, 1, rows_of(1, 1, 9))
    with pytest.raises(SparkError, match=r"^\[MQ_TXN_MISMATCH\] .*has epoch 2 .* this is epoch 1"):
        commit.commit_epoch(broker, TXN, TXN, 1, staged)
    commit.discard_epoch(broker, TXN, staged)  # What Spark does then.
    assert wrong_with(bodies_of(broker), 3) == []
    assert staged_files(broker) == []
    # With the newer checkpoint it goes on.
    assert commit_one(broker, 2, 1) == [Step.SKIP]
    assert commit_one(broker, 3) == [Step.APPEND]
    assert wrong_with(bodies_of(broker), 4) == []


def test_numbers_that_the_user_counts_may_come_again(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Within foreachBatch several writes of a micro-batch are done again, of which the log has some."""
    for version, rows in ((0, 4), (1, 5), (0, 4)):
        staged = stage_epoch(broker.path, version, rows_of(version, 0, rows))
        commit.commit_epoch(broker, TXN, f"batch-{version}", version, staged, is_version_given=True)
    assert wrong_with(bodies_of(broker), 2) == []
    assert caplog.text == ""


@pytest.mark.parametrize(("rows", "is_told"), [(4, False), (5, True), (3, True)])
def test_the_newest_batch_with_another_number_of_rows_is_told(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture, rows: int, is_told: bool
) -> None:
    commit_one(broker, 0, 0, 1 << 20)
    with caplog.at_level(logging.WARNING, commit.__name__):
        staged = stage_epoch(broker.path, 0, rows_of(0, 1, rows))
        assert commit.commit_epoch(broker, TXN, TXN, 0, staged) == [Step.SKIP]
    assert ("epoch 0 is in the log with 8 rows" in caplog.text) == is_told
    assert wrong_with(bodies_of(broker), 1) == []


def test_what_is_half_done_is_finished_by_its_own_files_alone(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    half_done(broker)
    assert commit_one(broker, 0, 1, SEVERAL) == [Step.FINISH]
    assert "is in the log with" not in caplog.text
    assert wrong_with(bodies_of(broker), 1) == []
