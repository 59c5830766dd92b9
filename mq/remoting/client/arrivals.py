"""Wake-ups for consumers of a cluster: a pull was answered, or a group or a route changed.

Pulls run in the background (see groups/claim_puller.py); each answer is an arrival of its queue. A waiting
thread wakes on the arrivals of its queues and on changes of its members, which it detects by comparing
versions. It does not poll.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from mq.api.results import MessageQueue
from mq.api.waiter import Versioned

__all__ = ["Arrivals", "RemoteWaiter"]

UNPULLED_SECONDS = 1.0  # the polling interval of a queue without background pulls

Position = tuple[MessageQueue, int, "frozenset[int] | bytes | None"]


class Arrivals:
    """The arrivals of one broker object. Thread-safe. Listeners run in the calling thread and must be
    fast."""

    def __init__(self) -> None:
        # Consumers change both by single calls of C, without a lock: a signal handler may poll as well.
        self._counts: dict[MessageQueue, int] = {}
        self._listeners: dict[Callable[[], object], None] = {}
        self._lock = threading.Lock()  # among the threads that have answers

    def count(self, queue: MessageQueue) -> int | None:
        """How many arrivals the queue has had; None for a queue without background pulls."""
        return self._counts.get(queue)

    def expect(self, queue: MessageQueue) -> None:
        """Start counting the arrivals of this queue."""
        self._counts.setdefault(queue, 0)

    def arrived(self, queue: MessageQueue) -> None:
        with self._lock:
            self._counts[queue] = self._counts.get(queue, 0) + 1
        self.changed()

    def changed(self) -> None:
        """Make every waiting thread compare the versions of its members."""
        for listener in tuple(self._listeners):
            listener()

    def listen(self, listener: Callable[[], object]) -> None:
        self._listeners[listener] = None

    def forget(self, listener: Callable[[], object]) -> None:
        self._listeners.pop(listener, None)


class RemoteWaiter:
    """See mq.api.waiter.Waiter. Only one thread waits at a time."""

    def __init__(self, arrivals: Arrivals, check_open: Callable[[], object]) -> None:
        self._arrivals = arrivals
        self._check_open = check_open
        # Released where there is news. No Event: an interrupt in one of its methods leaves its lock taken,
        # and the thread that has the next answer would wait for that.
        self._news = threading.Lock()
        self._seen: dict[MessageQueue, int] = {}
        self._is_woken = False

    def wait(
        self, positions: Sequence[Position], members: Sequence[tuple[Versioned, int]], timeout: float
    ) -> MessageQueue | None:
        """See Waiter.wait."""
        counts = {queue: self._arrivals.count(queue) for queue, _, _ in positions}
        if None in counts.values():
            timeout = min(timeout, UNPULLED_SECONDS)
        deadline = monotonic() + timeout
        try:
            self._arrivals.listen(self._tell)
            while True:
                self._news.acquire(blocking=False)
                self._check_open()  # After listen(): what is closed later tells.
                found = self._arrived(positions)
                if found is not None or self._is_woken or any(one.version() != seen for one, seen in members):
                    self._is_woken = False
                    return found
                if not self._news.acquire(timeout=max(deadline - monotonic(), 0.0)):
                    return None
        finally:
            self._arrivals.forget(self._tell)

    def _tell(self) -> None:
        with suppress(RuntimeError):  # There is news already.
            self._news.release()

    def _arrived(self, positions: Sequence[Position]) -> MessageQueue | None:
        """A queue with arrivals since its last pull."""
        for queue, _, _ in positions:
            count = self._arrivals.count(queue)
            if count is not None and count != self._seen.get(queue, 0):
                self._seen[queue] = count
                return queue
        return None

    def wakeup(self) -> None:
        """See Waiter.wakeup."""
        self._is_woken = True
        self._tell()
