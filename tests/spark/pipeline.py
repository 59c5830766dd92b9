"""Two queries over one store, for tests that kill them: python pipeline.py STORE PLACE MASTER.

    copy    the messages of orders, as they are, into results: the sink of a stream
    count   how many messages each batch has of each queue, from where to where, into counts: batch writes

A query that failed is started again from its checkpoint, in the same session; if it fails on and on, the
process ends with GAVE_UP, and another one goes on. Up to 4.3 Spark has all queries that read from Python put
the same words into one map of environment variables while they start, without a lock: where two do so at a
time, the map may be left with a wrong count, and no plan of the session can be serialized any more. So the
second query starts when the first one runs.

Says its JVM's process id on a line of its own once both run; each batch that is done again although the sink
has it is one line of PLACE/replays. A session that is not killed does the rest with `finish`.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import mq
from mq.spark.sink.commit import last_entry
from tests.spark.processes import GAVE_UP
from tests.spark.session import session
from tests.support.started_queries import begun

COUNT = "count"  # the transaction id of its writes
FAILURES_MAX = 15  # of a query without a batch in between
SHOWN_MAX = 1000
SOURCE = {
    "topic": "orders",
    "startingOffsets": "earliest",
    "maxOffsetsPerTrigger": "300",
    "minPartitions": "2",
}
CLUSTER = {
    "spark.executor.memory": "512m",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.excludeOnFailure.enabled": "false",
}


def main(store: str, place: Path, master: str) -> None:
    spark = session(place, master, **(CLUSTER if master.startswith("local-cluster") else {}))
    writers, queries = writers_of(spark, store, place), {}
    for name, writer in writers.items():
        queries[name] = started(name, writer, store, place)
        while queries[name].isActive and queries[name].lastProgress is None:
            time.sleep(0.05)
    print(spark._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
    failures: Counter[tuple[str, int]] = Counter()
    while True:
        for name, query in queries.items():
            if query.isActive:
                continue
            failures[name, len(numbers(place / name / "commits"))] += 1
            if max(failures.values()) > FAILURES_MAX:
                sys.exit(GAVE_UP)
            print(f"{name} failed: {told(str(query.exception()))}", file=sys.stderr, flush=True)
            with suppress(PySparkException, Py4JJavaError):  # The thread that starts queries was killed too.
                queries[name] = started(name, writers[name], store, place)
        time.sleep(0.05)


def finish(spark: Any, store: str, place: Path) -> None:
    """One query after the other, until what is available now is done."""
    for name, writer in writers_of(spark, store, place).items():
        started(name, writer.trigger(availableNow=True), store, place).awaitTermination()


def writers_of(spark: Any, store: str, place: Path) -> dict[str, Any]:
    frame = spark.readStream.format("mq").options(**SOURCE).load(store)
    writers = {"copy": copying(frame, store), COUNT: counting(frame, store)}
    return {name: writer.option("checkpointLocation", str(place / name)) for name, writer in writers.items()}


def copying(frame: Any, store: str) -> Any:
    return frame.writeStream.format("mq").options(path=store, topic="results")


def counting(frame: Any, store: str) -> Any:
    def write(batch: Any, number: int) -> None:
        counted = batch.groupBy("queueId").agg({"*": "count", "queueOffset": "max"})
        counted = counted.toDF("queue", "count", "last").selectExpr("to_json(struct(*)) AS body")
        options = {"topic": "counts", "txnAppId": COUNT, "txnVersion": str(number)}
        counted.write.format("mq").options(**options).mode("append").save(store)

    return frame.writeStream.foreachBatch(write)


def started(name: str, writer: Any, store: str, place: Path) -> Any:
    """The query; noting first whether its next batch is one that the sink has already."""
    batches, done = numbers(place / name / "offsets"), numbers(place / name / "commits")
    if undone := batches - done:
        txn = COUNT if name == COUNT else json.loads((place / name / "metadata").read_text())["id"]
        with mq.open(store, read_only=True) as broker:
            entry = last_entry(broker, txn)
        if entry is not None and entry.epoch >= max(undone):
            with (place / "replays").open("a") as replays:
                replays.write(f"{name} {entry.epoch}\n")
    return begun(writer.start)


def told(trace: str) -> str:
    """What a trace of Java and Python says, without the most of where it happened."""
    causes = [line[:SHOWN_MAX] for line in trace.splitlines() if "Caused by" in line or "Error" in line]
    return "\n".join([trace[:SHOWN_MAX], *causes])


def numbers(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.glob("[0-9]*")}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
