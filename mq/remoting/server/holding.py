"""Held pulls, which wait for a message (RocketMQ's PullRequestHoldService), without a thread or timer of
their own.

One thread waits with the broker's Waiter (mq.api.waiter) for all positions of held pulls, so a message from
any process answers a pull. When it wakes, the loop checks the ends of the queues and retries the pulls that
may find a message. The same thread detects changes of members.

Most pulls end without a message and come again with the same offset. So these cost next to nothing: the times
at which pulls end are rounded up, so that one wake answers many, and a pull wakes the thread only if the
thread would miss it otherwise.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from mq.api.broker import Broker
from mq.api.results import MessageQueue
from mq.api.waiter import Versioned
from mq.errors import BrokerClosed, ForkedBroker, MQError
from mq.remoting.event_loop import EventLoop
from mq.threads import start

__all__ = ["Held", "Holding"]

log = logging.getLogger("mq.remoting")

SLEEP_SECONDS = 10.0  # at most
AFTER_ERROR_SECONDS = 1.0
ENDS_SECONDS = 0.25  # between two wakes to answer pulls whose time is over; RocketMQ has 5 s
# A queue, the offset of the next message, and the messages that may wake the pull: see Waiter.
Position = tuple[MessageQueue, int, frozenset[int] | bytes | None]


@dataclass(eq=False, slots=True)
class Held:
    """A held pull. The loop calls `again`, with True once its time is over.

    position: what it waits for; None if it waits for a queue instead of a message: see wake_blind.
    deadline: by monotonic(); math.inf if there is none.
    """

    position: Position | None
    deadline: float
    again: Callable[[bool], object]
    holds: set[object]  # the held pulls of its connection; contains this one while it waits


class Holding:
    """The held pulls of one server. Only the loop changes it, from start() to close()."""

    def __init__(
        self,
        broker: Broker,
        events: EventLoop,
        members: Callable[[], list[Versioned]],
        count_max: int,
    ) -> None:
        self._broker = broker
        self._events = events
        self._members = members
        self._waiter = broker.waiter()
        self._held: dict[Position | None, set[Held]] = {}
        self._ending: dict[float, set[Held]] = {}  # by the rounded deadline
        self._count = 0
        self._count_max = count_max
        self._versions: list[tuple[Versioned, int]] = []  # of members, at the last check
        # What the thread waits for, or waited for last. Empty and inf while it finds that out.
        self._awaited: frozenset[Position | None] = frozenset()
        self._until = math.inf
        self._is_time = False  # The thread slept until then: nothing else woke it.
        self._checked_at = 0.0  # all queues
        self._seen = threading.Condition()
        self._is_looked_at = True
        self._is_closed = False
        self.changed: Final[list[Callable[[], object]]] = []  # called by the loop after each wake
        self._thread = threading.Thread(target=self._run, name="mq serve waiting", daemon=True)

    def start(self) -> None:
        start(self._thread)

    @property
    def is_full(self) -> bool:
        return self._count >= self._count_max

    def hold(self, held: Held) -> None:
        """Hold a pull."""
        held.holds.add(held)
        self._held.setdefault(held.position, set()).add(held)
        end = _rounded(held.deadline)
        if end < math.inf:
            self._ending.setdefault(end, set()).add(held)
        self._count += 1
        # While it waits for look() the thread knows of nothing, and finds out afterwards.
        if self._is_looked_at and (end < self._until or held.position not in self._awaited):
            self._waiter.wakeup()

    def drop(self, held: Held) -> bool:
        """Stop holding a pull; returns whether it was held."""
        if held not in held.holds:
            return False
        held.holds.discard(held)
        _discard(self._held, held.position, held)
        _discard(self._ending, _rounded(held.deadline), held)
        self._count -= 1
        return True

    def drop_all(self, holds: set[object]) -> None:
        """Drop the held pulls of a closed connection. Called by the loop."""
        for held in list(holds):
            assert isinstance(held, Held)
            self.drop(held)

    def wake(self) -> None:
        """Check everything soon: members or topics may have changed. Thread-safe."""
        self._waiter.wakeup()

    def wake_blind(self) -> None:
        """Retry the pulls that wait for a queue. Called by the loop."""
        self._retry(list(self._held.get(None, ())), is_over=False)

    def look(self) -> None:
        """Retry the pulls that may find a message, or whose time is over."""
        now = monotonic()
        for end in [end for end in self._ending if end <= now]:
            self._retry(list(self._ending.get(end, ())), is_over=True)
        if self._is_time and now < self._checked_at + SLEEP_SECONDS:
            return  # If there is a message as well, the next wait of the thread ends at once.
        self._checked_at = now
        ends = {position[0]: self._end(position[0]) for position in list(self._held) if position is not None}
        for position in list(self._held):
            # Where the queue is gone, the pull determines the answer.
            if position is not None and ends.get(position[0]) != position[1]:
                self._retry(list(self._held.get(position, ())), is_over=False)

    def _end(self, queue: MessageQueue) -> int | None:
        try:
            return self._broker.max_offset(queue)
        except (MQError, ValueError):
            return None

    def _retry(self, pulls: list[Held], *, is_over: bool) -> None:
        for held in pulls:
            if self.drop(held):
                held.again(is_over)

    def close(self) -> None:
        """End the thread. Must not be called by the loop."""
        self._is_closed = True
        with self._seen:
            self._seen.notify_all()
        with contextlib.suppress(MQError):
            self._waiter.wakeup()
        if self._thread.is_alive():
            self._thread.join(SLEEP_SECONDS)

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._sleep()
                # Read the versions before the check: a later change ends the next wait at once.
                self._versions = [(member, member.version()) for member in self._members()]
            except (BrokerClosed, ForkedBroker):
                return
            except Exception:
                log.exception("waiting for messages failed; it is retried")
                with self._seen:
                    self._seen.wait(AFTER_ERROR_SECONDS)
            with self._seen:
                self._is_looked_at = False
                self._events.post(self._look)
                while not self._is_looked_at and not self._is_closed:
                    self._seen.wait(SLEEP_SECONDS)

    def _sleep(self) -> None:
        # A pull that is held from here on wakes this thread, until it is known what the thread waits for.
        self._awaited, self._until, self._is_time = frozenset(), math.inf, False
        positions = [position for position in list(self._held) if position is not None]
        self._until = min(list(self._ending), default=math.inf)
        self._awaited = frozenset((None, *positions))
        begin = monotonic()
        timeout = max(0.0, min(SLEEP_SECONDS, self._until - begin))
        self._waiter.wait(positions, self._versions, timeout)
        self._is_time = 0.0 < timeout <= monotonic() - begin

    def _look(self) -> None:
        try:
            for changed in self.changed:
                changed()
            self.look()
        finally:
            with self._seen:
                self._is_looked_at = True
                self._seen.notify_all()


def _rounded(deadline: float) -> float:
    """When a pull of this deadline is answered."""
    return deadline if deadline == math.inf else math.ceil(deadline / ENDS_SECONDS) * ENDS_SECONDS


def _discard(table: dict[Any, set[Held]], key: Position | float | None, held: Held) -> None:
    of_key = table.get(key)
    if of_key is not None:
        of_key.discard(held)
        if not of_key:
            del table[key]
