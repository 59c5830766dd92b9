"""Whose turn it is to do the duties: one process at a time, and at once another when that one is gone.

On disk: mq/duties. Each broker locks a byte of it, by a number that it made up, as long as it lives; byte 0
is locked, shared, by those that have the duties. The control file says which number has them, in which
term, and until when: a lease that a thread of that process renews. The lock says that a process lives, the
lease that it is in charge. It passes on when the kernel has dropped the lock, or when the lease has lapsed,
which is that of a process that is stopped; whatever such a process still writes is refused, since the term
is another one by then (see native/control/control.h). When a lease counts as lapsed: see lease.py.

The word MQ_DUTIES_PID says which process to watch; the process that gives its turn up
notifies the event."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mq.errors import StoreLocked
from mq.store.directory.file_locks import byte_owner, lock_byte, open_own_file, unlock_byte
from mq.store.directory.owner import opened_file
from mq.store.native import check, lib
from mq.store.os_errors import named_errors
from mq.store.shared.control import Control
from mq.store.shared.duty_event import DutyEvent
from mq.store.shared.lease import Lapse, end_of, grace, is_over, now_ns
from mq.store.shared.lock_guards import control_lock
from mq.store.shared.process_monitor import Watch
from mq.store.shared.process_state import describe, process_state
from mq.store.store import Store

__all__ = ["LEASE", "Turn", "has_lapsed", "is_taken", "who_delays_timers"]

LEASE = 10.0  # seconds
WATCHED_INTERVAL = 5.0  # seconds; should a number of a process be another's by now
TAKEN_BYTE, NUMBER_MAX = 0, 1 << 62

log = logging.getLogger("mq.leader")


def is_taken(root: Path) -> bool:
    """Whether somebody has the duties of the store in this directory."""
    try:
        file = opened_file(root / "mq" / "duties", os.O_RDONLY)
    except FileNotFoundError:
        return False
    with file as fd:
        return byte_owner(fd, TAKEN_BYTE) is not None


def has_lapsed(store: Store) -> bool:
    """Whether the process that had the duties last has not renewed its lease in time."""
    return is_over(store.word(lib.MQ_DUTIES_UNTIL), now_ns())


def who_delays_timers(store: Store) -> str:
    """The process that is stopped and has the timer wheel, or the duties, as a clause of an error; "" if none
    is."""
    control = store.control
    assert control is not None
    with suppress(StoreLocked), control_lock(control, lib.MQ_LOCK_TIMER, store.root, 0.0):
        pid = store.word(lib.MQ_DUTIES_PID)
        return f", since the duties are those of {describe(pid)}" if process_state(pid).is_stopped else ""
    return f", since the timer wheel is held by {describe(int(lib.mq_busy_pid()))}"


class Turn:
    """The place of one broker among those that could do the duties. One thread waits for it.

    lease: for how many seconds the duties are its own, unless it renews that."""

    def __init__(self, store: Store, lease: float = LEASE) -> None:
        self._store = store
        self.event = DutyEvent(store)
        self.term = 0  # in which it had the duties last
        self.lease = lease
        self._until = 0
        self._lapse = Lapse(lease)
        self._watch = Watch()
        self._watched = 0  # whose death is told of, or has been
        self._is_told = False
        self._forget: Callable[[], None] = lambda: None
        with named_errors(store.root):
            self._fd = open_own_file(store.root / "mq" / "duties")
        store.close_in_child(self._fd)
        self._number = random.SystemRandom().randrange(1, NUMBER_MAX)
        lock_byte(self._fd, self._number)

    @property
    def _control(self) -> Control:
        control = self._store.control
        assert control is not None
        return control

    def take(self) -> bool:
        """Whether it is this broker's turn from now on."""
        word = self._store.word
        term, holder, pid = word(lib.MQ_DUTIES_TERM), word(lib.MQ_DUTIES_HOLDER), word(lib.MQ_DUTIES_PID)
        is_alive = self._lives(holder)
        if is_alive and not self._has_lapsed(term):
            return False
        self._until = end_of(self.lease)
        taken = lib.mq_duties_take(self._control.handle, term, self._number, os.getpid(), self._until)
        if taken == lib.MQ_BUSY or not check(taken, str(self._store.root)):
            return False
        self.term = self._control.duties_term = term + 1
        self._watch.close()
        self._watch, self._watched = Watch(), 0
        lock_byte(self._fd, TAKEN_BYTE, shared=True)
        if is_alive:
            log.warning(
                "%s: the duties are taken over from %s, which has not renewed its lease of them",
                *(self._store.root, describe(pid)),
            )
        return True

    def _lives(self, holder: int) -> bool:
        """Whether another broker has this number."""
        if holder == self._number or not 0 < holder < NUMBER_MAX:
            return False
        return byte_owner(self._fd, holder) is not None

    def _has_lapsed(self, term: int) -> bool:
        """Whether the lease of this term is over, and has been seen so for long enough."""
        until, now = self._store.word(lib.MQ_DUTIES_UNTIL), now_ns()
        return self._lapse.is_sure((term, until) if is_over(until, now) else None, now)

    def holds(self) -> bool:
        """Whether it is still this broker's turn."""
        # Not by the store, which refuses when its directory was moved: the duties end by that, and look here.
        return self._control.get(lib.MQ_DUTIES_TERM) == self.term

    @property
    def leader_pid(self) -> int:
        """Of the process that has the duties; 0 if none has said so."""
        return self._control.get(lib.MQ_DUTIES_PID)

    def renew(self) -> bool:
        """Have the lease from now on; False if another process has the duties by now."""
        until = end_of(self.lease)
        if lib.mq_duties_renew(self._control.handle, self.term, self._until, until) == lib.MQ_DEPOSED:
            return False
        self._until = self._store.word(lib.MQ_DUTIES_UNTIL)
        return True

    def check(self) -> None:
        """Raises StoreLocked if another process has the duties by now."""
        if not self.holds():
            pid = self.leader_pid
            raise StoreLocked(
                f"{self._store.root}: process {pid} has the duties, which it took over while this one was"
                " stopped",
                path=str(self._store.root),
                pid=pid,
            )

    def wait(self, heard: int, seconds: float) -> None:
        """Sleep until it may be this broker's turn; `heard` is of before it tried. `seconds` is how often
        somebody is looked at whose death nobody tells of."""
        pid = self._store.word(lib.MQ_DUTIES_PID)
        if pid != self._watched:
            self._forget()
            self._watched, self._is_told = pid, False
            if pid not in (0, os.getpid()):
                self._forget = self._watch.watch(pid, self._gone)
        # Told of and yet holding the lock: of another pid namespace. 0: it has not said which it is.
        is_watched = pid != 0 and not self._is_told
        left = (self._store.word(lib.MQ_DUTIES_UNTIL) - now_ns()) / 1e9
        lapse = max(left, grace(self.lease))
        self.event.wait(heard, min(WATCHED_INTERVAL if is_watched else seconds, lapse))

    def _gone(self) -> None:
        self._is_told = True
        self.event.notify()

    def give_up(self) -> None:
        """Let another one have it, unless it is another's already."""
        # Where the lock is not to be had, the end of this broker tells as much.
        lib.mq_duties_leave(self._control.handle, self.term)
        unlock_byte(self._fd, TAKEN_BYTE)
        self.event.notify()

    def close(self) -> None:
        self._watch.close()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._store.closed_here(fd)
