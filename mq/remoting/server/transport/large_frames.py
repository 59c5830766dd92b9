"""Which connections are read while many of them send large frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mq.remoting.event_loop import EventLoop

__all__ = ["LargeFrames"]


class LargeFrames:
    """The connections that are in the midst of a large frame. They take turns: in each round of the loop some
    are read, once. The others wait, so that a thousand of them delay no small request. Only the loop uses
    it."""

    AT_ONCE: Final = 2

    def __init__(self, events: EventLoop) -> None:
        self._events = events
        self._waiting: deque[Callable[[], object]] = deque()

    def append(self, read_on: Callable[[], object]) -> None:
        """A connection was read; its turn comes again after those that wait: then this is called."""
        if not self._waiting:
            self._events.loop.call_soon(self._next)
        self._waiting.append(read_on)

    def _next(self) -> None:
        for _ in range(min(self.AT_ONCE, len(self._waiting))):
            self._waiting.popleft()()
        if self._waiting:
            self._events.loop.call_soon(self._next)
