"""RocketMQ's messageDelayLevel: the delays of all levels, as text."""

from __future__ import annotations

import re

__all__ = ["DELAY_MAX_MS", "LEVELS", "LEVEL_COUNT_MAX", "parse_levels"]

LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LEVEL_COUNT_MAX = 64
LEVEL = re.compile(r"(\d+)(ms|s|m|h|d)", re.ASCII)
UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DELAY_MAX_MS = 366 * UNIT_MS["d"]


def parse_levels(text: str) -> tuple[int, ...]:
    """The delays of all levels in ms, from RocketMQ's messageDelayLevel: units s m h d, and ms besides.

    Raises ValueError.
    """
    if not isinstance(text, str):
        raise TypeError(f"message_delay_level is a text such as '1s 5s 10s', not {type(text).__name__}")
    delays = []
    for word in text.split():
        found = LEVEL.fullmatch(word)
        delay = int(found[1]) * UNIT_MS[found[2]] if found and len(word) < 20 else 0
        if not 0 < delay <= DELAY_MAX_MS:
            raise ValueError(
                f"message_delay_level has {word!r}: a level is a number above 0 with its unit,"
                " one of ms s m h d, and at most 366d"
            )
        delays.append(delay)
    if not 1 <= len(delays) <= LEVEL_COUNT_MAX:
        raise ValueError(f"message_delay_level has {len(delays)} levels: give 1 to {LEVEL_COUNT_MAX}")
    return tuple(delays)
