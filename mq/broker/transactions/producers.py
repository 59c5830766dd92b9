"""Live producers of a group, which are asked about transactions whose end did not come.

On disk: mq/producers/<group>, empty. Each producer that is asked has locked a byte of it, the first that was
free, with a descriptor of its own: the kernel drops the lock when its process dies. So all of them agree
which lives, and share what a round of checks asks, by name and count of checks modulo their number. What one
does not get to is shared anew in the next round. One whose process is stopped gets no share until it goes on.

A producer that waits to be asked sleeps on the word of the rounds (see mq/store/transactions/table.py).
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic

from mq.api.transactions import Check, HalfMessage
from mq.broker.transactions.half_queues import HalfTopic, name_of
from mq.errors import MQError
from mq.message import MessageExt
from mq.store.directory.file_locks import FLOCK, lock_byte, open_own_file
from mq.store.directory.owner import make_directory
from mq.store.os_errors import named_errors
from mq.store.shared.lock_guards import held_by_stopped
from mq.store.shared.waiting import Futex, Wait
from mq.store.store import Store
from mq.store.transactions.table import Entry, TransactionTable

__all__ = ["LocalChecker"]

PLACE_COUNT = 65_536


class LocalChecker:
    """See mq.api.broker.Checker."""

    def __init__(
        self,
        store: Store,
        table: TransactionTable,
        halves: HalfTopic,
        group: str,
        left: Callable[[LocalChecker], None],
    ) -> None:
        self.group = group
        self._store = store
        self._table = table
        self._halves = halves
        self._left = left
        self._asked: deque[MessageExt] = deque()
        self._poke = Futex(bytearray(4))
        self._poked = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()  # In a forked child a thread that is not there may have the lock for ever.
        self._has_left = False
        self._path = path = store.root / "mq" / "producers" / group
        self._fd = self._asking = -1
        try:
            with named_errors(path):
                make_directory(path.parent)
                self._fd = open_own_file(path)
                store.close_in_child(self._fd)
                # Of its own: a lock of the descriptor that asks does not show.
                self._asking = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                store.close_in_child(self._asking)
                self._place = next((place for place in range(PLACE_COUNT) if lock_byte(self._fd, place)), -1)
        except BaseException:
            self._close()
            raise
        if self._place < 0:
            self._close()
            raise MQError(f"group {group} has {PLACE_COUNT:,} live producers, which is its limit")
        self._seen = table.rounds.value  # What was asked before is asked again.

    def next(self, wait: float) -> Check | None:
        """See Checker.next."""
        if self._pid != os.getpid():
            raise self._store.refusal()
        deadline = monotonic() + wait
        while True:
            with self._lock:
                # First: a wakeup that comes while something is looked at is not slept through.
                poked = self._poke.value
                if self._has_left or poked != self._poked:
                    self._poked = poked
                    return None
                rounds = self._table.rounds.value
                if rounds != self._seen:
                    self._seen = rounds
                    self._asked = deque(self._share())
                found = self._first()
            left = deadline - monotonic()
            if found is not None or left <= 0:
                return found
            words = (self._table.rounds, rounds), (self._poke, poked)
            Wait(self._store, [], words=words).sleep(left)

    def _first(self) -> Check | None:
        while self._asked:
            message = self._asked.popleft()
            if self._table.state(name_of(message))[0] not in (Entry.COMMITTED, Entry.ROLLED_BACK):
                half = HalfMessage(message)
                return Check(half, self.group, message.log_offset, message.queue_offset)
        return None

    def _share(self) -> list[MessageExt]:
        """What this one has to look at of the last round."""
        begin, end = self._table.asked()
        living = self._living()
        count, own = len(living), living.index(self._place)
        found = []
        for message in self._halves.all(self._halves.halves, begin, end):
            half = HalfMessage(message)
            times = half.times_checked
            if times and half.group == self.group and (name_of(message) + times) % count == own:
                found.append(message)
        return found

    def _living(self) -> list[int]:
        """The places of all that live and are not stopped, this one included, in order."""
        with named_errors(self._table.path):
            places = sorted(_locked(self._asking, 0, PLACE_COUNT))
        stopped = held_by_stopped(self._path) if len(places) > 1 else set()
        return [place for place in places if place == self._place or place not in stopped]

    def wakeup(self) -> None:
        """See Checker.wakeup."""
        self._poke.add()
        self._poke.wake()

    def leave(self) -> None:
        """See Checker.leave."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._has_left:
                return
            self._has_left = True
            self._asked.clear()
            self._close()
        self.wakeup()
        self._left(self)

    def _close(self) -> None:
        for fd in (self._fd, self._asking):
            self._store.closed_here(fd)


def _locked(fd: int, begin: int, end: int) -> Iterator[int]:
    """The bytes from begin on, below end, that others than this descriptor have locked."""
    if begin >= end:
        return
    request = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, begin, end - begin, 0)
    kind, _, place, _, _ = FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, request))
    if kind != fcntl.F_UNLCK:
        # One of them, and not always the first.
        yield place
        yield from _locked(fd, begin, place)
        yield from _locked(fd, place + 1, end)
