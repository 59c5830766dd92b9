"""Numbers as texts: what of a property's value compares as a number.

`5`, `+05`, `-5.25`, `.5`, `5.`, `1e3`, and Java's spellings of what is not finite: `NaN` (greater than all,
equal to itself), `Infinity`. Nothing else: no blanks, no `0x10`, no `1_000`, no `5L`.
"""

from __future__ import annotations

import re
from typing import Final

_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(rb"[+-]?[0-9]+")


class NotANumber(ValueError):
    """A text is compared as a number, and is none."""


class _NaN:
    """In Java's order of numbers the last one."""

    __slots__ = ()

    def __gt__(self, other: object) -> bool:
        return other is not self

    def __ge__(self, other: object) -> bool:
        return True

    def __lt__(self, other: object) -> bool:
        return False

    def __le__(self, other: object) -> bool:
        return other is self

    def __eq__(self, other: object) -> bool:
        return other is self

    __hash__ = object.__hash__


Numeric = int | float | _NaN

_NAMED: Final[dict[bytes, Numeric]] = {
    sign + name: value
    for name, value in ((b"NaN", _NaN()), (b"Infinity", float("inf")))
    for sign in (b"", b"+")
}
_NAMED[b"-NaN"] = _NAMED[b"NaN"]
_NAMED[b"-Infinity"] = -float("inf")


def number(text: bytes) -> Numeric:
    """The number that a text is, whole numbers exactly. Raises NotANumber for what is none."""
    if not _NUMBER.fullmatch(text):
        if text in _NAMED:
            return _NAMED[text]
        raise NotANumber(text)
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text)
