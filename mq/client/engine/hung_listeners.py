"""Listeners that have been running for long: since when, and at which line they stand.

The line is the listener's own, in the frame that the consumer called, and after it that of the innermost
call where it is another: "shop.py:42 (ssl.py:1104)".
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from mq.api.results import MessageQueue
from mq.client.engine import delivery

__all__ = ["NOTE_SECONDS", "NOT_HUNG", "Hung", "Running", "clock", "standing_at"]

NOTE_SECONDS: Final = 1.0  # A listener that has been running longer is worth a note.
NAME_MAX: Final = 48  # of the name of a source file


class Running(NamedTuple):
    """A listener that runs: the queue whose messages it has, since when on the consumer's clock, by which
    thread, and whether its result is still waited for."""

    queue: MessageQueue
    started: float
    thread: int
    is_wanted: bool


class Hung:
    """What there is to say of them. threads: how many there are, if every one of them runs a listener."""

    def __init__(self, running: Sequence[Running], threads: int, now: float) -> None:
        self.threads = threads
        self._running = sorted(running, key=lambda each: each.started)
        self._now = now

    def of(self, queue: MessageQueue) -> str:
        """Of the oldest one that holds up this queue; "" if there is none."""
        for each in self._running:
            if each.queue == queue and each.is_wanted:
                return f"listener running since {self._since(each)}"
        return ""

    def of_all(self) -> str:
        """Of a consumer that has no thread left for what waits."""
        oldest = self._since(self._running[0])
        return f"all {self.threads} threads are in listeners, the longest since {oldest}"

    def of_lost(self, queue: MessageQueue) -> str:
        """Of one whose messages were handed to another listener; "" if there is none."""
        for each in self._running:
            if each.queue == queue:
                return f"listener running since {self._since(each)}; its messages were sent back"
        return ""

    def _since(self, each: Running) -> str:
        since, at = clock(each.started - self._now), standing_at(each.thread)
        return f"{since} at {at}" if at else since


NOT_HUNG: Final = Hung((), 0, 0.0)


def standing_at(thread: int) -> str:
    """Where a thread that runs a listener stands; "" if it runs none any more, or no Python code."""
    frame = innermost = sys._current_frames().get(thread)
    listener: FrameType | None = None
    while frame is not None and frame.f_code.co_filename != delivery.__file__:
        listener, frame = frame, frame.f_back
    if frame is None or listener is None or innermost is None:
        return ""
    if listener is innermost:
        return _line(listener)
    return f"{_line(listener)} ({_line(innermost)})"


def _line(frame: FrameType) -> str:
    name = Path(frame.f_code.co_filename).name
    return f"{name if len(name) <= NAME_MAX else name[: NAME_MAX - 3] + '...'}:{frame.f_lineno}"


def clock(from_now: float) -> str:
    """The time of day so many seconds from now."""
    return datetime.fromtimestamp(datetime.now().timestamp() + from_now).strftime("%H:%M:%S")  # noqa: DTZ005, DTZ006 - shown to people here
