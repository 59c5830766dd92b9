"""What the options of a consumer that asks for messages may be."""

from __future__ import annotations

from typing import Final

__all__ = ["check_count"]

PULL_COUNT_MAX: Final = 65_536


def check_count(option: str, value: int) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{option} is an int, not {type(value).__name__}")
    if not 1 <= value <= PULL_COUNT_MAX:
        raise ValueError(f"{option} is {value}, must be 1 to {PULL_COUNT_MAX:,}")
