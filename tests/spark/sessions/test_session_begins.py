"""Where queries of Spark begin that were stopped before any message came, or have an older checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.errors import StreamingQueryException

from mq.broker.local import LocalBroker
from tests.spark.reading import send
from tests.spark.results import results, run

pytestmark = [pytest.mark.spark, pytest.mark.rounds, pytest.mark.timeout(900)]  # Spark on a slow machine.

T = TypeVar("T")


# What Spark has to say when a stream's Python did not start within 10 s.
TOO_SLOW = "Python worker failed to connect back"


def patiently(do: Callable[[], T]) -> T:
    """Again, as long as the machine is too slow for Spark: nothing is lost by that."""
    while True:
        try:
            return do()
        except StreamingQueryException as error:
            if TOO_SLOW not in str(error):
                raise


def running(frame: Any, directory: Path, checkpoint: Path) -> Any:
    """A query from a stream into the topic results, that has done what there is."""
    options = {"path": str(directory), "topic": "results", "checkpointLocation": str(checkpoint)}
    query = frame.writeStream.format("mq").options(**options).start()
    query.processAllAvailable()
    return query


def test_what_came_while_a_query_was_stopped_that_had_seen_nothing(
    spark: Any, broker: LocalBroker, directory: Path, tmp_path: Path
) -> None:
    send(broker, "orders", 0, b"before")
    frame = spark.readStream.format("mq").option("topic", "orders").load(str(directory)).select("body")
    patiently(lambda: running(frame, directory, tmp_path / "checkpoint")).stop()
    send(broker, "orders", 0, b"meanwhile")
    patiently(lambda: run(frame, directory, tmp_path / "checkpoint"))
    assert results(broker) == [b"meanwhile"]


def test_a_checkpoint_from_a_backup_passes_nothing_over(
    spark: Any, broker: LocalBroker, directory: Path, tmp_path: Path
) -> None:
    options = {"topic": "orders", "startingOffsets": "earliest"}
    frame = spark.readStream.format("mq").options(**options).load(str(directory)).select("body")
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"
    send(broker, "orders", 0, b"0")
    query = patiently(lambda: running(frame, directory, checkpoint))
    shutil.copytree(checkpoint, backup)
    for body in (b"1", b"2"):
        send(broker, "orders", 0, body)
        query.processAllAvailable()
    query.stop()
    send(broker, "orders", 0, b"3")
    # It would have these three in a batch of the number that the first of them has in the log.
    with pytest.raises(StreamingQueryException, match=r"\[MQ_TXN_MISMATCH\] .*older than the log"):
        patiently(lambda: run(frame, directory, backup))
    assert results(broker) == [b"0", b"1", b"2"]
    patiently(lambda: run(frame, directory, checkpoint))
    assert results(broker) == [b"0", b"1", b"2", b"3"]
