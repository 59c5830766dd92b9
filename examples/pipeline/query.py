"""Spark's part of the pipeline: the driver that is killed, and started again from its checkpoint.

    python -m examples.pipeline.query STORE CHECKPOINT MASTER EVENTS_PER_TRIGGER BATCH_RESULT

Every micro-batch adds up the changes in it, and writes the sums as one transaction, which has the number of
the micro-batch: should Spark run it again, then nothing is written. The sums of all micro-batches together
are those of the history, which is for who reads them.

When it reads `finish`, it stops, adds up the topic once more as a batch job, from its beginning, and writes
what comes of that as JSON. When it reads the end of the file, whoever started it is gone, and so it goes too.
"""

import json
import select
import sys
from pathlib import Path
from typing import Any

import mq.spark
from examples.pipeline.plan import CHANGES, QUERY_GROUP, RESULTS

EVENT = "time bigint, module string, added bigint, deleted bigint"


def main(store: str, checkpoint: str, master: str, per_trigger: str, batch_result: str) -> None:
    spark = session(master)
    query = start(spark, store, checkpoint, per_trigger)
    while not select.select([sys.stdin], [], [], 0)[0]:
        if query.awaitTermination(0.2):
            sys.exit("the query ended by itself")
    query.stop()
    if sys.stdin.readline() == "finish\n":
        Path(batch_result).write_text(json.dumps([list(row) for row in batch(spark, store)]))
    spark.stop()


def session(master: str) -> Any:
    """A small Spark. Where there is no Java, it gets the one that mq[spark] brought."""
    from pyspark.sql import SparkSession

    mq.spark.use_java()
    conf = {
        **mq.spark.recommended_conf(),
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder: Any = SparkSession.builder
    return builder.master(master).appName("lines by day").config(map=conf).getOrCreate()


def start(spark: Any, store: str, checkpoint: str, per_trigger: str) -> Any:
    def write(frame: Any, number: int) -> None:
        result = f"struct({number} AS batch, module, day, changes, added, deleted)"
        results = sums(frame).selectExpr(f"to_json({result}) AS body", "module AS shardingKey")
        results.write.format("mq").mode("append").options(
            topic=RESULTS, txnAppId="lines-by-day", txnVersion=str(number)
        ).save(store)

    changes = (
        spark.readStream.format("mq")
        .schema("body binary")
        .options(topic=CHANGES, startingOffsets="earliest", maxOffsetsPerTrigger=per_trigger)
        .options(group=QUERY_GROUP, minPartitions="2")
        .load(store)
    )
    return changes.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()


def batch(spark: Any, store: str) -> Any:
    """The same of all that the topic holds; rows of module, day, and three sums."""
    changes = spark.read.format("mq").schema("body binary").option("topic", CHANGES).load(store)
    return sums(changes).collect()


def sums(changes: Any) -> Any:
    """Lines changed per module and day. A binary file has no count of lines."""
    from pyspark.sql.functions import expr

    events = changes.selectExpr(f"from_json(string(body), '{EVENT}') AS event").selectExpr(
        "event.module AS module",
        "date_format(timestamp_seconds(event.time), 'yyyy-MM-dd') AS day",
        "coalesce(event.added, 0L) AS added",
        "coalesce(event.deleted, 0L) AS deleted",
    )
    columns = ("count(*) AS changes", "sum(added) AS added", "sum(deleted) AS deleted")
    return events.groupBy("module", "day").agg(*map(expr, columns))


if __name__ == "__main__":
    main(*sys.argv[1:])
