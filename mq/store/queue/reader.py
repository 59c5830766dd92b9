"""Reading a queue: one C call copies the records out and verifies them.

No lock is taken. A record is copied first and verified as copied; MessageExt takes it apart when asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from time import monotonic
from typing import Any

from mq.api.queues import Puller
from mq.api.results import MessageQueue, PullResult, PullStatus
from mq.fastpath import LogHandle, bind
from mq.message import MessageExt
from mq.store.index.find_records import record_at, unindexed
from mq.store.native import check, ffi, lib
from mq.store.queue.extensions import Marks
from mq.store.queue.unit_repair import UNREADABLE, made_anew, unreadable
from mq.store.shared.waiting import Wait
from mq.store.store import Store

__all__ = ["Reader"]

COUNT_AT_ONCE = 4096  # messages of one pull; a caller that asks for more gets that many
BUFFER_SIZE = 256 << 10
PULLERS_MAX = 16_384  # kept at a time: topics come and go, and anybody may ask for queues that there are not
STATUS = {
    lib.MQ_PULL_FOUND: PullStatus.FOUND,
    lib.MQ_PULL_NO_NEW: PullStatus.NO_NEW_MESSAGE,
    lib.MQ_PULL_NO_MATCHED: PullStatus.NO_MATCHED_MESSAGE,
    lib.MQ_PULL_ILLEGAL: PullStatus.OFFSET_ILLEGAL,
}
bind("statuses", tuple(STATUS[code] for code in range(len(STATUS))))
FOUND, NO_NEW, ILLEGAL = lib.MQ_PULL_FOUND, lib.MQ_PULL_NO_NEW, lib.MQ_PULL_ILLEGAL
RESULT_WORDS = 7


# Where C puts what it found, one for each pull that is under way: the buffer, a view of its bytes, its
# size, the sizes of the records in it, the result, and the result as words.
Scratch = tuple[Any, Any, int, Any, Any, Any]


def _scratch(size: int) -> Scratch:
    buffer, result = ffi.new("char[]", size), ffi.new("mq_pull_result *")
    sizes = ffi.new("int32_t[]", COUNT_AT_ONCE)
    return buffer, ffi.buffer(buffer), size, sizes, result, ffi.cast("int64_t *", result)


class Reader:
    """Reads the queues of one store, from any thread.

    admit(queue) raises what forbids reading there; it is asked again after every change of a topic.
    """

    def __init__(self, store: Store, name: str, version: Any, admit: Callable[[MessageQueue], None]) -> None:
        self._store = store
        self._name = name
        self._admit = admit
        self._version = version
        # With the version of the topics for which they are so.
        self._numbers: tuple[int, dict[MessageQueue, int]] = -1, {}
        self._pullers: dict[MessageQueue, Puller] = {}
        self._free: list[Scratch] = []
        log = store.live()
        self._log_handle = LogHandle(log, int(ffi.cast("uintptr_t", log)))
        store.detach_with(self._log_handle.detach)

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count_max: int,
        byte_max: int,
        tag_hashes: frozenset[int] | None,
        wait: float,
    ) -> PullResult:
        """See Puller. Raises StoreCorrupted where the record at `offset` is not what was stored."""
        try:
            puller = self._pullers[queue]
        except KeyError:
            if len(self._pullers) >= PULLERS_MAX:
                self._pullers = {}
            puller = self._pullers[queue] = self.puller(queue)
        return puller(offset, count_max, byte_max, tag_hashes, wait)

    def puller(self, queue: MessageQueue) -> Puller:
        """See Queues.puller."""
        return self._log_handle.puller(queue, self._name, partial(self._pull_unusual, queue), self.place)

    def marked_pull(
        self, queue: MessageQueue, marks: Marks, offset: int, count_max: int, byte_max: int, wait: float
    ) -> PullResult:
        """See Puller, for a consumer that passes over what is surely not for it."""
        return self._pull_unusual(queue, offset, count_max, byte_max, None, wait, marks)

    def _pull_unusual(
        self,
        queue: MessageQueue,
        offset: int,
        count_max: int,
        byte_max: int,
        tag_hashes: frozenset[int] | None,
        wait: float,
        marks: Marks | None = None,
    ) -> PullResult:
        log = self._store.live()
        try:
            scratch = self._free.pop()
        except IndexError:
            scratch = _scratch(BUFFER_SIZE)
        try:
            return self.pull_slowly(log, queue, scratch, offset, count_max, byte_max, tag_hashes, wait, marks)
        except OverflowError:
            raise ValueError(f"offset {offset} does not fit into 64 bits") from None
        finally:
            self._free.append(scratch)

    def place(self, queue: MessageQueue) -> tuple[int, int]:
        """The queue's place in the table, and the version of the topics for which that is so."""
        # The version first: a change that comes between the two is noticed by the next pull.
        version = int(self._version[0])
        return self._number(queue), version

    def pull_slowly(
        self,
        log: Any,
        queue: MessageQueue,
        scratch: Scratch,
        offset: int,
        count_max: int,
        byte_max: int,
        tag_hashes: frozenset[int] | None,
        wait: float,
        marks: Marks | None = None,
    ) -> PullResult:
        """A pull that filters, waits, finds nothing or finds something too large for the usual buffer."""
        if not isinstance(count_max, int) or count_max < 1:
            raise ValueError(f"count_max is {count_max!r}: ask for at least one message")
        count_max = min(count_max, COUNT_AT_ONCE)
        wanted, _kept = _wanted(tag_hashes, marks)
        deadline, repaired_at = monotonic() + wait, -1
        number, version = self.place(queue)
        while True:
            if number < 0:
                status = PullStatus.OFFSET_ILLEGAL if offset else PullStatus.NO_NEW_MESSAGE
                return PullResult(status, (), 0, 0, 0)
            buffer, view, size, sizes, result, words = scratch
            code = lib.mq_pull_wanted(
                log,
                number,
                version,
                offset,
                count_max,
                byte_max,
                wanted,
                buffer,
                size,
                sizes,
                result,
            )
            if code == lib.MQ_ROOM:
                scratch = _scratch(int(result.bytes))
                continue
            # A topic that is deleted while its queue is read takes its files away.
            if code == lib.MQ_STALE or (code in UNREADABLE and int(self._version[0]) != version):
                number, version = self.place(queue)
                continue
            if code:
                repaired_at = self._repaired(code, queue, number, result, repaired_at)
                continue
            status, count, _, next_offset, min_offset, max_offset, _ = ffi.unpack(words, RESULT_WORDS)
            if status == FOUND:
                messages = _messages(view, sizes, count, self._name)
                return PullResult(PullStatus.FOUND, messages, next_offset, min_offset, max_offset)
            left = deadline - monotonic()
            if left <= 0 or status == ILLEGAL:
                return PullResult(STATUS[status], (), next_offset, min_offset, max_offset)
            # Nothing of interest: on from where the scan ended, until the time is up.
            offset = next_offset
            if status == NO_NEW:
                wait_for = Wait(self._store, [(number, offset, tag_hashes)], version=version)
                wait_for.sleep(left)
                (offset,) = wait_for.offsets

    def number(self, queue: MessageQueue) -> int:
        """The queue's place in the table; -1 if it has never had a message and this broker only reads."""
        # A pair: what one thread finds out of date, another one does not add to what is new.
        seen, numbers = self._numbers
        version = self._version[0]
        if version != seen:
            numbers = {}
            self._numbers = version, numbers
        try:
            return numbers[queue]
        except KeyError:
            number = self._number(queue)
        if number >= 0:
            numbers[queue] = number
        return number

    def _number(self, queue: MessageQueue) -> int:
        self._store.live()
        self._admit(queue)
        name = queue.topic.encode()
        add = not self._store.read_only
        number = lib.mq_log_queue(self._store.live(), name, len(name), queue.queue_id, add)
        if number == lib.MQ_MISSING:
            return -1  # Never had a message, and a broker that only reads makes no entry for it.
        return check(number, str(self._store.root))

    def _repaired(self, code: int, queue: MessageQueue, number: int, result: Any, before: int) -> int:
        """The offset of a damaged unit, once it is made anew; before: the one for which that was done last.
        Raises why the pull failed, where that is another reason."""
        offset = int(result.next_offset)
        if code not in UNREADABLE or offset == before:
            raise self._failure(code, queue, number, result)
        if not made_anew(self._store, f"{queue.topic}/{queue.queue_id}", number, offset):
            raise self._failure(code, queue, number, result)
        return offset

    def _failure(self, code: int, queue: MessageQueue, number: int, result: Any) -> Exception:
        if code in UNREADABLE:
            offset, log_offset = int(result.next_offset), int(result.log_offset)
            return unreadable(self._store, queue, number, offset, log_offset, code)
        try:
            check(code, str(self._store.root))
        except Exception as error:  # noqa: BLE001 - handed back to be raised
            return error
        raise AssertionError(code)

    def record(self, log_offset: int) -> MessageExt | None:
        """The message whose record is at this place of the log; None if there is none, or not any more."""
        return record_at(self._store, log_offset, self._name)

    def unindexed(self) -> Iterator[MessageExt]:
        """See mq.store.index.find_records.unindexed."""
        return unindexed(self._store, self._name)

    def min_offset(self, queue: MessageQueue) -> int:
        number = self.number(queue)
        self._store.live()
        assert self._store.control is not None
        return max(self._store.control.min_offset(number), 0)

    def max_offset(self, queue: MessageQueue) -> int:
        number = self.number(queue)
        return 0 if number < 0 else check(lib.mq_queue_max(self._store.live(), number), str(self._store.root))

    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        number = self.number(queue)
        if number < 0:
            return 0
        time_ms = max(-(1 << 62), min(time_ms, 1 << 62))
        return check(lib.mq_queue_offset_at(self._store.live(), number, time_ms), str(self._store.root))

    def close(self) -> None:
        """Let go of the log; a pull under way in another thread still has it."""
        self._log_handle.detach()
        self._version = (-1,)
        self._pullers = {}  # They lead back here: without a cycle nothing waits for the collector.


def _wanted(tag_hashes: frozenset[int] | None, marks: Marks | None) -> tuple[Any, Any]:
    """What is wanted as C takes it, and what must live as long."""
    if tag_hashes is None and marks is None:
        return ffi.NULL, None
    wanted, kept = ffi.new("mq_wanted *", {"hash_count": -1}), []
    if tag_hashes is not None:
        kept.append(ffi.new("int32_t[]", list(tag_hashes)))
        wanted.hashes, wanted.hash_count = kept[-1], len(tag_hashes)
    if marks is not None:
        kept.append(ffi.new("int32_t[]", marks.positions))
        wanted.bits, wanted.bit_count = kept[-1], len(marks.positions)
        wanted.bitmap_size, wanted.since = marks.bitmap_size, marks.since
    return wanted, kept


def _messages(view: Any, sizes: Any, count: int, name: str) -> list[MessageExt]:
    """The records that lie one after the other in a view, each with bytes of its own."""
    ends = list(accumulate(ffi.unpack(sizes, count)))
    return [MessageExt(view[at:end], name) for at, end in zip([0, *ends], ends, strict=False)]
