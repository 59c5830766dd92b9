"""Held pulls, which wait for a message (RocketMQ's PullRequestHoldService), without a thread or timer of
their own.

One thread waits with the broker's Waiter (mq.api.waiter) for all queues of held pulls, so a message from any
process answers a pull. When it wakes, the loop checks the ends of these queues and retries the pulls that may
find a message. The same thread detects changes of members.
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


@dataclass(eq=False, slots=True)
class Held:
    """A held pull. The loop calls `again`, with True once its time is over."""

    queue: MessageQueue
    offset: int
    wakes: Wakes  # the messages that may wake it: see Waiter
    deadline: float
    again: Callable[[bool], object]
    holds: set[object]  # the held pulls of its connection; contains this one while it waits
    is_blind: bool = False  # waits for a queue instead of a message: see wake_blind


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
        self._held: dict[MessageQueue, set[Held]] = {}
        self._count = 0
        self._count_max = count_max
        self._versions: list[tuple[Versioned, int]] = []  # of members, at the last check
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
        self._held.setdefault(held.queue, set()).add(held)
        self._count += 1
        self._waiter.wakeup()

    def drop(self, held: Held) -> bool:
        """Stop holding a pull; returns whether it was held."""
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
        """Drop the held pulls of a closed connection. Called by the loop."""
        for held in list(holds):
            assert isinstance(held, Held)
            self.drop(held)

    def wake(self) -> None:
        """Check everything soon: members or topics may have changed. Thread-safe."""
        self._waiter.wakeup()

    def wake_blind(self) -> None:
        """Retry the pulls that wait for a queue. Called by the loop."""
        for of_queue in list(self._held.values()):
            for held in list(of_queue):
                if held.is_blind:
                    self.drop(held)
                    held.again(False)

    def look(self) -> None:
        """Retry the pulls that may find a message, or whose time is over."""
        now = monotonic()
        for queue in list(self._held):
            try:
                end = self._broker.max_offset(queue)
            except (MQError, ValueError):
                end = None  # The queue is gone: the pull determines the answer.
            for held in list(self._held.get(queue, ())):
                is_over = now >= held.deadline
                if is_over or (not held.is_blind and (end is None or end != held.offset)):
                    self.drop(held)
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
