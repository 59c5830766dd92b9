"""Every column of the sink in Spark itself, in the types that Spark sends, and rows that are delayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq.broker.local import LocalBroker
from tests.spark.reading import batch_rows
from tests.spark.writing import stored

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]  # Spark on a slow machine.

COLUMNS = (
    "string(id) AS body",
    "if(id % 3 = 0, 'orders', 'payments') AS topic",
    "int(id % 2) AS queueId",
    "if(id = 1, null, concat('tag', id)) AS tags",
    "array('k', concat('key-', id)) AS keys",
    "if(id = 2, null, map('n', string(id), 'region', 'größer')) AS properties",
)


@pytest.mark.parametrize("large", ["false", "true"])
def test_every_column_comes_back(spark: Any, broker: LocalBroker, directory: Path, large: str) -> None:
    broker.create_topic("payments", 2)
    setting = "spark.sql.execution.arrow.useLargeVarTypes"
    spark.conf.set(setting, large)
    try:
        frame = spark.range(0, 7, numPartitions=1).selectExpr(*COLUMNS)
        frame.write.format("mq").mode("append").save(str(directory))
    finally:
        spark.conf.unset(setting)
    names = [column.split(" AS ")[1] for column in COLUMNS]
    found = batch_rows(directory, *names, topic="orders,payments", includeProperties="true")
    wanted = [
        {
            "body": b"%d" % number,
            "topic": "payments" if number % 3 else "orders",
            "queueId": number % 2,
            "tags": None if number == 1 else f"tag{number}",
            "keys": f"k key-{number}",
            "properties": [] if number == 2 else [("n", str(number)), ("region", "größer")],
        }
        for number in range(7)
    ]
    assert sorted(found, key=lambda row: row["body"]) == wanted


def test_rows_that_are_delayed(spark: Any, broker: LocalBroker, directory: Path) -> None:
    frame = spark.range(0, 30, numPartitions=2).selectExpr(
        "string(id) AS body",
        "if(id < 10, 5, null) AS delayLevel",
        "if(id >= 20, current_timestamp() + interval 1 hour, null) AS deliverAt",
    )
    frame.write.format("mq").option("topic", "orders").mode("append").save(str(directory))
    assert {message.body for message in stored(broker)} == {b"%d" % number for number in range(10, 20)}
    assert sorted(one.delay_level for one in broker.delayed()) == [0] * 10 + [5] * 10
    with pytest.raises(Exception, match=r"\[MQ_ROW\] delayLevel is 19: give 1 to 18"):
        frame.selectExpr("body", "19 AS delayLevel").write.format("mq").option("topic", "orders").mode(
            "append"
        ).save(str(directory))
