"""Many queues in one call: what each has, and how many messages so many bytes are.

A query over thousands of queues asks this at every step, and pays two loads for each. Sizes are those of
whole records, as the queue's units have them; the log is not touched.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from mq.api.results import MessageQueue
from mq.store.native import check, ffi, lib
from mq.store.store import Store

__all__ = ["Spans"]


class Spans:
    """Asks about the queues of one store. number(queue) is a queue's place in the table, negative if it has
    none, since it never had a message."""

    def __init__(self, store: Store, number: Callable[[MessageQueue], int]) -> None:
        self._store = store
        self._number = number
        self._known: tuple[int, int, Sequence[MessageQueue], Any] = -1, -1, (), ffi.new("int32_t[]", 0)

    def limits(self, queues: Sequence[MessageQueue]) -> tuple[Sequence[int], Sequence[int]]:
        """The oldest offset and the end of each queue. The same object again, unchanged, costs least."""
        oldest, ends = (array("q", bytes(8 * len(queues))) for _ in range(2))
        places = [ffi.from_buffer("int64_t[]", part) for part in (oldest, ends)]
        while True:
            version, numbers = self._numbers(queues)
            code = lib.mq_queues_limits(self._store.live(), version, numbers, len(queues), *places)
            if code != lib.MQ_STALE:
                check(code, str(self._store.root))
                return oldest, ends

    def _numbers(self, queues: Sequence[MessageQueue]) -> tuple[int, Any]:
        version = self._store.topics_version()[0]
        count = self.queue_count()  # Read first: one that has no number may get one at any time.
        seen_version, seen_count, known, numbers = self._known
        if (seen_version, seen_count) != (version, count) or known is not queues:
            numbers = ffi.new("int32_t[]", [self._number(queue) for queue in queues])
            self._known = version, count, queues, numbers
        return version, numbers

    def fit(self, queue: MessageQueue, start: int, end: int, bytes_max: int) -> tuple[int, int]:
        """How far one may go from start, not beyond end, with records of at most bytes_max bytes; how many
        bytes they have."""
        number = self._number(queue)
        if number < 0:
            return start, 0
        size = ffi.new("int64_t *")
        reached = lib.mq_queue_fit(self._store.live(), number, start, end, bytes_max, size)
        return check(reached, str(self._store.root)), int(size[0])

    def queue_count(self) -> int:
        """How many queues ever got a number."""
        return self._store.word(lib.MQ_QUEUES_MADE)

    def log_min(self) -> int:
        """Where the log begins: what was before, retention took."""
        return self._store.word(lib.MQ_LOG_MIN)

    def first_not_indexed(self, queue: MessageQueue, start: int, end: int) -> int:
        """From where on messages in [start, end) may not be found by their keys yet; else end."""
        log_offset = self._store.word(lib.MQ_INDEXED_END)
        number = self._number(queue)
        place, size, code = ffi.new("int64_t *"), ffi.new("int32_t *"), ffi.new("int64_t *")
        while number >= 0 and start < end:
            middle = (start + end) // 2
            found = lib.mq_queue_unit(self._store.live(), number, middle, place, size, code)
            if found == lib.MQ_MISSING or place[0] < log_offset:
                start = middle + 1
            else:
                check(found, str(self._store.root))
                end = middle
        return end
