"""Tag expressions: `*` (or nothing) for every message, else tags separated by `||`.

Matching has two stages, as in RocketMQ. The broker compares hashes, which stand in the queue's entries,
so that a message that is not wanted is never read from the log. Different tags may share a hash, and a
message without a tag has the hash 0; therefore the reader compares the tags themselves once more.
There is no wildcard, no negation and no partial match: a tag is matched as a whole.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from mq.errors import FilterSyntaxError
from mq.properties import BLANKS


class TagFilter(NamedTuple):
    """The tags that are wanted, and their hashes."""

    tags: frozenset[str]
    hashes: frozenset[int]


@lru_cache(maxsize=1024)
def parse(expression: str | None) -> TagFilter | None:
    """The filter that an expression stands for; None lets every message pass.

    Raises FilterSyntaxError where separators have no tag between them at all.
    """
    if expression is not None and not isinstance(expression, str):
        raise TypeError(f"a tag expression is a str, not {type(expression).__name__}")
    if not expression or expression.strip(BLANKS) == "*":
        return None
    tags = frozenset(tag for piece in expression.split("||") if (tag := piece.strip(BLANKS)))
    if not tags:
        raise FilterSyntaxError(f"tag expression {expression!r} names no tag: '*' means all", position=0)
    return TagFilter(tags, frozenset(map(tag_hash, tags)))


def tag_hash(tag: str) -> int:
    """Java's String.hashCode: 31 * h + unit over UTF-16 code units, as a signed 32-bit number."""
    total = 0
    units = tag.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        total = (31 * total + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return total - (1 << 32) if total >= 1 << 31 else total
