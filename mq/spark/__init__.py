"""Spark reads and writes the queues of a store: spark.read.format("mq"), spark.readStream.format("mq").

Nothing needs to be registered after `pip install 'mq[spark]'`; where another package breaks Spark's search
for data sources, register() does what the search would have done. docs/spark.md has options and columns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mq.api.results import MessageQueue
from mq.spark.java import use_java

__all__ = ["abandon", "lag", "recommended_conf", "register", "use_java"]


def register(spark: Any) -> None:
    """Register the format "mq" in this session; a second call does no harm. Raises MQError if PySpark is too
    old."""
    from mq.spark.version import check_spark

    check_spark()
    from mq.spark.datasource import MqDataSource

    spark.dataSource.register(MqDataSource)


def recommended_conf() -> dict[str, str]:
    """Settings that halve the time of a small micro-batch; for checkpoints in a local directory.

        builder = SparkSession.builder.config(map=mq.spark.recommended_conf())

    Python workers talk to the JVM by Unix sockets, where TCP waits 40 ms for acknowledgements, and the
    checkpoint's files are written by the file manager that needs 30 ms less for each.
    """
    manager = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass": manager,
    }


def lag(progress: Mapping[str, Any] | None) -> dict[MessageQueue, int]:
    """How many messages of each queue a query has not read yet, from its lastProgress. Sources of other
    formats are ignored. Before the first progress the result is empty."""
    from mq.spark.source.offsets import Offset, is_of_cluster

    behind: dict[MessageQueue, int] = {}
    for source in progress["sources"] if progress is not None else ():
        both = [_offset_of(source.get(name)) for name in ("latestOffset", "endOffset")]
        if not all(both):
            continue  # not ours
        latest, end = (
            Offset.of(value, None if is_of_cluster(value or {}) else "mq").positions for value in both
        )
        for queue, offset in latest.items():
            behind[queue] = behind.get(queue, 0) + max(0, offset - end.get(queue, 0))
    return behind


def abandon(path: str | os.PathLike[str], txn: str) -> list[Path]:
    """Give up the lost rest of an epoch that is in the log in part: append the staged files that can still be
    read, and mark the epoch as complete. Returns the files that were given up: none if nothing is lost.

    txn: the transaction id, as `mq DIR sinks` lists it. Raises MQError if there is no such sink, or if
    another process is committing.
    """
    from mq.spark.sink.commit import abandon_rest
    from mq.spark.target import open_store

    with open_store(path, read_only=False) as broker:
        return abandon_rest(broker, txn)


def _offset_of(value: Any) -> Mapping[str, Any] | None:
    """An offset of mq, as JSON text or as the parsed object; None for an offset of another source."""
    import json

    from mq.spark.source.offsets import VERSION_KEY

    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) and VERSION_KEY in value else None
