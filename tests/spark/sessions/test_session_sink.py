"""The sink in Spark itself: batch and stream, once and at least once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from mq.broker.local import LocalBroker
from mq.spark.sink.ledger import TOPIC
from tests.spark.reading import send
from tests.spark.results import results, run
from tests.spark.writing import numbered, staged_files, stored
from tests.support.started_queries import begun

pytestmark = [pytest.mark.spark, pytest.mark.rounds, pytest.mark.timeout(900)]  # Spark on a slow machine.


def test_a_batch_is_written_once(spark: Any, broker: LocalBroker, directory: Path) -> None:
    frame = spark.range(0, 1000, numPartitions=3).selectExpr("string(id) AS body", "'t' AS tags")
    frame.write.format("mq").option("topic", "results").mode("append").save(str(directory))
    assert results(broker) == numbered(0, 1000)
    assert {message.tags for message in stored(broker, "results")} == {"t"}
    counted = {"topic": "results", "txnAppId": "job", "txnVersion": "1"}
    for _ in range(2):
        frame.limit(1).write.format("mq").options(**counted).mode("append").save(str(directory))
    assert len(stored(broker, "results")) == 1001
    assert staged_files(directory) == []


def test_writes_within_foreach_batch(
    spark: Any, broker: LocalBroker, directory: Path, tmp_path: Path
) -> None:
    """Their tasks have the properties of the query around them, and are none of its own batches."""
    send(broker, "orders", 0, *numbered(0, 3))
    frame = spark.readStream.format("mq").options(topic="orders", startingOffsets="earliest")
    frame = frame.option("maxOffsetsPerTrigger", "1").load(str(directory)).select("body")

    def query(name: str, **options: str) -> Any:
        def write(batch: Any, _number: int) -> None:
            batch.write.format("mq").options(topic="results", **options).mode("append").save(str(directory))

        once = frame.writeStream.foreachBatch(write).trigger(availableNow=True)
        return begun(once.option("checkpointLocation", str(tmp_path / name)).start)

    query("plain").awaitTermination()
    assert results(broker) == numbered(0, 3)
    with pytest.raises(StreamingQueryException, match=r"\[MQ_TXN_MISMATCH\] .*or txnVersion"):
        query("uncounted", txnAppId="app").awaitTermination()
    assert results(broker) == [b"0", b"0", b"1", b"2"]
    assert staged_files(directory) == []


def test_batches_of_many_steps(spark: Any, broker: LocalBroker, directory: Path, tmp_path: Path) -> None:
    frame = spark.range(0, 3000, numPartitions=3).selectExpr("string(id) AS body")
    few = {"topic": "results", "chunkBytes": "50000"}
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        frame.write.format("mq").options(**few).mode("append").save(str(directory))
        assert results(broker) == numbered(0, 3000)
        frame.write.mode("append").parquet(str(tmp_path / "rows"))
        stream = spark.readStream.schema("body string").parquet(str(tmp_path / "rows"))
        run(stream, directory, tmp_path / "checkpoint", chunkBytes="50000")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert len(stored(broker, "results")) == 6000
    assert len(stored(broker, TOPIC)) > 10
    assert staged_files(directory) == []


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_batch_that_fails_writes_nothing(
    spark: Any, broker: LocalBroker, directory: Path, tasks: int
) -> None:
    frame = spark.range(0, 100, numPartitions=tasks)
    frame = frame.selectExpr("if(id = 99, null, string(id)) AS body")
    with pytest.raises(Exception, match=r"\[MQ_ROW\] a body is null or empty"):
        frame.write.format("mq").option("topic", "results").mode("append").save(str(directory))
    assert "results" not in broker.topics()
    if tasks == 1:  # Another task may be at it still, and is cleaned up when the next sink is planned.
        assert staged_files(directory) == []


def test_from_queues_to_queues(spark: Any, broker: LocalBroker, directory: Path, tmp_path: Path) -> None:
    """What the source reads, the sink writes as it is; each message once, over several runs."""
    source = {"topic": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    for first in (0, 100):
        send(broker, "orders", 0, *numbered(first, first + 60), tags="t")
        send(broker, "orders", 1, *numbered(first + 60, first + 100), tags="t")
        frame = spark.readStream.format("mq").options(**source).load(str(directory))
        run(frame, directory, tmp_path / "checkpoint")
        assert results(broker) == numbered(0, first + 100)
    assert {message.tags for message in stored(broker, "results")} == {"t"}


def test_a_replayed_batch_is_recognised(
    spark: Any, broker: LocalBroker, directory: Path, tmp_path: Path
) -> None:
    """The driver died between the sink's commit and Spark's own note of it."""
    send(broker, "orders", 0, *numbered(0, 50))
    source = {"topic": "orders", "startingOffsets": "earliest"}
    checkpoint = tmp_path / "checkpoint"
    for semantics, wanted in (("exactly_once", 50), ("at_least_once", 150)):
        for _ in range(2):
            run(
                spark.readStream.format("mq").options(**source).load(str(directory)),
                directory,
                checkpoint / semantics,
                semantics=semantics,
            )
            for note in (checkpoint / semantics / "commits").iterdir():
                note.unlink()
        assert len(stored(broker, "results")) == wanted


@pytest.mark.parametrize(
    ("columns", "mode", "said"),
    [
        ("id AS body", "append", r"\[MQ_SCHEMA\] column body is bigint"),
        ("string(id) AS body", "overwrite", r"\[MQ_OPTION\].*none is ever written over"),
        ("string(id) AS body, id AS delayLevel", "append", r"\[MQ_SCHEMA\] column delayLevel is bigint"),
    ],
)
def test_users_see_what_is_wrong_before_anything_runs(
    spark: Any, broker: LocalBroker, directory: Path, columns: str, mode: str, said: str
) -> None:
    from pyspark.errors import AnalysisException

    frame = spark.range(3).selectExpr(*columns.split(", "))
    with pytest.raises(AnalysisException, match=said):
        frame.write.format("mq").option("topic", "results").mode(mode).save(str(directory))
