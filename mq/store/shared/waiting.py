"""Waiting for messages of many queues at once, and for words that processes share.

A Wait sleeps until one of its queues has a message that is wanted, one of its words is not what was seen,
a topic changed, its store closes, a signal came, or the time is up. It costs nothing while it sleeps, and
a message that nobody waits for does not wake it: see native/control/wait.h.

The main thread alone handles signals. One that comes in the moment before it sleeps wakes nothing, so it
looks once a second whether there was one.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any, NamedTuple

from mq.store.native import check, ffi, lib
from mq.store.store import Store

__all__ = ["WORD_COUNT_MAX", "Futex", "Position", "Wait"]

SPIN_NS = 50_000  # Waking an idle processor takes some 25 µs: look that long twice before sleeping.
WAIT_AT_ONCE = 3600.0  # seconds; longer waits are several
SIGNAL_SECONDS = 1.0  # the same in the main thread
MODULUS = 1 << 32
HASHES = "i"  # as C's int32_t
OFFSETS = "q"
WORD_COUNT_MAX = int(lib.MQ_WAIT_WORDS)


class Position(NamedTuple):
    """From where on messages of one queue are news."""

    number: int  # in the table of queues
    offset: int
    # Of the tags that are wanted; or a test that every wanted message passes (see
    # native/control/wake_filter.h); None: every message.
    hashes: frozenset[int] | bytes | None = None


class Futex:
    """A word of 32 bits in a writable buffer, such as a mapped file, that any process may wait on.

    Counts modulo 2**32. Keeps the buffer exported as long as it lives; pages of it must be allocated.
    """

    __slots__ = ("_memory", "address", "pointer")

    def __init__(self, buffer: Any, at: int = 0) -> None:
        self._memory = ffi.from_buffer("char[]", buffer, require_writable=True)
        if not 0 <= at <= len(self._memory) - 4:
            raise ValueError(f"a word at byte {at} does not lie inside of {len(self._memory)} bytes")
        self.pointer = ffi.cast("uint32_t *", self._memory + at)
        self.address = int(ffi.cast("uintptr_t", self.pointer))
        if self.address % 4:
            raise ValueError(f"a word at byte {at} is not aligned to four bytes")

    @property
    def value(self) -> int:
        return int(lib.mq_word_get(self.pointer))

    def add(self, amount: int = 1) -> int:
        """Add in one step, beside other processes; the sum."""
        return int(lib.mq_word_add(self.pointer, amount % MODULUS))

    def wake(self) -> int:
        """Wake all that wait on it, after it was changed; how many slept."""
        return int(lib.mq_word_wake(self.pointer))

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until it is not `seen`; whether it may have changed. May return early for nothing."""
        nanoseconds = int(_at_once(seconds) * 1e9)
        return bool(lib.mq_word_wait(self.pointer, seen % MODULUS, nanoseconds) != lib.MQ_WORD_TIMEOUT)


class Wait:
    """What one thread waits for. May be waited for again: positions move on by themselves.

    words: each with the value that was seen in it, at most WORD_COUNT_MAX. version: that of the topics for
    which the numbers of the queues are right, -1 if that is of no interest.
    """

    def __init__(
        self,
        store: Store,
        positions: Sequence[Position | tuple[int, int, frozenset[int] | bytes | None]],
        *,
        version: int = -1,
        words: Sequence[tuple[Futex, int]] = (),
    ) -> None:
        if len(words) > WORD_COUNT_MAX:
            raise ValueError(f"{len(words)} words: at most {WORD_COUNT_MAX} are waited for at once")
        self._store = store
        self._words: Sequence[tuple[Futex, int]] = ()
        self._offsets = array(OFFSETS, [position[1] for position in positions])
        self._what = what = ffi.new("mq_waiting *")
        wanted = [position[2] for position in positions]
        arrays = [array(HASHES, [position[0] for position in positions]), self._offsets]
        if any(hashes is not None for hashes in wanted):
            arrays.append(array(HASHES, [self._count(hashes) for hashes in wanted]))
            some = [hashes for hashes in wanted if isinstance(hashes, frozenset)]
            arrays.append(array(HASHES, [number for hashes in some for number in hashes]))
        memory = [ffi.from_buffer(f"int{8 * part.itemsize}_t[]", part) for part in arrays]
        what.queues, what.offsets = memory[:2]
        if memory[2:]:
            what.hash_counts, what.hashes = memory[2:]
        what.count, what.topics_version = len(positions), version
        what.words = self._pointers = ffi.new("const uint32_t *[]", len(words))
        what.seen = self._seen = ffi.new("uint32_t[]", len(words))
        self._memory = memory  # C has the addresses.
        self._look_at(words)

    def renew(self, offsets: Iterable[int], words: Sequence[tuple[Futex, int]]) -> None:
        """Wait for the same queues from these offsets on, and for at most as many words as at first."""
        for place, offset in enumerate(offsets):
            self._offsets[place] = offset
        self._look_at(words)

    def drop_words(self) -> None:
        """Keep the memory of the words no longer; renew() must come before the next sleep()."""
        self._what.word_count = 0
        self._words = ()

    def _look_at(self, words: Sequence[tuple[Futex, int]]) -> None:
        for place, (word, seen) in enumerate(words):
            self._pointers[place], self._seen[place] = word.pointer, seen % MODULUS
        self._words = words  # C has their addresses too.
        self._what.word_count = len(words)

    def _count(self, hashes: frozenset[int] | bytes | None) -> int:
        """How many hashes are wanted; of a test, a number that stands for it."""
        if isinstance(hashes, frozenset):
            return len(hashes)
        number = -1 if hashes is None else lib.mq_wake_test(self._store.live(), hashes, len(hashes))
        return lib.MQ_WAIT_BY_TEST - number if number >= 0 else -1

    def sleep(self, seconds: float, *, spin_ns: int = SPIN_NS) -> int | None:
        """The place of a queue that has something to pull at its offset; None after anything else.

        Anything else may be the end of the time, and may be less. Looks for spin_ns before it sleeps. Raises
        BrokerClosed, ForkedBroker.
        """
        while True:
            began, at_once = monotonic(), _at_once(seconds)
            found = lib.mq_wait(self._store.live(), self._what, int(at_once * 1e9), spin_ns)
            if found == lib.MQ_STALE:
                return None
            place = check(found, str(self._store.root))
            if place < self._what.count:
                return place
            passed = monotonic() - began
            if passed < at_once or passed >= seconds:
                return None
            # Python looks for signals where a round of a loop ends.
            seconds -= passed
            spin_ns = 0

    @property
    def offsets(self) -> list[int]:
        """Where each queue is looked at next: nobody wants what lies between here and where it began."""
        return self._offsets.tolist()


def _at_once(seconds: float) -> float:
    """How long to sleep at once."""
    is_main = threading.get_ident() == threading.main_thread().ident
    return min(max(seconds, 0.0), SIGNAL_SECONDS if is_main else WAIT_AT_ONCE)
