"""Where a group begins in a queue, in words: the same ones wherever a user may say it.

"first", or "earliest", is the oldest message that is kept; "last", or "latest", is what comes from now on.
"""

from __future__ import annotations

from operator import index
from typing import Any, Final, Literal

from mq.api.queues import QueueEnds
from mq.api.results import MessageQueue

__all__ = ["BEGINNINGS", "Beginning", "first_offset", "first_or_last", "time_in_ms"]

Beginning = Literal["first", "last", "earliest", "latest"]
BEGINNINGS: Final[dict[str, Literal["first", "last"]]] = {
    "first": "first",
    "earliest": "first",
    "last": "last",
    "latest": "last",
}


def first_or_last(option: str, word: Any) -> Literal["first", "last"]:
    """The one word of two that say the same. Raises ValueError for another."""
    found = BEGINNINGS.get(word) if isinstance(word, str) else None
    if found is None:
        raise ValueError(
            f"{option} is {word!r}: give 'first' (or 'earliest'), 'last' (or 'latest'), or a time in ms"
        )
    return found


def time_in_ms(option: str, value: Any) -> int:
    """A time that a user gave. Raises TypeError for what is no whole number."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(
            f"{option} is a time in ms, an int, and not the {type(value).__name__} {value!r:.100}:"
            " int(when.timestamp() * 1000) makes one of a datetime, int(time.time() * 1000) is now"
        )
    return index(value)


def first_offset(ends: QueueEnds, queue: MessageQueue, consume_from: str | int) -> int:
    """Where a queue begins for a consumer that has no offset of it: "first", "last", or a time in ms."""
    if isinstance(consume_from, int):
        return ends.offset_at(queue, consume_from)
    return ends.min_offset(queue) if consume_from == "first" else ends.max_offset(queue)
