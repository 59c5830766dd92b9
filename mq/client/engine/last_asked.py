"""What is shown of the queues of a consumer that asks for messages: when it did last."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from math import inf
from time import strftime
from typing import Final

from mq.api.results import MessageQueue
from mq.client.engine.owned_queue import OwnedQueue

__all__ = ["PAUSED", "LastAsked"]

NOTE_SECONDS: Final = 1.0  # at most so often it is said
PAUSED: Final = "paused by its consumer"


class LastAsked:
    """A queue that does not move because nobody asks for its messages is told from one that is read."""

    def __init__(self, owned: Mapping[MessageQueue, OwnedQueue], paused: AbstractSet[MessageQueue]) -> None:
        self._owned = owned
        self._paused = paused
        self._noted_at: float | None = None

    def note(self, now: float) -> None:
        """It asks, and gets messages."""
        if self._noted_at is None or now - self._noted_at >= NOTE_SECONDS:
            self._noted_at = now
            self._set_status(f"its consumer asked for messages last at {strftime('%H:%M:%S')}")

    def forget(self, now: float) -> None:
        """It waits for messages."""
        if self._noted_at is not None and now - self._noted_at >= NOTE_SECONDS:
            self._noted_at = None
            self._set_status("")

    @property
    def until(self) -> float:
        """When to forget it; inf for never."""
        return inf if self._noted_at is None else self._noted_at + NOTE_SECONDS

    def _set_status(self, reason: str) -> None:
        for owned in self._owned.values():
            if owned.queue not in self._paused:
                owned.set_status(reason)
