"""Spark on a cluster, for what kills it: python cluster_application.py NAME_SERVERS PLACE MASTER ROWS.

    load    so many numbered rows into the topic orders, as a batch write that can be told when it is repeated
    copy    each row of orders, with where it stands there, into the topic results: a stream with a checkpoint

Says its JVM's process id first. What is done already, by PLACE, is not done again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.spark.pipeline import CLUSTER
from tests.spark.session import session
from tests.support.started_queries import begun

TASKS = 16  # of the load
TRIGGERS = 20  # of the copy, about
TIMEOUT = "30s"  # of a request: brokers beside so many processes are slow
BODY = "concat(string(id), ' ', repeat('x', 80)) AS body"
PLACED = "to_json(struct(brokerName, queueId, queueOffset, string(body) AS text)) AS body"


def main(name_servers: str, place: Path, master: str, rows: int) -> None:
    spark = session(place, master, **(CLUSTER if master.startswith("local-cluster") else {}))
    print(spark._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
    loaded = place / "loaded"
    if not loaded.exists():
        load(spark, name_servers, rows)
        loaded.touch()
    writer = copying(spark, name_servers, rows).option("checkpointLocation", str(place / "copy"))
    query = begun(writer.trigger(availableNow=True).start)
    query.awaitTermination()
    spark.stop()


def load(spark: Any, name_servers: str, rows: int) -> None:
    frame = spark.range(0, rows, 1, TASKS).selectExpr(BODY)
    writer = frame.write.format("mq").options(nameServer=name_servers, timeout=TIMEOUT, topic="orders")
    writer.options(txnAppId="load", txnVersion="0").mode("append").save()


def copying(spark: Any, name_servers: str, rows: int) -> Any:
    options = {"topic": "orders", "startingOffsets": "earliest", "minPartitions": "2"}
    limit = str(max(100, rows // TRIGGERS))
    frame = spark.readStream.format("mq").options(
        nameServer=name_servers, timeout=TIMEOUT, maxOffsetsPerTrigger=limit, **options
    )
    writer = frame.load().selectExpr(PLACED).writeStream.format("mq")
    return writer.options(nameServer=name_servers, timeout=TIMEOUT, topic="results")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
