"""The threads that run the requests of all connections. Connections take turns: one with a thousand requests
delays a request of another by one of its own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

__all__ = ["OrderedWork", "Work", "Workers"]

log = logging.getLogger("mq.remoting")

Work = Callable[[], object]


class Workers:
    """A thread pool with a queue per connection, or other owner of work."""

    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, name)
        self._is_closed = False
        self._lock = threading.Lock()
        self._waiting: dict[object, deque[tuple[Work, bool]]] = {}
        self._turns: deque[object] = deque()  # the keys of _waiting

    def submit(self, owner: object, work: Work, *, is_kept: bool = False) -> bool:
        """Run the work in a thread; is_kept: also after drop(). Returns False once the pool is closed. Where
        the system gives no more threads, one of those that there are runs it, or the next that can start."""
        with self._lock:
            try:
                self._threads.submit(self._run_next)
            except RuntimeError as error:
                if self._is_closed or not str(error).startswith("can't start new thread"):
                    return False
                # The executor has the call in its queue already.
                log.warning("%s: there are no more threads for requests, which wait", error)
            waiting = self._waiting.get(owner)
            if waiting is None:
                waiting = self._waiting[owner] = deque()
                self._turns.append(owner)
            waiting.append((work, is_kept))
            return True

    def drop(self, owner: object, *, is_all: bool = False) -> None:
        """Drop the work of this owner that has not begun, except work submitted as kept; is_all: that too.
        Ordered work that has its turn to come is never done then."""
        with self._lock:
            waiting = self._waiting.get(owner)
            if waiting is None:
                return
            kept = deque(each for each in waiting if each[1] and not is_all)
            if kept:
                self._waiting[owner] = kept
            else:
                del self._waiting[owner]
                self._turns.remove(owner)

    def close(self) -> None:
        """Finish all work, and end the threads."""
        self._is_closed = True
        self._threads.shutdown(wait=True)

    def _run_next(self) -> None:
        with self._lock:
            if not self._turns:
                return  # It was dropped.
            owner = self._turns.popleft()
            waiting = self._waiting[owner]
            work, _ = waiting.popleft()
            if waiting:
                self._turns.append(owner)
            else:
                del self._waiting[owner]
        try:
            work()
        except Exception:
            log.exception("work of %r failed", owner)


class OrderedWork:
    """Work of one owner that is done in its order. A pool's threads run it, one piece at a time: turn_count
    pieces, then other owners have the thread. That calls `worked` with the number of pieces that are done.

    is_followed: whether another piece follows in this turn the one that runs now. Only that one may ask.
    """

    def __init__(self, owner: object, turn_count: int, worked: Callable[[int], object]) -> None:
        self.is_followed = False
        self._owner = owner
        self._turn_count = turn_count
        self._worked = worked
        self._waiting: deque[tuple[Work, bool]] = deque()  # with whether it outlives the connection
        self._lock = threading.Lock()  # guards whether _waiting is being run
        self._is_running = False

    def add(self, workers: Workers, work: Work, *, is_kept: bool) -> None:
        """Run this after what was added before. is_kept: also after drop()."""
        with self._lock:
            self._waiting.append((work, is_kept))
            if self._is_running:
                return
            self._is_running = True
        workers.submit(self._owner, partial(self._run, workers), is_kept=True)

    def drop(self, *, is_all: bool = False) -> None:
        """Drop what has not begun, except what was added as kept; is_all: that too."""
        with self._lock:
            kept = [each for each in self._waiting if each[1] and not is_all]
            self._waiting.clear()
            self._waiting.extend(kept)

    def _run(self, workers: Workers) -> None:
        is_left = True
        while is_left:
            count = 0
            while is_left and count < self._turn_count:
                with self._lock:
                    if not self._waiting:
                        is_left = self._is_running = False
                        break
                    work, _ = self._waiting.popleft()
                    count += 1
                    self.is_followed = bool(self._waiting) and count < self._turn_count
                try:
                    work()
                except Exception:
                    log.exception("work of %r failed", self._owner)
            self._worked(count)
            if is_left and workers.submit(self._owner, partial(self._run, workers), is_kept=True):
                return
