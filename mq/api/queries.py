"""What a query for a key may ask for, of any broker."""

from __future__ import annotations

from mq.api.beginning import time_in_ms

__all__ = ["QUERY_COUNT_MAX", "check_query"]

QUERY_COUNT_MAX = 4096  # messages


def check_query(key: str, count_max: float, begin_ms: int = 0, end_ms: int | None = None) -> None:
    """Raises TypeError and ValueError for what no query can be for: see Broker.query."""
    if not isinstance(key, str) or not key:
        raise ValueError(f"key is {key!r}: give the text of one key")
    if isinstance(count_max, bool) or not isinstance(count_max, (int, float)):
        raise TypeError(f"count_max is a number, not {type(count_max).__name__}")
    if not 1 <= count_max <= QUERY_COUNT_MAX:
        raise ValueError(f"count_max is {count_max:,}: it must be from 1 to {QUERY_COUNT_MAX:,}")
    time_in_ms("begin_ms", begin_ms)
    if end_ms is not None:
        time_in_ms("end_ms", end_ms)
