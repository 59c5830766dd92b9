"""Words of an SQL92 expression.

Blanks, `-- to the end of the line` and `/* comments */` stand between words. A line comment has to end in
a line end: without one, `a > --5` is a number with two signs. Keywords may be written in any case, names
of properties are as they are. Every character is looked at a bounded number of times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isinf
from typing import NamedTuple

from mq.errors import FilterSyntaxError

LENGTH_MAX = 1 << 15  # characters; the properties of a message have no more bytes than that
NUMBER_MAX = (1 << 63) - 1  # of a number without point and exponent

KEYWORDS = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
_SYMBOLS = {"=": "EQUAL", "<>": "UNEQUAL", "(": "OPEN", ")": "CLOSE", ",": "COMMA", "+": "PLUS", "-": "MINUS"}
_ORDERS = frozenset(("<", "<=", ">", ">="))

_WORD = re.compile(
    r"""(?P<blank>[ \t\n\r\f]+)
    |   (?P<block>/\*(?:[^*]|\*(?!/))*\*/)
    |   (?P<NAME>[A-Za-z_$][A-Za-z0-9_$]*)
    |   (?P<NUMBER>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ | [0-9]+[lL]?)
    |   (?P<TEXT>'(?:[^']|'')*')
    |   (?P<symbol><>|<=|>=|[=<>(),+-])""",
    re.VERBOSE,
)
_LINE_COMMENT = re.compile(r"--[^\n\r]*[\n\r]")

_HINTS = (
    ("!=", "write <> for 'is not'"),
    ('"', "a text stands in single quotes"),
    ("'", "this text has no closing quote; a quote inside a text is written twice"),
    ("/*", "this comment has no end"),
    (".", "the name of a property has letters, digits, _ and $ only"),
)


class Word(NamedTuple):
    """A keyword (its kind is itself), NAME, NUMBER, TEXT, ORDER or symbol; value is what it stands for."""

    kind: str
    value: str | int | float
    at: int
    written: str


def words(expression: str) -> Iterator[Word]:
    """The words of an expression. Raises FilterSyntaxError at what is none."""
    # Behind the last line end no line comment can end. Looking for one there all the same would make
    # a long row of minus signs cost the square of its length.
    line_ends = max(expression.rfind("\n"), expression.rfind("\r"))
    at, end = 0, len(expression)
    while at < end:
        found = _LINE_COMMENT.match(expression, at) if at < line_ends else None
        found = found or _WORD.match(expression, at)
        if found is None:
            raise _not_a_word(expression, at)
        kind, written = found.lastgroup, found[0]
        if kind == "NAME":
            keyword = written.upper()
            if keyword in KEYWORDS:
                yield Word(keyword, keyword, at, written)
            else:
                yield Word("NAME", written, at, written)
        elif kind == "NUMBER":
            yield Word("NUMBER", _number(expression, at, written), at, written)
        elif kind == "TEXT":
            yield Word("TEXT", written[1:-1].replace("''", "'"), at, written)
        elif kind == "symbol":
            yield Word("ORDER" if written in _ORDERS else _SYMBOLS[written], written, at, written)
        at = found.end()


def _number(expression: str, at: int, written: str) -> int | float:
    digits = written.rstrip("lL")
    if not digits.isdecimal():
        value = float(written)
        if isinf(value):
            raise syntax_error(expression, at, "the number is too large for 64-bit floating point")
        if not value and re.search("[1-9]", re.split("[eE]", written)[0]):
            raise syntax_error(expression, at, "the number is too small for 64-bit floating point")
        return value
    if digits[0] == "0" and len(digits) > 1:
        raise syntax_error(expression, at, "a number does not begin with 0: octal has no place here")
    if len(digits) > 19 or int(digits) > NUMBER_MAX:
        raise syntax_error(expression, at, f"the number is larger than {NUMBER_MAX}")
    return int(digits)


def _not_a_word(expression: str, at: int) -> FilterSyntaxError:
    for begin, hint in _HINTS:
        if expression.startswith(begin, at):
            return syntax_error(expression, at, hint)
    return syntax_error(expression, at, f"{expression[at]!r} has no meaning here")


def syntax_error(expression: str, at: int, problem: str) -> FilterSyntaxError:
    """The error that shows the expression with a mark under the place."""
    begin = max(expression.rfind("\n", 0, at), expression.rfind("\r", 0, at)) + 1
    end = min((expression + "\n").find("\n", at), (expression + "\r").find("\r", at))
    first, last = max(begin, at - _SHOWN_BEFORE), min(end, at + _SHOWN_AFTER)
    left, right = "... " * (first > begin), " ..." * (last < end)
    # Each character takes one column, so that the mark stands below the right one.
    shown = "".join(char if char.isprintable() else " " for char in expression[first:last])
    mark = " " * (len(left) + at - first) + "^"
    return FilterSyntaxError(
        f"SQL92 expression, character {at + 1}: {problem}\n  {left}{shown}{right}\n  {mark}", position=at
    )


_SHOWN_BEFORE, _SHOWN_AFTER = 50, 40
