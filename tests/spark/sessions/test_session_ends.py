"""What ends at a wrong time, in Spark itself: a query before its tasks, a store before its readers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from mq.broker.local import LocalBroker
from tests.spark.lasting import TIMES, LastingSource
from tests.spark.reading import send
from tests.spark.results import results, run
from tests.spark.writing import numbered, staged_files
from tests.support.started_queries import begun
from tests.support.store.small_store import open_small

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]  # Spark on a slow machine.

SECONDS_MAX = 100.0


def wait_for(path: Path) -> None:
    until = time.monotonic() + SECONDS_MAX
    while not path.exists():
        assert time.monotonic() < until, f"there is no {path}"
        time.sleep(0.02)


@pytest.mark.parametrize("semantics", ["exactly_once", "at_least_once"])
def test_a_task_goes_on_after_its_query_was_stopped(
    spark: Any, broker: LocalBroker, directory: Path, tmp_path: Path, semantics: str
) -> None:
    """Rows written after that are invisible and swept away; with at_least_once they are visible."""
    spark.dataSource.register(LastingSource)
    send(broker, "orders", 0, *numbered(0, 10))
    checkpoint = tmp_path / "checkpoint"
    reader = spark.readStream.format("mq").options(topic="orders", startingOffsets="earliest")
    query = begun(
        reader.load(str(directory))
        .writeStream.format("lasting")
        .options(path=str(directory), topic="results", semantics=semantics)
        .option("checkpointLocation", str(checkpoint))
        .start
    )
    wait_for(tmp_path / "writing")
    query.stop()
    assert not query.isActive
    (tmp_path / "go").touch()
    wait_for(tmp_path / "done")
    gone_on = (1 + TIMES) * numbered(0, 10) if semantics == "at_least_once" else []
    assert results(broker) == sorted(gone_on)
    run(reader.load(str(directory)), directory, checkpoint, semantics=semantics)
    assert results(broker) == sorted([*gone_on, *numbered(0, 10)])
    assert staged_files(directory) == []


def test_a_store_that_tasks_do_not_find(spark: Any, directory: Path) -> None:
    """As on another machine: the driver has planned with it. What the driver raises says what to do. Nobody
    has the store open meanwhile: an application would find out that its directory was moved."""
    with open_small(directory) as broker:
        broker.create_topic("orders", 2)
        send(broker, "orders", 0, *numbered(0, 10))
    frame = spark.read.format("mq").option("topic", "orders").load(str(directory))
    assert frame.rdd.getNumPartitions() == 1
    moved = directory.rename(directory.with_name("moved"))
    try:
        with pytest.raises(Exception, match=r"\[MQ_STORE_NOT_LOCAL\] option path is") as caught:
            frame.collect()
    finally:
        moved.rename(directory)
    assert "run the executors where the driver runs" in str(caught.value)
    assert str(caught.value).count("[MQ_STORE_NOT_LOCAL]") == 1
