"""The read of a task: ranges of queues to record batches, without a Python object for each message.

C code compares tags by hash and skips the others unread; this module then compares the tags themselves. An
SQL92 expression is evaluated on every property string, and a key is compared with every message's keys.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from mq.errors import NotPermitted, StoreCorrupted, TopicNotFound
from mq.spark.cluster import on_cluster
from mq.spark.errors import SparkError
from mq.spark.source.offset_planner import raise_data_loss
from mq.spark.source.options import SourceOptions
from mq.spark.source.origin import Origin, origin_of
from mq.spark.source.ranges import DataLoss, OffsetRange, QueueLimits
from mq.spark.target import StoreRef
from mq.spark.target_options import ClusterRef

__all__ = ["read_ranges"]

FIRST_ROWS = 256  # the first batch is small: show() and limit(n) stop after a few rows
GROWTH = 4
WORTH = 4  # a batch of at least a quarter of the size is yielded as it is; smaller ones are merged
ROW_BYTES = 4096  # memory reserved per row when there are few messages; it grows for larger bodies

_log = logging.getLogger(__name__)


def read_ranges(
    ref: StoreRef | ClusterRef,
    ranges: Sequence[OffsetRange],
    begins: Mapping[str, int],
    options: SourceOptions,
    schema: Any,
) -> Iterator[Any]:
    """The messages of the ranges as batches of this schema, in order. begins: see QueueSnapshot."""
    reader = _Reader(origin_of(ref, options), begins, options, schema)
    with on_cluster(ref, "reading") if isinstance(ref, ClusterRef) else nullcontext():
        yield from _gathered(reader, ranges, options)


def _gathered(reader: _Reader, ranges: Sequence[OffsetRange], options: SourceOptions) -> Iterator[Any]:
    """The batches, small ones merged: a batch costs Spark as much as many rows."""
    waiting: list[Any] = []  # small batches
    rows = size = 0
    is_first = True
    for span in ranges:
        for records in reader.read(span):
            is_worth = records.num_rows * WORTH >= options.batch_rows
            is_worth = is_worth or records.nbytes * WORTH >= options.batch_bytes
            if is_first or is_worth:
                yield from _together(waiting)
                waiting, rows, size, is_first = [], 0, 0, False
                yield records
                continue
            waiting.append(records)
            rows, size = rows + records.num_rows, size + records.nbytes
            if rows * WORTH >= options.batch_rows or size * WORTH >= options.batch_bytes:
                yield from _together(waiting)
                waiting, rows, size = [], 0, 0
    yield from _together(waiting)


def _together(batches: list[Any]) -> Iterator[Any]:
    if len(batches) > 1:
        import pyarrow as pa

        batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
    yield from batches


class _Reader:
    def __init__(
        self, origin: Origin, begins: Mapping[str, int], options: SourceOptions, schema: Any
    ) -> None:
        from mq.filter.sql import compiled
        from mq.filter.tags import parse

        self._origin = origin
        self._begins = begins
        self._checked_topic: tuple[str, int] | None = None  # not re-created since planning, as of a version
        self._options = options
        self._schema = schema
        self._names = tuple(schema.names)
        self._matches = compiled(options.sql) if options.sql is not None else None
        wanted = parse(options.tags) if options.sql is None else None
        self._tags = None if wanted is None else sorted(wanted.tags)
        self._key = options.key
        needed = () if self._tags is None else ("tags",)
        if self._matches is not None:
            needed = ("encoded",)
        if self._key is not None:
            needed = (*needed, "keys", "msgId")
        self._columns = (*self._names, *(name for name in needed if name not in self._names))
        self._rows = FIRST_ROWS

    def read(self, span: OffsetRange) -> Iterator[Any]:
        options = self._options
        tags = "*" if options.selection.hashes is None else options.tags
        try:
            scan = self._origin.scans.scan(span.queue, self._columns, tags=tags)
        except (TopicNotFound, NotPermitted, ValueError):
            # The topic was deleted since this was planned, or has fewer queues.
            self._handle_loss(DataLoss(span.queue, span.start, None, remade=False))
            return
        at = span.start
        while at < span.end:
            rows = min(self._rows, options.batch_rows)
            try:
                count = min(rows, span.end - at)
                batch = scan.read(at, span.end, count, min(options.batch_bytes, count * ROW_BYTES))
            except StoreCorrupted as error:
                if error.queue_offset is None:
                    raise
                if (loss := self._changed(span, at)) is not None:
                    self._handle_loss(loss)
                    return
                self._handle_loss(error)
                # Every message before it was read or has another tag.
                at = max(at, error.queue_offset) + 1
                continue
            except TopicNotFound:  # The answer of a broker.
                self._handle_loss(DataLoss(span.queue, at, None, remade=False))
                return
            # Check after the read: a re-created topic gets its new begin before its first message.
            if (loss := self._changed(span, at)) is not None:
                self._handle_loss(loss)
                return
            self._rows = min(self._rows * GROWTH, options.batch_rows)
            if batch.is_out or batch.next_offset == at:
                limits = QueueLimits(batch.min_offset, batch.max_offset)
                self._handle_loss(DataLoss(span.queue, at, limits, remade=False))
                # The messages expired, or the queue is shorter than before.
                at = limits.oldest if at < limits.oldest < span.end else span.end
                continue
            at = batch.next_offset
            records = self._kept(batch.records)
            if records.num_rows:
                yield records

    def _changed(self, span: OffsetRange, at: int) -> DataLoss | None:
        """The loss of a range from an offset on, if its topic was re-created since planning."""
        queue = span.queue
        version = self._origin.version()
        if self._checked_topic == (queue.topic, version):
            return None
        try:
            self._origin.broker.readable(queue.topic)
        except (TopicNotFound, NotPermitted):
            return DataLoss(queue, at, None, remade=False)
        if self._origin.topic_begin(queue.topic) != self._begins[queue.topic]:
            return DataLoss(queue, at, None, remade=True)
        self._checked_topic = queue.topic, version
        return None

    def _handle_loss(self, loss: DataLoss | StoreCorrupted) -> None:
        """Raise SparkError, or log the loss and go on, as failOnDataLoss says."""
        if self._options.fail_on_data_loss:
            if isinstance(loss, DataLoss):
                raise_data_loss([loss])
            raise SparkError("MQ_DATA_LOSS", f"{loss}. With option failOnDataLoss=false it is skipped")
        _log.warning("%s", loss)

    def _kept(self, records: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._tags is not None:
            wanted = pc.is_in(records.column("tags"), value_set=pa.array(self._tags, pa.string()))
            records = _filtered(records, wanted)
        elif self._matches is not None:
            matches = self._matches
            wanted = pa.array([matches(encoded.as_py()) for encoded in records.column("encoded")], pa.bool_())
            records = _filtered(records, wanted)
        if self._key is not None:
            keys = pc.binary_join_element_wise("", records.column("keys"), "", " ")
            has = pc.fill_null(pc.match_substring(keys, f" {self._key} "), False)
            wanted = pc.or_(has, pc.equal(records.column("msgId"), self._key))
            records = _filtered(records, wanted)
        arrays = [records.column(name) for name in self._names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _filtered(records: Any, wanted: Any) -> Any:
    import pyarrow.compute as pc

    return records if pc.all(wanted).as_py() else records.filter(wanted)
