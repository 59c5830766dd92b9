"""The source in Spark itself: found, planned, read, streamed, and what users see when something is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.spark import lag, register
from tests.spark.reading import send
from tests.spark.session import ROOT
from tests.support.started_queries import begun

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]  # Spark on a slow machine.


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def bodies(frame: Any) -> list[bytes]:
    return sorted((bytes(row.body) for row in frame.collect()), key=lambda body: (len(body), body))


def available(frame: Any, checkpoint: Path) -> tuple[list[list[bytes]], Any]:
    """Run until what is available now is read: the batches, and the query."""
    batches: list[list[bytes]] = []
    query = begun(
        frame.writeStream.option("checkpointLocation", str(checkpoint))
        .foreachBatch(lambda batch, _number: batches.append(bodies(batch)))
        .trigger(availableNow=True)
        .start
    )
    query.awaitTermination()
    return batches, query


def test_the_format_works_without_registration(spark: Any, broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, *numbered(0, 50), tags="t", keys="k", properties={"n": "1"})
    send(broker, "orders", 1, *numbered(50, 100))
    frame = spark.read.format("mq").options(topic="orders", includeProperties="true").load(str(directory))
    assert bodies(frame) == numbered(0, 100)
    first = frame.where("queueId = 0 AND queueOffset = 0").collect()[0].asDict()
    assert (first["msgId"], first["tags"], first["keys"], first["properties"]) == (
        broker.topic("orders").queues[0].read(0).messages[0].msg_id,
        *("t", "k", {"n": "1"}),
    )
    send(broker, "orders", 1, b"late")
    assert frame.count() == 100  # A snapshot.
    assert frame.limit(3).count() == 3


def test_fewer_columns_and_sql(spark: Any, broker: LocalBroker, directory: Path) -> None:
    register(spark)
    register(spark)
    send(broker, "orders", 0, *numbered(0, 9), tags="Aa")
    send(broker, "orders", 0, b"other", tags="BB")
    reader = spark.read.format("mq").options(topic="orders", tags="Aa")
    frame = reader.schema("body binary, queueOffset bigint").load(str(directory))
    assert frame.columns == ["body", "queueOffset"]
    assert bodies(frame) == numbered(0, 9)
    options = f"path '{directory}', topic 'orders'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING mq OPTIONS ({options})")
    (counted,) = spark.sql("SELECT count(*) AS n, max(storeTimestamp) IS NOT NULL AS t FROM orders").collect()
    assert (counted.n, counted.t) == (10, True)


def test_a_stream_goes_on_from_its_checkpoint(
    spark: Any, broker: LocalBroker, directory: Path, tmp_path: Path
) -> None:
    send(broker, "orders", 0, *numbered(0, 7))
    options = {"topic": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "5", "group": "g"}
    frame = spark.readStream.format("mq").options(**options).load(str(directory))
    batches, query = available(frame, tmp_path / "checkpoint")
    assert [len(batch) for batch in batches] == [5, 2]
    assert [*batches[0], *batches[1]] == numbered(0, 7)
    assert lag(query.lastProgress) == {mq.MessageQueue("orders", "mq", number): 0 for number in (0, 1)}
    assert broker.group("g").lag("orders") == 0
    send(broker, "orders", 1, b"later")
    again = spark.readStream.format("mq").options(**options).load(str(directory))
    assert available(again, tmp_path / "checkpoint")[0] == [[b"later"]]


def test_a_running_query_sees_messages_and_topics_that_come(
    spark: Any, broker: LocalBroker, directory: Path
) -> None:
    frame = spark.readStream.format("mq").options(topicPattern="orders.*").load(str(directory))
    # Without a checkpoint of ours: begun may start it twice, and a sink in memory takes up none.
    query = begun(frame.writeStream.format("memory").queryName("came").start)
    query.processAllAvailable()
    send(broker, "orders", 0, *numbered(0, 5))
    query.processAllAvailable()
    broker.create_topic("orders-new", 1)
    send(broker, "orders-new", 0, b"new")
    query.processAllAvailable()
    assert bodies(spark.table("came")) == [*numbered(0, 5), b"new"]
    query.stop()


def test_a_first_batch_that_failed_is_the_same_again(
    spark: Any, broker: LocalBroker, directory: Path, tmp_path: Path
) -> None:
    """Of a query that begins at the latest: Spark asks where that is again, and it is elsewhere by then."""
    options = {"topic": "orders", "maxBytesPerTrigger": "100000", "pollTimeoutMs": "2000"}
    frame = spark.readStream.format("mq").options(**options).load(str(directory))
    batches: list[list[bytes]] = []
    is_over = threading.Event()

    def send_on() -> None:
        for number in count():
            send(broker, "orders", 0, b"%d" % number)
            if is_over.wait(0.02):
                return

    def fail_at_first(batch: Any, _number: int) -> None:
        batches.append(bodies(batch))
        if len(batches) == 1:
            raise RuntimeError("a first batch that fails")

    def start() -> Any:
        written = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return begun(written.foreachBatch(fail_at_first).start)

    sender = threading.Thread(target=send_on)
    sender.start()
    try:
        with pytest.raises(Exception, match="a first batch that fails"):
            start().awaitTermination(240)
        query = start()
    finally:
        is_over.set()
        sender.join()
    query.processAllAvailable()
    query.stop()
    assert batches[0]
    assert batches[0] == batches[1]
    sent = [int(body) for batch in batches[1:] for body in batch]
    assert sent == list(range(sent[0], broker.topic("orders").queues[0].max_offset))


def test_what_the_progress_tells(spark: Any, broker: LocalBroker, directory: Path, tmp_path: Path) -> None:
    send(broker, "orders", 0, *numbered(0, 7))
    options = {"topic": "orders", "startingOffsets": "earliest", "maxBytesPerTrigger": "700", "group": "g"}
    frame = spark.readStream.format("mq").options(**options).load(str(directory))
    batches, query = available(frame, tmp_path / "checkpoint")
    assert [*batches[0], *batches[1]][:7] == numbered(0, 7)
    first, queue = query.recentProgress[0], mq.MessageQueue("orders", "mq", 0)
    taken = len(batches[0])
    assert 0 < taken < 7
    assert first["numInputRows"] == taken
    (of_source,) = first["sources"]
    assert json.loads(of_source["endOffset"])["orders"]["0"] == taken
    assert json.loads(of_source["latestOffset"])["orders"]["0"] == 7
    assert of_source["processedRowsPerSecond"] > 0
    assert lag(first)[queue] == 7 - taken
    assert lag(query.lastProgress)[queue] == 0
    command = [sys.executable, "-m", "mq", "--json", str(directory), "groups", "g"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert [(row["queue_id"], row["committed"]) for row in json.loads(shown)["queues"]] == [(0, 7), (1, 0)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "orders", "startingOffset": "latest"}, r"\[MQ_OPTION\].*did you mean startingOffsets\?"),
        ({"topic": "ordres"}, r"\[MQ_TOPIC\].*did you mean orders\?"),
        ({"topic": "orders", "startingOffsets": "{"}, r"\[MQ_OPTION\].*no JSON"),
    ],
)
def test_users_see_what_is_wrong_before_anything_runs(
    spark: Any, broker: LocalBroker, directory: Path, options: dict[str, str], said: str
) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException) as caught:
        spark.read.format("mq").options(**options).load(str(directory)).count()
    assert re.search(said, str(caught.value))


def test_a_schema_that_does_not_fit(spark: Any, broker: LocalBroker, directory: Path) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match=r"\[MQ_SCHEMA\] column queueOffset is bigint"):
        spark.read.format("mq").schema("queueOffset int").option("topic", "orders").load(
            str(directory)
        ).count()


def test_a_stream_that_cannot_be(spark: Any, broker: LocalBroker, directory: Path, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    frame = spark.readStream.format("mq").options(topic="orders", endingOffsets="latest").load(str(directory))
    with pytest.raises(StreamingQueryException, match=r"\[MQ_OPTION\] option endingOffsets") as caught:
        available(frame, tmp_path / "checkpoint")
    assert "UnboundLocalError" not in str(caught.value)


def test_data_loss_ends_a_query(spark: Any, broker: LocalBroker, directory: Path, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    options = {"topic": "orders", "startingOffsets": "earliest"}
    frame = spark.readStream.format("mq").options(**options).load(str(directory))
    send(broker, "orders", 0, *numbered(0, 3))
    available(frame, tmp_path / "checkpoint")
    send(broker, "orders", 0, *[bytes([number]) * 500 for number in range(40)])
    broker.expire(retention_hours=0)
    with pytest.raises(StreamingQueryException, match=r"\[MQ_DATA_LOSS\] queue 0 of topic orders"):
        available(frame, tmp_path / "checkpoint")
    lenient = spark.readStream.format("mq").options(**options, failOnDataLoss="false").load(str(directory))
    oldest = broker.topic("orders").queues[0].min_offset
    batches, _ = available(lenient, tmp_path / "checkpoint")
    assert sum(map(len, batches)) == 43 - oldest
