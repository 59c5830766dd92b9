"""Waiter: how a thread waits for several consumers at once; Versioned: how they know of changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from mq.api.results import MessageQueue

__all__ = ["SWEEP_MAX", "Versioned", "Waiter"]

SWEEP_MAX: Final = 16  # A consumer of so many queues pulls from each of them, whichever wait() has named.


class Versioned(Protocol):
    """What a consumer looks at to know whether something changed."""

    def version(self) -> int:
        """Another number after every change."""
        ...


class Waiter(Protocol):
    """Waits for one consumer, or several of one broker at once, by one thread at a time."""

    def wait(
        self,
        positions: Sequence[tuple[MessageQueue, int, frozenset[int] | bytes | None]],
        members: Sequence[tuple[Versioned, int]],
        timeout: float,
    ) -> MessageQueue | None:
        """Wait until there is something to do, at most `timeout` seconds.

        That is: one of the queues has a message at or after its offset whose tag hash is among the set (None:
        any); one of the members (or of Assigned) has another version than was seen of it; wakeup() was called
        since the last wait returned. It may return early for nothing. A broker that knows which of the queues
        has a message may say so.
        """
        ...

    def wakeup(self) -> None:
        """Have wait() return, from any thread."""
        ...
