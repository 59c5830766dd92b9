"""Queries of Spark that start, on a machine that stands still at times."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def begun(start: Callable[[], Any]) -> Any:
    """A query that was started, when it has found its sources. Spark gives the Python of one ten seconds to
    start, which no setting changes; where the machine stood still meanwhile, it is started once more."""
    while True:
        query = start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.02)
        if not _is_late(query):
            return query


def _is_late(query: Any) -> bool:
    """Whether it ended because a Python did not start in time."""
    error = query.exception()
    return error is not None and "Python worker failed to connect back" in str(error)
