"""What becomes of calls while another process is stopped: each ends, with a result or an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import mq
from mq.store.shared.lock_guards import time_limit

__all__ = ["Calls", "outcome", "outcomes"]

PATIENCE = 60.0
Calls = dict[str, Callable[[], object]]


def outcome(call: Callable[[], object], limit: float) -> tuple[str, float]:
    """What it raised, or "", and how long it took."""
    begin = time.monotonic()
    try:
        with time_limit(limit):
            call()
    except mq.MQError as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begin
    return "", time.monotonic() - begin


def outcomes(calls: Calls, limit: float) -> dict[str, tuple[str, float]]:
    """Of all of them at once, each with this limit, in seconds."""
    found: dict[str, tuple[str, float]] = {}

    def run(name: str) -> None:
        found[name] = outcome(calls[name], limit)

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in calls]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert found.keys() == calls.keys(), f"still waiting: {calls.keys() - found.keys()}"
    return found
