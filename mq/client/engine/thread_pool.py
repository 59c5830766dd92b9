"""The threads of a consumer: one of them leads, the others run listeners or are parked.

The leading thread pulls, rebalances and waits for messages. What it finds it runs itself, for a message is
nowhere sooner than where it was found:

  - a listener that is brief is run while leading: no other thread is woken for it. One that is parked
    nearby looks in every few milliseconds as long as this goes on. If it finds the leader in the same run
    as the last time, that listener was not so brief: it takes the lead over, and what the run had not
    begun.
  - otherwise the leader gives the lead up first, and wakes another thread to take it.

At most `size_max` threads run listeners, and there is one more to lead. They are started when they are
needed. `lead`, `take` and `stuck` are the consumer's: see ConsumeLoop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from mq.errors import InsufficientResources
from mq.threads import start

logger = logging.getLogger("mq.consumer")

WATCH_SECONDS = 0.02
WATCH_ROUNDS = 5  # without a brief run, before the watcher sleeps

Request = TypeVar("Request")


class Worker:
    """The place of one thread, and where it waits."""

    __slots__ = ("thread", "wake_lock")

    def __init__(self) -> None:
        self.wake_lock = threading.Lock()
        self.wake_lock.acquire()
        self.thread: threading.Thread | None = None

    def wake(self) -> None:
        """Have the thread come back from its lock, now or as soon as it gets there."""
        with suppress(RuntimeError):  # It is open already.
            self.wake_lock.release()


class ThreadPool(Generic[Request]):
    """`lock` guards the pool and all that the consumer shares between its threads."""

    def __init__(
        self,
        name: str,
        size_max: int,
        lock: threading.Lock,
        *,
        lead: Callable[[Worker], Request | None],
        take: Callable[[], Request | None],
        perform: Callable[[Request], None],
        stuck: Callable[[Request], None],
    ) -> None:
        self._name = name
        self._threads_max = size_max + 1
        self._lock = lock
        self._lead = lead
        self._take = take
        self._perform = perform
        self._stuck = stuck
        self._workers: list[Worker] = []
        self._parked: list[Worker] = []
        self._leader: Worker | None = None
        self._watcher: Worker | None = None
        self._brief: list[Request] = []  # what the leader runs: taken out by the thread that it belongs to
        self._beat = 0  # counts those
        self._is_over = False

    def start(self) -> None:
        with self._lock:
            self._add()

    def leads(self, worker: Worker) -> bool:
        return self._leader is worker

    def is_member(self) -> bool:
        """Whether the calling thread is one of these."""
        current = threading.current_thread()
        return any(worker.thread is current for worker in self._workers)

    def perform_while_leading(self, request: Request) -> bool:
        """Run something brief. False: it was not, and somebody else leads now."""
        self._beat += 1
        self._brief.append(request)
        if self._watcher is None:
            with self._lock:
                self._post_watcher()
        try:
            self._perform(request)
        finally:
            was_left = _was_left(self._brief, request)
        return was_left

    def yield_lead(self) -> None:
        """Give the lead up, and wake another thread to take it. Under the lock, by the leader."""
        self._leader = None
        self.wake()

    def wake(self) -> None:
        """Have one more thread look for something to do, if there is one. Under the lock."""
        if self._parked:
            self._parked.pop().wake()
        elif self._add() is None and self._watcher is not None:
            self._watcher.wake()

    def end(self) -> None:
        """Have all threads end once they have nothing in hand. Under the lock."""
        self._is_over = True
        for worker in self._workers:
            worker.wake()

    def join(self, deadline: Callable[[], float]) -> None:
        """Wait for the threads to end, so many seconds as `deadline` says each time."""
        current = threading.current_thread()
        for worker in list(self._workers):
            if worker.thread is not None and worker.thread is not current:
                worker.thread.join(max(0.0, deadline()))

    def _add(self) -> Worker | None:
        """Start a thread, if there may be one more, and can be."""
        if len(self._workers) >= self._threads_max:
            return None
        worker = Worker()
        name = f"mq-consumer-{self._name}-{len(self._workers) + 1}"
        worker.thread = threading.Thread(target=self._main, args=(worker,), name=name, daemon=True)
        try:
            start(worker.thread)
        except InsufficientResources as error:
            if not self._workers:
                raise
            logger.warning("consumer %s makes do with %d threads: %s", self._name, len(self._workers), error)
            self._threads_max = len(self._workers)
            return None
        self._workers.append(worker)
        return worker

    def _main(self, worker: Worker) -> None:
        while True:
            try:
                if not self._turn(worker):
                    return
            except BaseException:  # an exception that somebody sent to the thread, say
                logger.exception("%s: the thread goes on", threading.current_thread().name)
                with self._lock:
                    if self._leader is worker:
                        self._leader = None

    def _turn(self, worker: Worker) -> bool:
        """Do one thing. Whether there may be another one to do."""
        request: Request | None = None
        is_parked = False
        with self._lock:
            if self._leader is None and not self._is_over:
                self._leader = worker
                if self._watcher is worker:  # A leader does not watch over itself.
                    self._watcher = None
            else:
                request = self._take() if self._watcher is not worker else None
                if request is None:
                    if self._is_over:
                        return False
                    is_parked = True
                    if self._watcher is not worker:
                        self._parked.append(worker)
        if request is None and not is_parked:
            request = self._lead(worker)
        if request is not None:
            self._perform(request)
        elif is_parked:
            worker.wake_lock.acquire()
            with self._lock:
                if worker in self._parked:  # It was woken for something that is over.
                    self._parked.remove(worker)
            if self._watcher is worker:
                self._watch(worker)
        return True

    def _post_watcher(self) -> None:
        if self._watcher is not None:
            return
        if self._parked:
            self._watcher = self._parked.pop()
        else:
            self._watcher = self._add()
        if self._watcher is not None:
            self._watcher.wake()

    def _watch(self, worker: Worker) -> None:
        """Look after the leader until it must be relieved, or has had nothing brief to run for a while."""
        beat, quiet = -1, 0
        while True:
            if worker.wake_lock.acquire(timeout=WATCH_SECONDS):
                with self._lock:
                    self._watcher = None
                return
            if self._beat != beat:
                beat, quiet = self._beat, 0
                continue
            if self._brief:
                with self._lock:
                    try:
                        request = self._brief.pop()
                    except IndexError:
                        continue
                    # It may have begun just now; then it was relieved too early, and that is all.
                    self._watcher = None
                    self._leader = None
                    self._stuck(request)
                return
            quiet += 1
            if quiet > WATCH_ROUNDS:
                # In this order: a thread that runs something brief says so first, and then looks for a
                # watcher.
                self._watcher = None
                if not self._brief or not self._watch_again(worker):
                    return

    def _watch_again(self, worker: Worker) -> bool:
        with self._lock:
            if self._watcher is None:
                self._watcher = worker
            return self._watcher is worker


def _was_left(brief: list[Request], request: Request) -> bool:
    """Take the run out; False if somebody else has: another one in here is the next leader's."""
    try:
        brief.remove(request)
    except ValueError:
        return False
    return True
