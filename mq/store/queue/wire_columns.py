"""Records that came over a connection as columns: C takes them apart where they lie, and believes none.

The columns are those of mq/store/queue/arrow.py. Needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mq.api.results import MessageQueue
from mq.errors import MQError, StoreCorrupted
from mq.store.native import check, ffi, lib
from mq.store.queue.arrow import ColumnBatches

__all__ = ["Taken", "WireColumns"]


class Taken(NamedTuple):
    """A batch, the offset of the next message, and where in the content its record begins."""

    records: Any
    next_offset: int
    at: int


class WireColumns:
    """Batches of one queue out of the records of pulls. `wire_topic` is the queue's topic as records have it.
    For one thread."""

    def __init__(
        self, queue: MessageQueue, wire_topic: str, columns: Sequence[str], unit: str = "us"
    ) -> None:
        try:
            import pyarrow as pa
        except ImportError:
            raise MQError("columns need pyarrow: pip install 'mq[arrow]'") from None
        self._batches = ColumnBatches(pa, queue.broker_name, queue, columns, unit)
        self._queue = queue
        self._topic = wire_topic.encode()

    def take(self, content: bytes, at: int, offset: int, end: int, count_max: int, byte_max: int) -> Taken:
        """The messages of [offset, end) out of content[at:], as many as ColumnBatches.read says. Raises
        StoreCorrupted if the first one is none of the queue's, is damaged, or cannot be decompressed."""
        result = ffi.new("mq_pull_result *")
        place = ffi.new("int64_t *", at)
        view = ffi.from_buffer("uint8_t[]", content)

        def fill(columns: Any, count: int) -> int:
            place[0] = at
            return int(
                lib.mq_records_columns(
                    view,
                    len(content),
                    place,
                    self._topic,
                    len(self._topic),
                    self._queue.queue_id,
                    offset,
                    end,
                    count,
                    columns,
                    result,
                )
            )

        code, (records, next_offset, error) = self._batches.read(fill, result, count_max, byte_max)
        if code == lib.MQ_CORRUPT:
            raise self._damaged(
                offset, f"byte {at:,} of the {len(content):,} that were sent begins no sound record of it"
            )
        check(code, f"{self._queue.topic}/{self._queue.queue_id}")
        if error is not None and not records.num_rows:
            raise self._damaged(next_offset, str(error))
        if next_offset != result.next_offset:  # Not all of the bodies were decompressed.
            place[0] = self._place_of(view, len(content), at, next_offset)
        return Taken(records, next_offset, int(place[0]))

    @staticmethod
    def _place_of(view: Any, size: int, at: int, offset: int) -> int:
        """Where the record with this offset begins. It is there, and all before it are whole."""
        record = ffi.new("mq_record *")
        while (taken := lib.mq_record_parse(view + at, size - at, record)) > 0:
            if record.queue_offset >= offset:
                break
            at += taken
        return at

    def _damaged(self, offset: int, why: str) -> StoreCorrupted:
        queue = self._queue
        return StoreCorrupted(
            f"broker {queue.broker_name!r} sent the message at queue offset {offset} of"
            f" {queue.topic}/{queue.queue_id} damaged: {why}; reading goes on at queue offset {offset + 1}",
            queue=queue,
            queue_offset=offset,
        )
