"""Python data sources for Spark with nothing behind them, or a sqlite3 table: what mq's is held against.

prepared   batches of rows from memory, always the same one: the most that Spark takes from Python
sqlite     a queue table, a row at a time: each by a statement of its own, or all by one cursor
made_up    a stream that makes its rows up: so many in each micro-batch, or one at each beat of a clock
dropping   a sink that counts its rows, and notes when they came if it is told where
mq_noting  ours, whose sink notes that as well
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from mq.spark.datasource import MqDataSource

__all__ = ["COLUMNS", "SOURCES", "Dropping", "MadeUp", "Prepared", "SqliteTable", "fill_table", "noted"]

COLUMNS = "queueOffset bigint, body binary"
TASKS = 2
BATCH_ROWS = 8192
POLL_SECONDS = 0.1  # as ours waits for a message

_NOTE = struct.Struct("<q")


def rows_of(schema: Any, first: int, bodies: Sequence[bytes]) -> Any:
    """A record batch of the two columns, or of the one that is asked for."""
    columns = {"queueOffset": range(first, first + len(bodies)), "body": bodies}
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def arrow(schema: Any) -> Any:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


class Share(InputPartition):
    """One task's rows."""

    def __init__(self, begin: int, end: int) -> None:
        super().__init__(None)
        self.begin = begin
        self.end = end


def shares(count: int, tasks: int = TASKS) -> list[InputPartition]:
    return [Share(count * task // tasks, count * (task + 1) // tasks) for task in range(tasks)]


class Source(DataSource):
    """With the columns of all of them."""

    def schema(self) -> str:
        return COLUMNS


class Prepared(Source):
    """Options: count, bodySize."""

    @classmethod
    def name(cls) -> str:
        return "prepared"

    def reader(self, schema: Any) -> DataSourceReader:
        return PreparedReader(arrow(schema), int(self.options["count"]), int(self.options["bodySize"]))


class PreparedReader(DataSourceReader):
    def __init__(self, schema: Any, count: int, body_size: int) -> None:
        self._schema = schema
        self._count = count
        self._body_size = body_size

    def partitions(self) -> list[InputPartition]:
        return shares(self._count)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Share)
        batch = rows_of(self._schema, 0, [os.urandom(self._body_size)] * BATCH_ROWS)
        left = partition.end - partition.begin
        while left > 0:
            yield batch if left >= BATCH_ROWS else batch.slice(0, left)
            left -= BATCH_ROWS


class SqliteTable(Source):
    """Options: path, count, statement (true: one for each row), tasks."""

    @classmethod
    def name(cls) -> str:
        return "sqlite"

    def reader(self, schema: Any) -> DataSourceReader:
        options = self.options
        tasks = shares(int(options["count"]), int(options["tasks"]))
        return SqliteReader(options["path"], tasks, options["statement"] == "true")


class SqliteReader(DataSourceReader):
    def __init__(self, path: str, tasks: list[InputPartition], is_by_statement: bool) -> None:
        self._path = path
        self._tasks = tasks
        self._is_by_statement = is_by_statement

    def partitions(self) -> list[InputPartition]:
        return self._tasks

    def read(self, partition: InputPartition) -> Iterator[tuple[int, bytes]]:
        assert isinstance(partition, Share)
        with closing(sqlite3.connect(self._path)) as connection:
            at, end = partition.begin, partition.end
            if not self._is_by_statement:
                asked = "SELECT id, body FROM queue WHERE id > ? AND id <= ? ORDER BY id"
                yield from connection.execute(asked, (at, end))
                return
            asked = "SELECT id, body FROM queue WHERE id > ? ORDER BY id LIMIT 1"
            while at < end:
                row = connection.execute(asked, (at,)).fetchone()
                yield row
                at = row[0]


def fill_table(path: Path, count: int, body: bytes) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY, body BLOB)")
        connection.executemany("INSERT INTO queue (body) VALUES (?)", ((body,) for _ in range(count)))
        connection.commit()


class MadeUp(Source):
    """Options: bodySize, count, and either perBatch, or beginNs and everyNs (a row at each beat)."""

    @classmethod
    def name(cls) -> str:
        return "made_up"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - the name is Spark's
        options = {name: int(value) for name, value in self.options.items() if value.isdecimal()}
        if "perbatch" in options:
            return PerBatch(arrow(schema), options["count"], options["bodysize"], options["perbatch"])
        return Beats(arrow(schema), options["count"], options["beginns"], options["everyns"])


class MadeUpReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, schema: Any, count: int) -> None:
        self._schema = schema
        self._count = count

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - the name is Spark's
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - the name is Spark's
        return {"at": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - the name is Spark's
        """The count says where it ends."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [Share(start["at"], end["at"])]

    def commit(self, end: dict[str, int]) -> None:
        """There is nothing to be remembered."""

    def stop(self) -> None:
        """Nothing is held."""


class PerBatch(MadeUpReader):
    def __init__(self, schema: Any, count: int, body_size: int, per_batch: int) -> None:
        super().__init__(schema, count)
        self._body = bytes(body_size)
        self._per_batch = per_batch

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - see above
        return {"at": min(start["at"] + self._per_batch, self._count)}

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Share)
        yield rows_of(self._schema, partition.begin, [self._body] * (partition.end - partition.begin))


class Beats(MadeUpReader):
    """The body of a row is the time of its beat."""

    def __init__(self, schema: Any, count: int, begin_ns: int, every_ns: int) -> None:
        super().__init__(schema, count)
        self._begin_ns = begin_ns
        self._every_ns = every_ns

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - see above
        until = time.monotonic() + POLL_SECONDS
        while (left := until - time.monotonic()) > 0:
            now_ns = time.time_ns()
            beats = min(self._count, 1 + (now_ns - self._begin_ns) // self._every_ns)
            if beats > start["at"] or start["at"] == self._count:
                return {"at": max(beats, start["at"])}
            next_ns = self._begin_ns + start["at"] * self._every_ns
            time.sleep(min(left, (next_ns - now_ns) / 1e9))
        return start

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Share)
        beats = range(partition.begin, partition.end)
        bodies = [_NOTE.pack(self._begin_ns + beat * self._every_ns) for beat in beats]
        yield rows_of(self._schema, partition.begin, bodies)


@dataclass
class Counted(WriterCommitMessage):
    rows: int


class Dropping(DataSource):
    """Option notes: a file that gets how many ns ago the row was sent, by its body, for each row."""

    @classmethod
    def name(cls) -> str:
        return "dropping"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return BatchDropper(self.options.get("notes"))

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - see above
        return StreamDropper(self.options.get("notes"))


class _Dropper:
    def __init__(self, notes: str | None) -> None:
        self._notes = notes

    def write(self, iterator: Iterator[Any]) -> Counted:
        return Counted(sum(batch.num_rows for batch in noting(iterator, self._notes)))


def noting(batches: Iterator[Any], notes: str | None) -> Iterator[Any]:
    """Batches as they come; of each row is noted how long ago it was sent, which its body says."""
    for batch in batches:
        if notes is not None:
            now_ns = time.time_ns()
            bodies = batch.column("body").to_pylist()
            with Path(notes).open("ab") as file:
                file.write(b"".join(_NOTE.pack(now_ns - _NOTE.unpack(body)[0]) for body in bodies))
        yield batch


class BatchDropper(_Dropper, DataSourceArrowWriter):
    pass


class StreamDropper(_Dropper, DataSourceStreamArrowWriter):
    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - the name is Spark's
        assert all(isinstance(message, Counted) for message in messages)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - the name is Spark's
        """What is dropped is dropped."""


class MqNoting(MqDataSource):
    """Options: ours, and notes."""

    def __init__(self, options: Any) -> None:
        given = dict(options)
        self._notes = given.pop("notes", None)
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "mq_noting"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - see above
        return NotingWriter(super().streamWriter(schema, overwrite), self._notes)


class NotingWriter(DataSourceStreamArrowWriter):
    def __init__(self, writer: DataSourceStreamArrowWriter, notes: str | None) -> None:
        self._writer = writer
        self._notes = notes

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._writer.write(noting(iterator, self._notes))

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - the name is Spark's
        self._writer.commit(list(messages), batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - the name is Spark's
        self._writer.abort(list(messages), batchId)


def noted(path: Path) -> list[float]:
    """What was noted in milliseconds."""
    return [ns / 1e6 for (ns,) in _NOTE.iter_unpack(path.read_bytes())] if path.exists() else []


SOURCES = (Prepared, SqliteTable, MadeUp, Dropping, MqNoting)
