"""What tests do with the readers, without Spark: the calls that it makes, in its order."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mq
from mq.spark import target
from mq.spark.columns import TYPES
from mq.spark.datasource import MqDataSource
from tests.support.appending import append_one


def struct(*names: str) -> Any:
    """The schema of these columns; of all but the properties if none is named."""
    from pyspark.sql import types

    kinds = {
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
        "binary": types.BinaryType(),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
    }
    schema = types.StructType()
    for name in names or [name for name in TYPES if name != "properties"]:
        schema = schema.add(name, kinds[TYPES[name]])
    return schema


def source(directory: Path, **options: str) -> MqDataSource:
    given = {"path": str(directory), **options}
    return MqDataSource({name.lower(): value for name, value in given.items()})


def batch_rows(directory: Path, *names: str, **options: str) -> list[dict[str, Any]]:
    reader = source(directory, **options).reader(schema=struct(*names))
    return rows(reader, reader.partitions())


def rows(reader: Any, partitions: list[Any]) -> list[dict[str, Any]]:
    """What the tasks read; reader and partition come to them as bytes."""
    found = []
    for partition in partitions:
        there = pickle.loads(pickle.dumps(reader))
        for batch in there.read(pickle.loads(pickle.dumps(partition))):
            assert batch.schema == there.schema
            assert batch.num_rows
            found += batch.to_pylist()
    return found


class Query:
    """A streaming query over one source, with its checkpoint."""

    def __init__(self, directory: Path, *names: str, **options: str) -> None:
        self.directory = directory
        self._names = names or ("topic", "queueId", "queueOffset", "body")
        self.options = {"pollTimeoutMs": "0", **options}
        self.start: str | None = None
        self.planned: str | None = None
        self.has_finished = False
        self.begin()

    def begin(self) -> None:
        """Start, or go on from the checkpoint after everything else was lost."""
        forget_brokers()
        self.reader = source(self.directory, **self.options).streamReader(schema=struct(*self._names))
        self.limit = self.reader.getDefaultReadLimit()
        if self.start is None:
            self.start = json.dumps(self.reader.initialOffset())

    def plan(self) -> bool:
        """Say how far the next batch goes; whether there is one."""
        assert self.start is not None
        end = json.dumps(self.reader.latestOffset(json.loads(self.start), self.limit))
        self.planned = end if end != self.start else None
        return self.planned is not None

    def tasks(self) -> list[Any]:
        """The partitions of the next batch, of a query that has begun."""
        assert self.plan()
        assert self.start is not None
        assert self.planned is not None
        return list(self.reader.partitions(json.loads(self.start), json.loads(self.planned)))

    def batch(self) -> list[dict[str, Any]]:
        """Read what was planned; as often as wanted."""
        assert self.planned is not None
        start = self.start
        if not self.has_finished:  # Of the first batch Spark does not know any more where it began.
            start = json.dumps(self.reader.initialOffset())
        assert start is not None
        return rows(self.reader, self.reader.partitions(json.loads(start), json.loads(self.planned)))

    def finish(self) -> None:
        assert self.planned is not None
        self.start, self.planned, self.has_finished = self.planned, None, True

    def batches(self) -> Iterator[list[dict[str, Any]]]:
        """One batch after the other until there is none."""
        while self.plan():
            found = self.batch()
            self.finish()
            yield found

    def all(self) -> list[bytes]:
        return [row["body"] for batch in self.batches() for row in batch]


def forget_brokers() -> None:
    """As in a new process."""
    while target.opened_brokers:
        target.opened_brokers.popitem()[1].close()


def send(broker: mq.LocalBroker, topic: str, queue_id: int, *bodies: bytes, **fields: Any) -> None:
    for body in bodies:
        append_one(broker, topic, queue_id, mq.Message(topic, body, **fields), body, 0)
