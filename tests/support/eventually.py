"""Waits for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(
    what: Callable[[], bool], why: Callable[[], object], seconds: float = 90.0, pause: float = 0.005
) -> None:
    """Wait until it is so."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, why()
        time.sleep(pause)
