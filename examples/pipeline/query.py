"""Spark's part of the pipeline: the driver, which is killed and restarted from its checkpoint.

    python -m examples.pipeline.query STORE CHECKPOINT MASTER EVENTS_PER_TRIGGER BATCH_RESULT

The query keeps a sum for each module and day in its state. Every micro-batch writes the sums that it changed,
so the newest message of a module and day has its sum. `sums` defines the aggregation for the query and for
the batch job.

Results go through foreachBatch, since Spark supports output mode update for no other sink written in Python.
Final results (mode append) could go directly to writeStream.format("mq"): with a watermark, the sums of past
days. But events behind the watermark are dropped silently, and a day of a history is never surely over:
merges bring old commits, two producers progress differently, and eight queues are not read in one order. The
writes in foreachBatch have the number of the micro-batch as txnVersion, which is as good as the stream's own
sink: each is atomic, and a repeated micro-batch adds nothing.

On `finish` it stops, and the batch job writes its sums as JSON. At the end of the input file, the process
that started it is gone, and it exits.
"""

import json
import re
import select
import sys
import tempfile
from pathlib import Path
from typing import Any

import mq.spark
from examples.pipeline.plan import CHANGES, QUERY_GROUP, RESULTS

EVENT = "time bigint, module string, added bigint, deleted bigint"
# A driver lives for seconds: a JVM's optimizations for the long run would cost more than all else.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
# Spark gives the Python worker of a source ten seconds to start, which no setting can change.
LATE = "Python worker failed to connect back"


def main(store: str, checkpoint: str, master: str, per_trigger: str, batch_result: str) -> None:
    from pyspark.errors import PySparkException, StreamingQueryException

    try:
        spark = session(master)
        query = start(spark, store, checkpoint, per_trigger)
        while not select.select([sys.stdin], [], [], 0)[0]:
            try:
                if query.awaitTermination(0.2):
                    sys.exit("the query ended by itself")
            except StreamingQueryException as error:
                if LATE not in str(error):
                    raise
                query = start(spark, store, checkpoint, per_trigger)
        query.stop()
        if sys.stdin.readline() == "finish\n":
            Path(batch_result).write_text(json.dumps([list(row) for row in batch(spark, store)]))
        spark.stop()
    except (PySparkException, mq.MQError) as error:
        # The rest of the text is internal to Spark.
        sys.exit(re.split(r"=== Streaming Query ===|JVM stacktrace", str(error))[0].strip())


def session(master: str) -> Any:
    """A small Spark session. Without Java it uses the one that mq[spark] installs."""
    from pyspark.sql import SparkSession

    mq.spark.use_java()
    java_options = f"{SHORT_LIVED} -Djava.io.tmpdir={tempfile.gettempdir()}"
    conf = {
        **mq.spark.recommended_conf(),
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": java_options,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": java_options,
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder: Any = SparkSession.builder
    return builder.master(master).appName("lines by day").config(map=conf).getOrCreate()


def start(spark: Any, store: str, checkpoint: str, per_trigger: str) -> Any:
    changes = (
        spark.readStream.format("mq")
        .schema("body binary")
        .options(topic=CHANGES, startingOffsets="earliest", maxOffsetsPerTrigger=per_trigger)
        .options(group=QUERY_GROUP, minPartitions="2")
        .load(store)
    )

    def write(changed: Any, number: int) -> None:
        result = f"struct({number} AS batch, module, day, changes, added, deleted)"
        results = changed.selectExpr(f"to_json({result}) AS body", "module AS shardingKey")
        results.write.format("mq").mode("append").options(
            topic=RESULTS, txnAppId="lines-by-day", txnVersion=str(number)
        ).save(store)

    writer = sums(changes).writeStream.outputMode("update").foreachBatch(write)
    return writer.option("checkpointLocation", checkpoint).start()


def batch(spark: Any, store: str) -> Any:
    """The sums of all messages of the topic: rows of module, day, and three sums."""
    changes = spark.read.format("mq").schema("body binary").option("topic", CHANGES).load(store)
    return sums(changes).collect()


def sums(changes: Any) -> Any:
    """Lines changed per module and day, of a stream or of a table. A binary file has no count of lines."""
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
