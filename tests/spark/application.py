"""Streams between topics of a store: python application.py STORE PLACE MASTER FROM TO [FROM TO ...].

Each stream tags what it writes with the name of the topic that it read. Says on which Java it runs. At the
end of its input it stops the streams, reads the first topic as a batch, and writes into the topic totals how
much that was.
"""

from __future__ import annotations

import select
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from mq.spark import use_java
from tests.spark.pipeline import CLUSTER
from tests.spark.session import session


def main(store: str, place: Path, master: str, topics: list[str]) -> None:
    use_java()
    spark = session(place, master, **(CLUSTER if master.startswith("local-cluster") else {}))
    ways = list(zip(islice(topics, 0, None, 2), islice(topics, 1, None, 2), strict=True))
    queries = [stream(spark, store, place, *way) for way in ways]
    print(f"runs on {spark._jvm.java.lang.System.getProperty('java.home')}", flush=True)
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        for number, query in enumerate(queries):
            if not query.isActive:  # Spark waits ten seconds for a new Python, which may not be enough.
                print(f"{ways[number]} failed: {str(query.exception())[:2000]}", file=sys.stderr, flush=True)
                queries[number] = stream(spark, store, place, *ways[number])
    for query in queries:
        query.stop()
    read = spark.read.format("mq").schema("body binary").option("topic", topics[0]).load(store)
    total = read.selectExpr("string(count(*)) AS body", f"'{topics[0]}' AS tags")
    total.write.format("mq").option("topic", "totals").mode("append").save(store)
    spark.stop()


def stream(spark: Any, store: str, place: Path, topic: str, to: str) -> Any:
    options = {"topic": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "200"}
    frame = (
        spark.readStream.format("mq").options(**options).load(store).selectExpr("body", f"'{topic}' AS tags")
    )
    writer = frame.writeStream.format("mq").options(path=store, topic=to)
    return writer.option("checkpointLocation", str(place / f"{topic} to {to}")).start()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
