"""Reading a queue: one C call copies the records out and verifies them.

No lock is taken. A record is copied first and verified as copied; MessageExt takes it apart when asked.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from mq.broker.protocol import MessageQueue, PullResult, PullStatus
from mq.errors import StoreCorrupted
from mq.message import MessageExt
from mq.store.native import check, ffi, lib
from mq.store.store import Store

__all__ = ["Reader"]

COUNT_AT_ONCE = 4096  # messages of one pull; whoever asks for more gets that many
BUFFER_SIZE = 256 << 10
SPIN_NS = 50_000  # Waking an idle processor takes some 25 µs: look that long twice before sleeping.
STATUS = {
    lib.MQ_PULL_FOUND: PullStatus.FOUND,
    lib.MQ_PULL_NO_NEW: PullStatus.NO_NEW_MESSAGE,
    lib.MQ_PULL_NO_MATCHED: PullStatus.NO_MATCHED_MESSAGE,
    lib.MQ_PULL_ILLEGAL: PullStatus.OFFSET_ILLEGAL,
}
FOUND = lib.MQ_PULL_FOUND
RESULT_WORDS = 7


class Scratch:
    """Where C puts what it found; one for each pull that is under way."""

    __slots__ = ("buffer", "bytes", "result", "size", "sizes", "words")

    def __init__(self, size: int) -> None:
        self.size = size
        self.buffer = ffi.new("char[]", size)
        self.bytes = ffi.buffer(self.buffer)
        self.sizes = ffi.new("int32_t[]", COUNT_AT_ONCE)
        self.result = ffi.new("mq_pull_result *")
        self.words = ffi.cast("int64_t *", self.result)


class Reader:
    """Reads the queues of one store, from any thread.

    admit(queue) raises what forbids reading there.
    """

    def __init__(self, store: Store, name: str, version: Any, admit: Callable[[MessageQueue], None]) -> None:
        self._store = store
        self._name = name
        self._admit = admit
        self._log = store.live()
        self._version = version
        self._seen = -1
        self._numbers: dict[MessageQueue, int] = {}
        self._free: list[Scratch] = []
        self._pull = lib.mq_pull
        self._unpack = ffi.unpack
        self._no_hashes = ffi.NULL

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count_max: int,
        byte_max: int,
        tag_hashes: frozenset[int] | None,
        wait: float,
    ) -> PullResult:
        """See Broker.pull. Raises StoreCorrupted where the record at `offset` is not what was stored."""
        if self._version[0] != self._seen:
            self._seen = self._version[0]
            self._numbers = {}
        try:
            number = self._numbers[queue]
        except KeyError:
            number = self._number(queue)
            if number < 0:
                status = PullStatus.OFFSET_ILLEGAL if offset else PullStatus.NO_NEW_MESSAGE
                return PullResult(status, (), 0, 0, 0)
        try:
            scratch = self._free.pop()
        except IndexError:
            scratch = Scratch(BUFFER_SIZE)
        if tag_hashes is None:
            hashes, hash_count = self._no_hashes, -1
        else:
            hashes, hash_count = ffi.new("int32_t[]", list(tag_hashes)), len(tag_hashes)
        if not 0 < count_max <= COUNT_AT_ONCE:
            count_max = _bounded(count_max)
        deadline = 0.0
        while True:
            try:
                code = self._pull(
                    self._log, number, offset, count_max, byte_max, hashes, hash_count,
                    scratch.buffer, scratch.size, scratch.sizes, scratch.result,
                )  # fmt: skip
            except TypeError:
                self._store.live()
                raise
            except OverflowError:
                raise ValueError(f"offset {offset} does not fit into 64 bits") from None
            if code:
                if code == lib.MQ_ROOM:
                    scratch = Scratch(int(scratch.result.bytes))
                    continue
                raise self._failure(code, queue, scratch)
            status, count, _, next_offset, min_offset, max_offset, _ = self._unpack(
                scratch.words, RESULT_WORDS
            )
            if status == FOUND:
                name = self._name
                data = scratch.bytes
                if count == 1:
                    messages = [MessageExt(data[: scratch.sizes[0]], name)]
                else:
                    messages = []
                    at = 0
                    for size in self._unpack(scratch.sizes, count):
                        messages.append(MessageExt(data[at : at + size], name))
                        at += size
                if scratch.size == BUFFER_SIZE:
                    self._free.append(scratch)
                return PullResult(PullStatus.FOUND, messages, next_offset, min_offset, max_offset)
            if wait > 0:
                # Nothing of interest: on from where the scan ended, until the time is up.
                if deadline == 0.0:
                    deadline = monotonic() + wait
                left = deadline - monotonic()
                if left > 0 and status != lib.MQ_PULL_ILLEGAL:
                    offset = next_offset
                    if status == lib.MQ_PULL_NO_NEW:
                        self._wait(number, offset, left)
                        if self._version[0] != self._seen:
                            number = self._number(queue)
                    continue
            self._free.append(scratch)
            return PullResult(STATUS[status], (), next_offset, min_offset, max_offset)

    def _wait(self, number: int, offset: int, seconds: float) -> None:
        log = self._store.live()
        queues = ffi.new("int32_t[1]", [number])
        offsets = ffi.new("int64_t[1]", [offset])
        check(lib.mq_wait(log, queues, offsets, 1, int(seconds * 1e9), SPIN_NS), str(self._store.root))

    def number(self, queue: MessageQueue) -> int:
        """The queue's place in the table; -1 if it has never had a message and this broker only reads."""
        if self._version[0] != self._seen:
            self._seen = self._version[0]
            self._numbers = {}
        try:
            return self._numbers[queue]
        except KeyError:
            return self._number(queue)

    def _number(self, queue: MessageQueue) -> int:
        self._store.live()
        self._admit(queue)
        name = queue.topic.encode()
        add = not self._store.read_only
        number = lib.mq_log_queue(self._store.live(), name, len(name), queue.queue_id, add)
        if number == lib.MQ_MISSING:
            return -1  # Never had a message, and a broker that only reads makes no entry for it.
        self._numbers[queue] = check(number, str(self._store.root))
        return int(number)

    def _failure(self, code: int, queue: MessageQueue, scratch: Scratch) -> Exception:
        result = scratch.result
        if code in (lib.MQ_CORRUPT, lib.MQ_MISSING):
            what = (
                "a file is missing" if code == lib.MQ_MISSING else "the bytes there are not what was stored"
            )
            return StoreCorrupted(
                f"{self._store.root}: the message at queue offset {result.next_offset} of"
                f" {queue.topic}/{queue.queue_id} (log offset {result.log_offset}) cannot be read, {what};"
                f" it is lost, and reading goes on at queue offset {result.next_offset + 1}",
                path=str(self._store.root),
                log_offset=int(result.log_offset),
                queue=queue,
                queue_offset=int(result.next_offset),
            )
        try:
            check(code, str(self._store.root))
        except Exception as error:  # noqa: BLE001 - handed back to be raised
            return error
        raise AssertionError(code)

    def record(self, log_offset: int) -> MessageExt | None:
        """The message whose record is at this place of the log; None if there is none, or not any more."""
        size = ffi.new("int64_t *", 4096)
        while True:
            buffer = ffi.new("char[]", size[0])
            code = lib.mq_log_record(self._store.live(), log_offset, buffer, len(buffer), size)
            if code == lib.MQ_ROOM:
                continue
            if code in (lib.MQ_GONE, lib.MQ_CORRUPT, lib.MQ_MISSING, lib.MQ_INVALID):
                return None
            return MessageExt(ffi.buffer(buffer, check(code, str(self._store.root)))[:], self._name)

    def min_offset(self, queue: MessageQueue) -> int:
        number = self.number(queue)
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
        self._log = None
        self._version = [-2]


def _bounded(count_max: int) -> int:
    if not isinstance(count_max, int) or count_max < 1:
        raise ValueError(f"count_max is {count_max!r}: ask for at least one message")
    return min(count_max, COUNT_AT_ONCE)
