"""What the round trip asks: two processes, one message there, one back, and again.

A channel pair is made before the fork. `echo` runs in one process and `ping` in the other, each for the same
`count`; `ready` is called when both may begin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class ChannelPair(Protocol):
    def echo(self, count: int, ready: Callable[[], object]) -> None:
        """Receive `count` messages and send each back."""

    def ping(self, count: int, ready: Callable[[], object]) -> list[int]:
        """Send `count` messages, each after the last came back; the time of each round trip, in ns."""
