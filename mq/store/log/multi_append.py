"""Appending to many queues at once: one C call, published by one move of the log's end, all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mq.api.bulk import Stored
from mq.api.results import MessageQueue
from mq.store.log.size_limits import bulk_too_large
from mq.store.native import check, ffi, lib
from mq.store.store import Store

__all__ = ["PLAIN", "TIMED", "BulkWriter", "begin_writing"]

FLUSH_TIMEOUT_MS = 60_000
INT32 = "int32_t[]"
PLAIN: int = lib.MQ_BULK_PLAIN  # in place of a delay
TIMED: int = lib.MQ_BULK_TIMED


class _Pieces(NamedTuple):
    pieces: Any  # mq_piece[]
    held: list[Any]  # what they point into


def _check_fit(
    queues: Sequence[MessageQueue], places: Any, bodies: _Pieces, sizes: Any, texts: _Pieces, text_sizes: Any
) -> None:
    """Raises ValueError for a bulk whose parts contradict each other."""
    count = len(places)
    if not 0 < count == len(sizes) == len(text_sizes):
        raise ValueError(
            "a bulk has a place, a body and properties for each message, and at least one of them"
        )
    if len(set(queues)) != len(queues) or lib.mq_bulk_check(
        len(queues),
        count,
        places,
        bodies.pieces,
        len(bodies.held),
        sizes,
        texts.pieces,
        len(texts.held),
        text_sizes,
    ):
        raise ValueError("places or sizes of a bulk do not fit its queues, bodies and properties")


def _pieces(buffers: Sequence[Any]) -> _Pieces:
    held = [ffi.from_buffer(buffer) for buffer in buffers]
    return _Pieces(ffi.new("mq_piece[]", [(part, len(part)) for part in held]), held)


class BulkWriter:
    """Appends bulks to one store, from any thread. admit(topic, queue_id) raises what forbids it."""

    def __init__(self, store: Store, version: Any, admit: Callable[[str, int], None]) -> None:
        self._store = store
        self._version = version  # of the topics: a word in shared memory
        self._admit = admit

    def append(
        self,
        queues: Sequence[MessageQueue],
        places: Any,
        bodies: Sequence[Any],
        body_sizes: Any,
        properties: Sequence[Any],
        properties_sizes: Any,
        delays_ms: Sequence[int] | None = None,
    ) -> Stored:
        """Append messages, all or none: the i-th goes to queues[places[i]], where they keep their order.

        places and sizes are buffers of 32-bit numbers; bodies and encoded property strings lie one after the
        other in buffers, none in two of them. delays_ms: of each queue PLAIN, TIMED for messages put aside
        that say when they are due, or how long they wait there. Raises MessageTooLarge, StoreFull,
        StorePoisoned, ValueError for one put aside that says not where it belongs, and what `admit` raises.
        """
        place_of, sizes, encoded_sizes = (
            ffi.from_buffer(INT32, part) for part in (places, body_sizes, properties_sizes)
        )
        count = len(place_of)
        kept, texts = _pieces(bodies), _pieces(properties)
        _check_fit(queues, place_of, kept, sizes, texts, encoded_sizes)
        receipt = ffi.new("mq_receipt *")
        delays = ffi.new("int64_t[]", delays_ms if delays_ms is not None else [PLAIN] * len(queues))
        while True:
            version = self._version[0]
            numbers = [self._number(queue) for queue in queues]
            result = lib.mq_append_bulk(
                self._store.live(),
                version,
                numbers,
                len(numbers),
                count,
                place_of,
                kept.pieces,
                sizes,
                texts.pieces,
                encoded_sizes,
                delays,
                receipt,
            )
            if result not in (lib.MQ_GONE, lib.MQ_STALE):
                break
        if result == lib.MQ_TOO_LARGE:
            file_size = self._store.file_sizes.commitlog_file_size
            raise bulk_too_large(ffi.unpack(sizes, count), ffi.unpack(encoded_sizes, count), file_size)
        if result == lib.MQ_INVALID:
            raise ValueError("a bulk has a message put aside that says not where it belongs, or when")
        check(result, str(self._store.root))
        return Stored(int(receipt.log_offset), int(receipt.end), int(receipt.store_time))

    def sync(self, stored: Stored) -> None:
        """Have a bulk on disk, whatever the broker does with messages. Raises StorePoisoned, StoreLocked."""
        check(lib.mq_log_flush(self._store.live(), stored.end, -1, FLUSH_TIMEOUT_MS), str(self._store.root))

    def _number(self, queue: MessageQueue) -> int:
        self._admit(queue.topic, queue.queue_id)
        name = queue.topic.encode()
        return check(
            lib.mq_log_queue(self._store.live(), name, len(name), queue.queue_id, 1), str(self._store.root)
        )


def begin_writing(descriptor: int, begin: int, end: int) -> None:
    """Have the disk begin with what was written there of a file, without waiting for it."""
    lib.mq_begin_writing(descriptor, begin, end - begin)
