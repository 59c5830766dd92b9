"""What a live process renews from time to time, by one thread: its leases.

The thread is there as long as there is something to renew, and asleep in between. It does nothing that may
wait: a process that runs renews in time.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from mq.threads import start

__all__ = ["Renewals"]

log = logging.getLogger("mq.leader")


class Renewals:
    """Of one broker."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: dict[int, tuple[float, Callable[[], bool]]] = {}  # interval, renew
        self._due: dict[int, float] = {}
        self._count = 0
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def add(self, interval: float, renew: Callable[[], bool]) -> Callable[[], None]:
        """Call renew() every `interval` seconds until it returns False, or what is returned is called.
        Raises InsufficientResources."""
        with self._changed:
            self._count += 1
            ticket = self._count
            self._entries[ticket] = interval, renew
            self._due[ticket] = time.monotonic() + interval
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="mq-lease", daemon=True)
                try:
                    start(thread)  # It waits for the lock before it looks.
                except BaseException:
                    del self._entries[ticket], self._due[ticket]
                    raise
                self._thread = thread
            self._changed.notify()
        return lambda: self._drop(ticket)

    def _drop(self, ticket: int) -> None:
        if self._pid != os.getpid():
            return  # A forked child has neither the thread nor what it renews.
        with self._changed:
            self._entries.pop(ticket, None)
            self._due.pop(ticket, None)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._entries and (left := min(self._due.values()) - time.monotonic()) > 0:
                    self._changed.wait(left)
                if not self._entries:
                    self._thread = None
                    return
                ticket = min(self._due, key=self._due.__getitem__)
                interval, renew = self._entries[ticket]
                self._due[ticket] = time.monotonic() + interval
            try:
                goes_on = renew()
            except Exception:  # a store that was closed meanwhile
                log.debug("a lease is not renewed any more", exc_info=True)
                goes_on = False
            if not goes_on:
                self._drop(ticket)
