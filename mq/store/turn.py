"""Whose turn it is to do the duties: one process at a time, and at once another when that one is gone.

On disk: mq/duties. Its byte 0 is locked by whoever does them; the kernel drops the lock when he dies. The
word MQ_DUTIES_PID says who that is, so that the others are told of his death; who gives his turn up rings
the bell."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from mq.store.bell import Bell
from mq.store.locks import byte_owner, lock_byte, open_own_file, unlock_byte
from mq.store.named import named_errors
from mq.store.native import lib
from mq.store.store import Store
from mq.store.watch import Watch

__all__ = ["Turn", "is_taken"]

WATCHED_INTERVAL = 5.0  # seconds; should a number of a process be another's by now


def is_taken(root: Path) -> bool:
    """Whether somebody has the duties of the store in this directory."""
    try:
        fd = os.open(root / "mq" / "duties", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return byte_owner(fd, 0) is not None
    finally:
        os.close(fd)


class Turn:
    """The place of one broker among those who could do the duties. One thread waits for it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.bell = Bell(store)
        self._watch = Watch()
        self._watched = 0  # whose death is told of, or has been
        self._is_told = False
        self._forget: Callable[[], None] = lambda: None
        with named_errors(store.root):
            self._fd = open_own_file(store.root / "mq" / "duties")
        store.close_in_child(self._fd)

    def take(self) -> bool:
        """Whether it is this broker's turn from now on."""
        if not lock_byte(self._fd, 0):
            return False
        self._watch.close()
        self._say(os.getpid())
        return True

    def wait(self, heard: int, seconds: float) -> None:
        """Sleep until it may be this broker's turn; `heard` is of before it tried. `seconds` is how often
        somebody is looked at whose death nobody tells of."""
        pid = self._store.word(lib.MQ_DUTIES_PID)
        if pid != self._watched:
            self._forget()
            self._watched, self._is_told = pid, False
            if pid not in (0, os.getpid()):
                self._forget = self._watch.watch(pid, self._gone)
        # Told of and yet holding the lock: of another pid namespace. 0: he has not said who he is.
        is_watched = pid != 0 and not self._is_told
        self.bell.wait(heard, WATCHED_INTERVAL if is_watched else seconds)

    def _gone(self) -> None:
        self._is_told = True
        self.bell.ring()

    def give_up(self) -> None:
        """Let another one have it."""
        self._say(0)
        unlock_byte(self._fd, 0)
        self.bell.ring()

    def _say(self, pid: int) -> None:
        control = self._store.control
        assert control is not None
        control.set(lib.MQ_DUTIES_PID, pid)

    def close(self) -> None:
        self._watch.close()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._store.closed_here(fd)
