"""Which messages a reader wants: by tags, or by an SQL92 expression over their properties.

A selection works on both sides of a pull. `hashes` goes with it: the broker passes over queue entries of
other tags without reading the log. `keep` takes what came, and leaves out what shares no more than a hash,
or what SQL does not select.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mq.filter.tags import parse
from mq.properties import value_of

if TYPE_CHECKING:
    from mq.message import MessageExt

Keep = Callable[["list[MessageExt]"], "list[MessageExt]"]


class Selection:
    """The messages that an expression selects: see of. Equal expressions share one."""

    __slots__ = ("hashes", "keep", "wakes")

    def __init__(self, hashes: frozenset[int] | None, keep: Keep, wakes: bytes | None = None) -> None:
        self.hashes: Final = hashes
        """The tag hashes to pull by; None for all."""
        self.wakes: Final = hashes if wakes is None else wakes
        """What may wake a reader that waits: one of the hashes, what passes the test of an SQL92 expression
        (see mq/filter/sql/wake.py), or anything."""
        self.keep: Final = keep
        """Those of the messages that are selected, in their order; the list itself where all may pass."""

    @staticmethod
    def of(expression: str | None = "*", sql: str | None = None) -> Selection:
        """The selection by a tag expression ("paid || refunded", "*"), or by an SQL92 expression.

        Raises FilterSyntaxError where it cannot be parsed, ValueError where both are given.
        """
        if sql is None:
            return _of_tags(expression)
        if not isinstance(sql, str):
            raise TypeError(f"an SQL92 expression is a str, not {type(sql).__name__}")
        if expression not in {None, "", "*"}:
            raise ValueError(
                f"tags ({expression!r}) or sql ({sql!r}), not both: SQL can ask for TAGS as well"
            )
        return _of_sql(sql)


@lru_cache(maxsize=1024)
def _of_tags(expression: str | None) -> Selection:
    wanted = parse(expression)
    if wanted is None:
        return Selection(None, _all)
    tags = wanted.tags
    # Where the tag is the first property, as mq and RocketMQ's own clients often have it, it is compared in
    # place; only if no other tag follows, since the last one counts.
    first = tuple(f"TAGS\x01{tag}\x02".encode("utf-8", "surrogatepass") for tag in tags)

    def keep(messages: list[MessageExt]) -> list[MessageExt]:
        return [
            message
            for message in messages
            if ((encoded := message.encoded).startswith(first) and encoded.find(b"\x02TAGS\x01") < 0)
            or value_of(encoded, b"TAGS\x01") in tags
        ]

    return Selection(wanted.hashes, keep)


@lru_cache(maxsize=1024)
def _of_sql(expression: str) -> Selection:
    # The parser is imported when it is first needed: it would double the time that `import mq` takes.
    from mq.filter.sql import compiled, wake_test

    matches = compiled(expression)
    return Selection(
        None,
        lambda messages: [message for message in messages if matches(message.encoded)],
        wake_test(expression),
    )


def _all(messages: list[MessageExt]) -> list[MessageExt]:
    return messages
