"""What a task does: ranges of queues into record batches, without a Python object for each message.

A tag is compared by its hash in C, where the message is passed over unread, and exactly once more here. An
SQL92 expression is asked of every property string.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from mq.broker.local import LocalBroker
from mq.errors import StoreCorrupted
from mq.spark.options import SourceOptions
from mq.spark.ranges import Limits, Loss, Range
from mq.spark.survey import refuse_losses

__all__ = ["read_ranges"]

FIRST_ROWS = 256  # show() and limit(n) stop after the first ones
GROWTH = 4

_log = logging.getLogger(__name__)


def read_ranges(
    broker: LocalBroker, ranges: Sequence[Range], options: SourceOptions, schema: Any
) -> Iterator[Any]:
    """The messages of the ranges as batches of this schema, in the order of the ranges."""
    reader = _Reader(broker, options, schema)
    for span in ranges:
        yield from reader.read(span)


class _Reader:
    def __init__(self, broker: LocalBroker, options: SourceOptions, schema: Any) -> None:
        from mq.filter.sql import compiled
        from mq.filter.tags import parse

        self._broker = broker
        self._options = options
        self._schema = schema
        self._names = tuple(schema.names)
        self._matches = compiled(options.sql) if options.sql is not None else None
        wanted = parse(options.tags) if options.sql is None else None
        self._tags = None if wanted is None else sorted(wanted.tags)
        needed = () if self._tags is None else ("tags",)
        if self._matches is not None:
            needed = ("encoded",)
        self._columns = (*self._names, *(name for name in needed if name not in self._names))
        self._rows = FIRST_ROWS

    def read(self, span: Range) -> Iterator[Any]:
        options = self._options
        scan = self._broker.bulk.scan(span.queue, self._columns, hashes=options.selection.hashes)
        at = span.start
        while at < span.end:
            rows = min(self._rows, options.batch_rows)
            try:
                batch = scan.read(at, span.end, rows, options.batch_bytes)
            except StoreCorrupted as error:
                if options.fail_on_data_loss or error.queue_offset != at:
                    raise
                _log.warning("%s", error)
                at += 1
                continue
            self._rows = min(self._rows * GROWTH, options.batch_rows)
            if batch.is_out or batch.next_offset == at:
                limits = Limits(batch.min_offset, batch.max_offset)
                at = self._passed_over(span, at, limits)
                continue
            at = batch.next_offset
            records = self._kept(batch.records)
            if records.num_rows:
                yield records

    def _passed_over(self, span: Range, at: int, limits: Limits) -> int:
        """Where to go on after what was to be read is gone: it became too old, or the topic was deleted."""
        loss = Loss(span.queue, at, limits, remade=False)
        if self._options.fail_on_data_loss:
            refuse_losses([loss])
        _log.warning("%s", loss)
        return limits.oldest if at < limits.oldest < span.end else span.end

    def _kept(self, records: Any) -> Any:
        import pyarrow as pa

        if self._tags is not None:
            import pyarrow.compute as pc

            wanted = pc.is_in(records.column("tags"), value_set=pa.array(self._tags, pa.string()))
            if not pc.all(wanted).as_py():
                records = records.filter(wanted)
        elif self._matches is not None:
            matches = self._matches
            wanted = pa.array([matches(encoded.as_py()) for encoded in records.column("encoded")], pa.bool_())
            records = records.filter(wanted)
        arrays = [records.column(name) for name in self._names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
