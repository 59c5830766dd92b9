"""What a task does: ranges of queues into record batches, without a Python object for each message.

A tag is compared by its hash in C, where the message is passed over unread, and exactly once more here. An
SQL92 expression is asked of every property string, a key of every message's keys.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from mq.errors import NotPermitted, StoreCorrupted, TopicNotFound
from mq.spark.cluster import on_cluster
from mq.spark.errors import Refusal
from mq.spark.source.offset_planner import refuse_losses
from mq.spark.source.options import SourceOptions
from mq.spark.source.origin import Origin, origin_of
from mq.spark.source.ranges import Limits, Loss, Range
from mq.spark.target import StoreRef
from mq.spark.target_options import ClusterRef

__all__ = ["read_ranges"]

FIRST_ROWS = 256  # show() and limit(n) stop after the first ones
GROWTH = 4
WORTH = 4  # a batch of a quarter of the size goes as it is, smaller ones go together
ROW_BYTES = 4096  # where there are few messages, memory is reserved for such bodies; for larger ones as found

_log = logging.getLogger(__name__)


def read_ranges(
    place: StoreRef | ClusterRef,
    ranges: Sequence[Range],
    begins: Mapping[str, int],
    options: SourceOptions,
    schema: Any,
) -> Iterator[Any]:
    """The messages of the ranges as batches of this schema, in the order of the ranges. begins: see View."""
    reader = _Reader(origin_of(place, options), begins, options, schema)
    with on_cluster(place, "reading") if isinstance(place, ClusterRef) else nullcontext():
        yield from _gathered(reader, ranges, options)


def _gathered(reader: _Reader, ranges: Sequence[Range], options: SourceOptions) -> Iterator[Any]:
    """Batches that are worth it: small ones go together."""
    waiting: list[Any] = []  # small ones, of queues with little in them: a batch costs as much as many rows
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
        self._sound: tuple[str, int] | None = None  # a topic that was what it was planned to be, in a version
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

    def read(self, span: Range) -> Iterator[Any]:
        options = self._options
        tags = "*" if options.selection.hashes is None else options.tags
        try:
            scan = self._origin.scans.scan(span.queue, self._columns, tags=tags)
        except (TopicNotFound, NotPermitted, ValueError):
            # The topic was deleted since this was planned, or made smaller.
            self._lose(Loss(span.queue, span.start, None, remade=False))
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
                    self._lose(loss)
                    return
                self._lose(error)
                # Whatever lies before it was looked at, and has another tag.
                at = max(at, error.queue_offset) + 1
                continue
            except TopicNotFound:  # A broker that was asked says so.
                self._lose(Loss(span.queue, at, None, remade=False))
                return
            # Behind the read: what a topic made again has in the same places comes later than its beginning.
            if (loss := self._changed(span, at)) is not None:
                self._lose(loss)
                return
            self._rows = min(self._rows * GROWTH, options.batch_rows)
            if batch.is_out or batch.next_offset == at:
                limits = Limits(batch.min_offset, batch.max_offset)
                self._lose(Loss(span.queue, at, limits, remade=False))
                # It became too old, or there is less than there was.
                at = limits.oldest if at < limits.oldest < span.end else span.end
                continue
            at = batch.next_offset
            records = self._kept(batch.records)
            if records.num_rows:
                yield records

    def _changed(self, span: Range, at: int) -> Loss | None:
        """What is lost of a range from an offset on, if its topic is another one than was planned."""
        queue = span.queue
        version = self._origin.version()
        if self._sound == (queue.topic, version):
            return None
        try:
            self._origin.broker.readable(queue.topic)
        except (TopicNotFound, NotPermitted):
            return Loss(queue, at, None, remade=False)
        if self._origin.topic_begin(queue.topic) != self._begins[queue.topic]:
            return Loss(queue, at, None, remade=True)
        self._sound = queue.topic, version
        return None

    def _lose(self, loss: Loss | StoreCorrupted) -> None:
        """Go on without something, or refuse to."""
        if self._options.fail_on_data_loss:
            if isinstance(loss, Loss):
                refuse_losses([loss])
            raise Refusal("MQ_DATA_LOSS", f"{loss}. With option failOnDataLoss=false it is passed over")
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
