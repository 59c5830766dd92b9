"""What the options of a broker may be, said before anything is opened."""

from __future__ import annotations

from typing import Any

__all__ = ["QUEUE_COUNT_MAX", "check_count", "check_number", "check_options", "check_times"]

QUEUE_COUNT_MAX = 65_536
MESSAGE_SIZE_MAX = (1 << 31) - (1 << 17)
HOURS_MAX = 24 * 365 * 100
DELAY_MAX_MS = 366 * 86_400_000


def check_options(
    flush: str,
    flush_interval: float,
    retention_hours: float,
    disk_ratio_max: float | None,
    default_queue_count: int,
    message_size_max: int,
) -> None:
    """Raises TypeError, ValueError."""
    if flush not in ("async", "sync"):
        raise ValueError(f"flush is {flush!r}: give 'async' or 'sync'")
    check_number("flush_interval", flush_interval, 0.001, 3600.0)
    check_number("retention_hours", retention_hours, 0, HOURS_MAX)
    check_count("default_queue_count", default_queue_count, QUEUE_COUNT_MAX)
    check_count("message_size_max", message_size_max, MESSAGE_SIZE_MAX)
    if disk_ratio_max is not None:
        check_number("disk_ratio_max", disk_ratio_max, 0.0, 1.0)


def check_count(name: str, value: Any, high: int) -> None:
    check_number(name, value, 1, high)
    if not isinstance(value, int):
        raise TypeError(f"{name} is a number of type int, not {type(value).__name__}")


def check_number(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number, not {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value:,}: it must be from {low:,} to {high:,}")


def check_times(
    timer_precision_ms: int,
    timer_max_delay_ms: int,
    transaction_timeout: float,
    transaction_check_interval: float,
    transaction_check_max: int,
) -> None:
    """Raises TypeError, ValueError."""
    check_count("timer_precision_ms", timer_precision_ms, 60_000)
    check_count("timer_max_delay_ms", timer_max_delay_ms, DELAY_MAX_MS)
    check_number("transaction_timeout", transaction_timeout, 0.001, 86_400.0)
    check_number("transaction_check_interval", transaction_check_interval, 0.001, 86_400.0)
    check_count("transaction_check_max", transaction_check_max, 1_000_000)
