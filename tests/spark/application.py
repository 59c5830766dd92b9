"""Streams between topics of a store: python application.py STORE PLACE MASTER FROM TO [FROM TO ...].

Each stream tags what it writes with the name of the topic that it read. Says on which Java it runs. At the
end of its input it stops the streams, reads the first topic as a batch, and writes into the topic totals how
much that was.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mq.spark import use_java
from tests.spark.pipeline import CLUSTER
from tests.spark.session import session


def main(store: str, place: Path, master: str, topics: list[str]) -> None:
    use_java()
    spark = session(place, master, **(CLUSTER if master.startswith("local-cluster") else {}))
    application = Application(spark, store, place, topics)
    print(f"runs on {spark._jvm.java.lang.System.getProperty('java.home')}", flush=True)
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        application.go_on()
    application.end()
    spark.stop()


class Application:
    """Its streams, in a session of its creator."""

    def __init__(self, spark: Any, store: str, place: Path, topics: Sequence[str]) -> None:
        self._spark = spark
        self._store = store
        self._place = place
        self._ways = list(zip(topics[::2], topics[1::2], strict=True))
        self._queries = [self._stream(*way) for way in self._ways]

    def go_on(self) -> None:
        for number, query in enumerate(self._queries):
            if not query.isActive:  # Spark waits ten seconds for a new Python, which may not be enough.
                failed = f"{self._ways[number]} failed: {str(query.exception())[:2000]}"
                print(failed, file=sys.stderr, flush=True)
                self._queries[number] = self._stream(*self._ways[number])

    def stop(self) -> None:
        for query in self._queries:
            query.stop()

    def end(self) -> None:
        self.stop()
        topic = self._ways[0][0]
        read = self._spark.read.format("mq").schema("body binary").option("topic", topic).load(self._store)
        total = read.selectExpr("string(count(*)) AS body", f"'{topic}' AS tags")
        total.write.format("mq").option("topic", "totals").mode("append").save(self._store)

    def _stream(self, topic: str, to: str) -> Any:
        options = {"topic": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "200"}
        frame = self._spark.readStream.format("mq").options(**options).load(self._store)
        writer = frame.selectExpr("body", f"'{topic}' AS tags").writeStream.format("mq")
        writer = writer.options(path=self._store, topic=to)
        return writer.option("checkpointLocation", str(self._place / f"{topic} to {to}")).start()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
