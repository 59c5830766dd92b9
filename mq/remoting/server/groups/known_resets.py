"""What a remote client knows of resets of its group's offsets.

A client goes on by its own offsets after its queues were released, and after it has reconnected. So it is
remembered which reset of each queue it has heard of last: until it hears of a later one, nothing that it
commits is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mq.api.group import Assigned, Resets
from mq.api.results import MessageQueue

__all__ = ["KnownResets"]


class KnownResets:
    """Of one client and one group. Outlives the client's membership. Thread-safe."""

    def __init__(self, assigned: Assigned) -> None:
        self.assigned: Final = assigned
        self._known: dict[MessageQueue, Resets] = {}

    def now(self, queue: MessageQueue) -> Resets:
        """What was reset of a queue until now, whether or not the client has heard of it."""
        return self.assigned.resets(queue)

    def covers(self, queue: MessageQueue, resets: Resets) -> bool:
        """Whether the client has heard of all of them."""
        return not resets.since(self._known.get(queue))

    def note(self, queue: MessageQueue, resets: Resets) -> None:
        """The client has heard of them. Of a queue that is gone nobody can: it may come as another one."""
        if resets.number >= 0:
            self._known[queue] = resets

    def told(self, queue: MessageQueue, read: Callable[[], int | None]) -> int | None:
        """The group's offset, as it is read, for an answer by which the client hears of every reset."""
        resets = self.now(queue)
        offset = read()
        self.note(queue, resets)
        return offset
