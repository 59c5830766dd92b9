"""Parsers for the values of options: numbers, booleans, choices, durations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from mq.spark.errors import SparkError, short

__all__ = [
    "AGO",
    "DIGITS",
    "UNIT_MS",
    "boolean",
    "choice",
    "duration_ms",
    "number",
    "one_of",
    "or_default",
    "reject",
]

AGO = re.compile(r"-?([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(ms|s|m|h|d)\Z")
DIGITS = re.compile(r"[0-9]{1,19}\Z")
NUMBER_MAX = (1 << 62) - 1
UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BOOLEANS = {"true": True, "false": False}


def number(options: Mapping[str, str], name: str, least: int) -> int | None:
    """A whole number; None if the option is missing. Raises SparkError."""
    text = options.get(name)
    if text is None:
        return None
    if not DIGITS.match(text.strip()) or not least <= int(text) <= NUMBER_MAX:
        raise SparkError(
            "MQ_OPTION",
            f"option {name} is {short(text)}: give a number, {least} or more and below 2**62",
        )
    return int(text)


def boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.strip().lower() not in _BOOLEANS:
        raise SparkError("MQ_OPTION", f"option {name} is {short(text)}: give true or false")
    return _BOOLEANS[text.strip().lower()]


def choice(options: Mapping[str, str], name: str, words: tuple[Any, ...]) -> Any:
    text = options.get(name, words[0]).strip().lower()
    if text not in words:
        raise SparkError("MQ_OPTION", f"option {name} is {options[name]!r}: give {' or '.join(words)}")
    return text


def duration_ms(name: str, text: str) -> float:
    match = AGO.match(text.strip())
    if not match or text.strip().startswith("-"):
        raise SparkError(
            "MQ_OPTION",
            f"option {name} is {short(text)}: give a number and ms, s, m, h or d, such as 15m",
        )
    return float(match[1]) * UNIT_MS[match[2]]


def or_default(value: int | None, default: int) -> int:
    return default if value is None else value


def reject(options: Mapping[str, str], names: Iterable[str], why: str) -> None:
    for name in names:
        if name in options:
            raise SparkError("MQ_OPTION", f"option {name} has no meaning here: {why}")


def one_of(options: Mapping[str, str], names: tuple[str, ...], *, required: bool = False) -> None:
    given = [name for name in names if name in options]
    if len(given) > 1:
        raise SparkError(
            "MQ_OPTION", f"options {' and '.join(given)} contradict each other: give one of them"
        )
    if required and not given:
        raise SparkError("MQ_OPTION", f"say what to read: give one of the options {', '.join(names)}")
