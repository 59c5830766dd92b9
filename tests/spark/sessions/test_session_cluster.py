"""Spark itself on a real cluster: read, written, streamed; and no plan, progress or error has a secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.spark import lag
from tests.spark.cluster_run import run
from tests.support.cluster.shared import attached, unique_name
from tests.support.started_queries import begun

pytestmark = [pytest.mark.spark, pytest.mark.rounds, pytest.mark.timeout(1800)]

KEYS = {"accessKey": "alices-key-7531", "secretKey": "alices-word-8642"}


def shows_a_secret(text: str) -> bool:
    return any(value in text for value in KEYS.values())


def test_rows_go_through_a_cluster(spark: Any, tmp_path: Path) -> None:
    name_server = attached("5.3").name_server
    orders, results = unique_name("orders"), unique_name("results")
    with mq.open("rocketmq://" + name_server, timeout=30.0) as broker:
        for topic in (orders, results):
            broker.create_topic(topic, 2)
    given = {"nameServer": name_server, "timeout": "30s", **KEYS}
    numbered = spark.range(1000).selectExpr("string(id) AS body", "'paid' AS tags")
    numbered.write.format("mq").options(topic=orders, **given).mode("append").save()
    frame = spark.read.format("mq").options(topic=orders, **given).load()
    assert frame.selectExpr("count(DISTINCT body)", "count(*)").collect()[0][:] == (1000, 1000)
    texts = [frame._jdf.queryExecution().toString(), str(frame), repr(frame)]
    stream = spark.readStream.format("mq").options(
        topic=orders, startingOffsets="earliest", maxOffsetsPerTrigger="400", **given
    )
    for last, rows in ((3, 1000), (3, 1000)):  # Again from the checkpoint, where nothing is new.
        writer = stream.load().select("body").writeStream.format("mq").options(topic=results, **given)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = begun(writer.trigger(availableNow=True).start)
        query.awaitTermination()
        copied = spark.read.format("mq").options(topic=results, **given).load()
        assert copied.count() == rows
        texts += [str(query.lastProgress), query._jsq.toString(), query._jsq.lastProgress().__str__()]
        if query.recentProgress:
            assert len(query.recentProgress) >= last - 2
    offsets = [path.read_text() for path in (tmp_path / "checkpoint").rglob("[0-9]*") if path.is_file()]
    end = json.loads(max(offsets, key=len).splitlines()[-1])
    assert set(end[orders]) <= {f"{name}:{number}" for name in "ab" for number in range(2)}
    assert lag({"sources": [{"endOffset": end, "latestOffset": end}]})
    for broken in ({"topic": unique_name("nothing")}, {"topic": orders, "tls": "true"}):
        with pytest.raises(Exception, match="MQ_") as raised:
            spark.read.format("mq").options(**{**given, **broken, "timeout": "2s"}).load().count()
        texts.append(str(raised.value))
    assert not any(shows_a_secret(text) for text in [*texts, *offsets])


@pytest.mark.crash
@pytest.mark.scale  # A dozen minutes: python -m tests.spark.cluster_run does the same and more.
def test_rows_survive_the_death_of_executors_and_drivers(tmp_path: Path) -> None:
    """As the command does it with a million."""
    kills = [("orders", 0.2, "executor"), ("results", 0.2, "executor"), ("results", 0.5, "driver")]
    run(4000, "5.3", tmp_path, lambda text: print(text, flush=True), kills)
