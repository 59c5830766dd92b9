"""Append rows of several queues to the log in one call, which moves the log's end once."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from mq.api.broker import DirectoryBroker
from mq.api.results import MessageQueue
from mq.spark.sink.staging import StagedBatch

__all__ = ["append_batches"]


def append_batches(broker: DirectoryBroker, batches: Sequence[StagedBatch], *, sync: bool = False) -> None:
    """Append the rows of all batches in one step. Bodies and properties are read from Arrow's buffers,
    without a copy."""
    queues: dict[MessageQueue, int] = {}
    places = array("i")
    columns = _Column(), _Column()
    for batch in batches:
        number = queues.setdefault(batch.queue, len(queues))
        places.extend(array("i", [number]) * batch.rows.num_rows)
        for column, name in zip(columns, ("body", "properties"), strict=True):
            column.add(batch.rows.column(name))
    given = [part for column in columns for part in (column.pieces, column.sizes)]
    stored = broker.bulk.append(list(queues), places, *given)
    if sync:
        broker.bulk.sync(stored)


class _Column:
    """The values of a column as slices of Arrow's buffers, and their sizes."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.sizes = array("i")

    def add(self, texts: Any) -> None:
        import pyarrow.compute as pc

        _, offsets, data = texts.buffers()
        if data is not None:
            places = memoryview(offsets).cast("i")
            begin, end = places[texts.offset], places[texts.offset + len(texts)]
            # No memoryview: when an append fails, the garbage collector may clear it together with the
            # traceback while C code still holds a buffer of it, which aborts the process.
            self.pieces.append(data.slice(begin, end - begin))
        sizes = pc.binary_length(texts)
        self.sizes.frombytes(
            memoryview(sizes.buffers()[1])[sizes.offset * 4 : (sizes.offset + len(sizes)) * 4]
        )
