"""The threads of a consumer: one of them leads, the others run listeners or are parked.

Whoever leads pulls, rebalances and waits for messages. What it finds it runs itself, for a message is nowhere
sooner than where it was found:

  - a listener that is brief is run while leading: no other thread is woken for it. One that is parked
    nearby looks in every few milliseconds as long as this goes on. If it finds the leader in the same run
    as the last time, that listener was not so brief: it takes the lead over, and what the run had not
    begun.
  - otherwise the leader gives the lead up first, and wakes another thread to take it.

At most `size_max` threads run listeners, and there is one more to lead. They are started when they are
needed. `lead`, `take` and `stuck` are the consumer's: see Consumption.
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

Work = TypeVar("Work")


class Seat:
    """The place of one thread, and where it waits."""

    __slots__ = ("gate", "thread")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.thread: threading.Thread | None = None

    def wake(self) -> None:
        """Have the thread come back from its gate, now or as soon as it gets there."""
        with suppress(RuntimeError):  # It is open already.
            self.gate.release()


class Crew(Generic[Work]):
    """`lock` guards the crew and all that the consumer shares between its threads."""

    def __init__(
        self,
        name: str,
        size_max: int,
        lock: threading.Lock,
        *,
        lead: Callable[[Seat], Work | None],
        take: Callable[[], Work | None],
        perform: Callable[[Work], None],
        stuck: Callable[[Work], None],
    ) -> None:
        self._name = name
        self._threads_max = size_max + 1
        self._lock = lock
        self._lead = lead
        self._take = take
        self._perform = perform
        self._stuck = stuck
        self._seats: list[Seat] = []
        self._parked: list[Seat] = []
        self._leader: Seat | None = None
        self._watcher: Seat | None = None
        self._brief: list[Work] = []  # what is being run by who leads: taken out by whom it belongs to
        self._beat = 0  # counts those
        self._is_over = False

    def start(self) -> None:
        with self._lock:
            self._add()

    def leads(self, seat: Seat) -> bool:
        return self._leader is seat

    def is_member(self) -> bool:
        """Whether the calling thread is one of these."""
        current = threading.current_thread()
        return any(seat.thread is current for seat in self._seats)

    def perform_while_leading(self, work: Work) -> bool:
        """Run something brief. False: it was not, and somebody else leads now."""
        self._beat += 1
        self._brief.append(work)
        if self._watcher is None:
            with self._lock:
                self._post_watcher()
        try:
            self._perform(work)
        finally:
            was_left = _was_left(self._brief)
        return was_left

    def cede(self) -> None:
        """Give the lead up, and wake another thread to take it. Under the lock, by who leads."""
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
        for seat in self._seats:
            seat.wake()

    def join(self, deadline: Callable[[], float]) -> None:
        """Wait for the threads to end, so many seconds as `deadline` says each time."""
        current = threading.current_thread()
        for seat in list(self._seats):
            if seat.thread is not None and seat.thread is not current:
                seat.thread.join(max(0.0, deadline()))

    def _add(self) -> Seat | None:
        """Start a thread, if there may be one more, and can be."""
        if len(self._seats) >= self._threads_max:
            return None
        seat = Seat()
        name = f"mq-consumer-{self._name}-{len(self._seats) + 1}"
        seat.thread = threading.Thread(target=self._main, args=(seat,), name=name, daemon=True)
        try:
            start(seat.thread)
        except InsufficientResources as error:
            if not self._seats:
                raise
            logger.warning("consumer %s makes do with %d threads: %s", self._name, len(self._seats), error)
            self._threads_max = len(self._seats)
            return None
        self._seats.append(seat)
        return seat

    def _main(self, seat: Seat) -> None:
        while True:
            try:
                if not self._turn(seat):
                    return
            except BaseException:  # an exception that somebody sent to the thread, say
                logger.exception("%s: the thread goes on", threading.current_thread().name)
                with self._lock:
                    if self._leader is seat:
                        self._leader = None

    def _turn(self, seat: Seat) -> bool:
        """Do one thing. Whether there may be another one to do."""
        work: Work | None = None
        is_parked = False
        with self._lock:
            if self._leader is None and not self._is_over:
                self._leader = seat
            else:
                work = self._take()
                if work is None:
                    if self._is_over:
                        return False
                    is_parked = True
                    if self._watcher is not seat:
                        self._parked.append(seat)
        if work is None and not is_parked:
            work = self._lead(seat)
        if work is not None:
            self._perform(work)
        elif is_parked:
            seat.gate.acquire()
            with self._lock:
                if seat in self._parked:  # It was woken for something that is over.
                    self._parked.remove(seat)
            if self._watcher is seat:
                self._watch(seat)
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

    def _watch(self, seat: Seat) -> None:
        """Look after the leader until it must be relieved, or has had nothing brief to run for a while."""
        beat, quiet = -1, 0
        while True:
            if seat.gate.acquire(timeout=WATCH_SECONDS):
                with self._lock:
                    self._watcher = None
                return
            if self._beat != beat:
                beat, quiet = self._beat, 0
                continue
            if self._brief:
                with self._lock:
                    try:
                        work = self._brief.pop()
                    except IndexError:
                        continue
                    # It may have begun just now; then it was relieved too early, and that is all.
                    self._watcher = None
                    self._leader = None
                    self._stuck(work)
                return
            quiet += 1
            if quiet > WATCH_ROUNDS:
                # In this order: whoever runs something brief says so first, and then looks for a watcher.
                self._watcher = None
                if not self._brief or not self._watch_again(seat):
                    return

    def _watch_again(self, seat: Seat) -> bool:
        with self._lock:
            if self._watcher is None:
                self._watcher = seat
            return self._watcher is seat


def _was_left(brief: list[Work]) -> bool:
    """Take the run out; False if somebody else has."""
    try:
        brief.pop()
    except IndexError:
        return False
    return True
