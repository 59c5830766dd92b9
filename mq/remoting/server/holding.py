"""Pulls that wait for a message: none of them has a thread or a timer.

One thread sleeps in the broker's own wait (mq.api.waiter) for all queues that are waited for, so a message
that another process sends answers a pull, too. When it wakes, the loop looks at the ends of these queues, and
has the pulls that may find something now try again. The same thread notices changes of members.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

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
Wakes = frozenset[int] | bytes | None


HELD_MAX = 100_000  # of all connections


@dataclass(eq=False, slots=True)
class Held:
    """A pull that waits. `again` is called by the loop: with True once its time is over."""

    queue: MessageQueue
    offset: int
    wakes: Wakes  # what may wake it: see Waiter
    deadline: float
    again: Callable[[bool], object]
    holds: set[object]  # of its connection, this one among them while it waits
    is_blind: bool = False  # waits for something else than a message: it is woken by hand


class Holding:
    """All pulls of one server that wait. Changed by the loop alone, from start() to close()."""

    def __init__(self, broker: Broker, events: EventLoop, members: Callable[[], list[Versioned]]) -> None:
        self._broker = broker
        self._events = events
        self._members = members
        self._waiter = broker.waiter()
        self._held: dict[MessageQueue, set[Held]] = {}
        self._count = 0
        self._versions: list[tuple[Versioned, int]] = []  # of members, as of the last look at everything
        self._seen = threading.Condition()
        self._is_looked_at = True
        self._is_closed = False
        self.changed: Final[list[Callable[[], object]]] = []  # told by the loop after each wake
        self._thread = threading.Thread(target=self._run, name="mq serve waiting", daemon=True)

    def start(self) -> None:
        start(self._thread)

    @property
    def is_full(self) -> bool:
        return self._count >= HELD_MAX

    def hold(self, held: Held) -> None:
        """Have it wait."""
        held.holds.add(held)
        self._held.setdefault(held.queue, set()).add(held)
        self._count += 1
        self._waiter.wakeup()

    def drop(self, held: Held) -> bool:
        """It does not wait any more; whether it did."""
        of_queue = self._held.get(held.queue)
        if of_queue is None or held not in of_queue:
            return False
        of_queue.discard(held)
        held.holds.discard(held)
        self._count -= 1
        if not of_queue:
            del self._held[held.queue]
        return True

    def drop_all(self, holds: set[object]) -> None:
        """Those of a connection that is closed do not wait any more. By the loop."""
        for held in list(holds):
            assert isinstance(held, Held)
            self.drop(held)

    def wake(self) -> None:
        """Look at everything soon: members or topics may have changed. From any thread."""
        self._waiter.wakeup()

    def wake_blind(self) -> None:
        """Have those try again that wait for a queue. By the loop."""
        for of_queue in list(self._held.values()):
            for held in list(of_queue):
                if held.is_blind:
                    self.drop(held)
                    held.again(False)

    def look(self) -> None:
        """Have those try again that may find something, or whose time is over."""
        now = monotonic()
        for queue in list(self._held):
            try:
                end = self._broker.max_offset(queue)
            except (MQError, ValueError):
                end = None  # It is gone: the pull finds out what to answer.
            for held in list(self._held.get(queue, ())):
                is_over = now >= held.deadline
                if is_over or (not held.is_blind and (end is None or end != held.offset)):
                    self.drop(held)
                    held.again(is_over)

    def close(self) -> None:
        """End the thread. Not by the loop."""
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
                # Before the look: what changes from here on ends the next sleep at once.
                self._versions = [(member, member.version()) for member in self._members()]
            except (BrokerClosed, ForkedBroker):
                return
            except Exception:
                log.exception("waiting for messages failed, and goes on")
                with self._seen:
                    self._seen.wait(AFTER_ERROR_SECONDS)
            with self._seen:
                self._is_looked_at = False
                self._events.post(self._look)
                while not self._is_looked_at and not self._is_closed:
                    self._seen.wait(SLEEP_SECONDS)

    def _sleep(self) -> None:
        positions, deadline = [], monotonic() + SLEEP_SECONDS
        for of_queue in list(self._held.values()):
            for held in list(of_queue):
                deadline = min(deadline, held.deadline)
                if not held.is_blind:
                    positions.append((held.queue, held.offset, held.wakes))
        self._waiter.wait(positions, self._versions, max(0.0, deadline - monotonic()))

    def _look(self) -> None:
        try:
            for changed in self.changed:
                changed()
            self.look()
        finally:
            with self._seen:
                self._is_looked_at = True
                self._seen.notify_all()
