"""Sinks that are asked as Spark asks them, without Spark, and what they leave in a store."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.spark.datasource import MqDataSource

pa = pytest.importorskip("pyarrow")


def schema_of(**kinds: str) -> Any:
    from pyspark.sql import types

    known = {
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "binary": types.BinaryType(),
        "array<string>": types.ArrayType(types.StringType()),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
        "timestamp": types.TimestampType(),
    }
    schema = types.StructType()
    for name, kind in kinds.items():
        schema = schema.add(name, known[kind])
    return schema


def source(directory: Path, **options: str) -> MqDataSource:
    given = {"path": str(directory), "topic": "orders", **options}
    return MqDataSource({name.lower(): value for name, value in given.items() if value})


def writer(directory: Path, *, stream: bool = True, **options: str) -> Any:
    made = source(directory, **options)
    ask = made.streamWriter if stream else made.writer
    return pickle.loads(pickle.dumps(ask(schema=schema_of(body="binary"), overwrite=False)))


def batches(*bodies: bytes, rows: int = 3) -> Iterator[Any]:
    for at in range(0, len(bodies), rows):
        yield pa.record_batch({"body": pa.array(bodies[at : at + rows], pa.binary())})


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def stored(broker: LocalBroker, topic: str = "orders") -> list[mq.MessageExt]:
    found: list[mq.MessageExt] = []
    if topic not in broker.topics():
        return found  # It is made with the first message.
    for queue in broker.topic(topic).queues:
        at = 0
        while messages := queue.read(at, count_max=1000).messages:
            found += messages
            at += len(messages)
    return sorted(found, key=lambda message: message.log_offset)


def bodies_of(broker: LocalBroker) -> list[bytes]:
    return [message.body for message in stored(broker)]


def staged_files(directory: Path) -> list[Path]:
    return list((directory / "mq" / "spark").rglob("*.arrow"))


def write(to: Any, epoch: int, *tasks: list[bytes], query: str = "query") -> list[Any]:
    return [
        pickle.loads(pickle.dumps(to.write_task(batches(*bodies), query, epoch, partition, 1)))
        for partition, bodies in enumerate(tasks)
    ]
