"""The table of expressions that was measured on RocketMQ's own classes, and where mq differs on purpose.

A condition has one of four outcomes. They are told apart from outside: what is true is selected; of what is
false, the negation is; of what is unknown, IS NULL is; where a text is no number, none of the three.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import mq
from mq.filter.sql import compiled

TRUE, FALSE, UNKNOWN, ERROR, REFUSED = "true", "false", "unknown", "evaluation error", "syntax error"
NONE: dict[str, str] = {}


def outcome(expression: str, properties: dict[str, str]) -> str:
    """What becomes of an expression for a message with these properties."""
    encoded = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    try:
        selected = compiled(expression)
    except mq.FilterSyntaxError:
        return REFUSED
    tests = {
        TRUE: selected,
        FALSE: compiled(f"NOT ({expression})"),
        UNKNOWN: compiled(f"({expression}) IS NULL"),
    }
    found = [name for name, test in tests.items() if test(encoded)]
    assert len(found) <= 1
    return found[0] if found else ERROR


class Row(NamedTuple):
    """An expression, the properties, and the outcome in RocketMQ."""

    expression: str
    properties: dict[str, str]
    expected: str


def rows(expression: str, *cases: tuple[dict[str, str], str]) -> list[Row]:
    return [Row(expression, properties, expected) for properties, expected in cases]


def a(value: str, **others: str) -> dict[str, str]:
    return {"a": value, **others}


AGREED: list[Row] = [
    *rows("a > 5", (a("10"), TRUE), (a("5"), FALSE), (NONE, UNKNOWN), (a("x"), ERROR)),
    *rows("a > 5", (a(" 10"), ERROR), (a("10L"), ERROR), (a("+6"), TRUE), (a("07"), TRUE)),
    *rows("a > 5.0", (a("5.5"), TRUE), (a("1e3"), TRUE), (a("NaN"), TRUE)),
    *rows("a > 2147483648", (a("5000000000"), TRUE)),
    *rows("a = 5", (a("05"), TRUE), (a("6"), FALSE), (NONE, UNKNOWN), (a("x"), ERROR)),
    *rows("a = 'x'", (a("x"), TRUE), (a("y"), FALSE), (NONE, UNKNOWN)),
    *rows("a = 'X'", (a("x"), FALSE)),
    *rows("a='it''s'", (a("it's"), TRUE), (a("it''s"), FALSE)),
    *rows("a <> 'x'", (NONE, UNKNOWN), (a("y"), TRUE), (a("x"), FALSE)),
    *rows("a <> 'x' AND a IS NOT NULL", (NONE, FALSE), (a("y"), TRUE)),
    *rows("a = b", (a("1", b="1"), TRUE), (a("1", b="01"), FALSE), (NONE, TRUE), (a("1"), FALSE)),
    *rows("a = b", ({"b": "1"}, UNKNOWN)),
    *rows("a <> b", (a("1", b="1"), FALSE), (a("1", b="01"), TRUE), (NONE, FALSE), (a("1"), TRUE)),
    *rows("a > b", (a("2", b="1"), TRUE), (a("x", b="1"), ERROR), (a("2"), UNKNOWN), (NONE, UNKNOWN)),
    *rows("a > b", (a("1.5", b="1"), TRUE), (a("1", b="x"), ERROR), ({"b": "x"}, UNKNOWN)),
    *rows("a IS NULL", (NONE, TRUE), (a("x"), FALSE)),
    *rows("a IS NOT NULL", (NONE, FALSE), (a("x"), TRUE)),
    *rows("NOT (a IS NULL)", (NONE, FALSE), (a("x"), TRUE)),
    *rows("a = NULL", (NONE, REFUSED)),
    *rows("a > NULL", (NONE, REFUSED)),
    *rows("a > 'b'", (NONE, REFUSED)),
    *rows("a > TRUE", (NONE, REFUSED)),
    *rows("TRUE=1", (NONE, REFUSED)),
    *rows("a = TRUE", (a("TRUE"), TRUE), (a("true"), TRUE), (a("yes"), FALSE), (a("1"), FALSE)),
    *rows("a = TRUE", (NONE, UNKNOWN)),
    *rows("a = FALSE", (a("yes"), TRUE), (a("False"), TRUE), (a("true"), FALSE), (NONE, UNKNOWN)),
    *rows("a", (a("true"), FALSE), (NONE, UNKNOWN)),
    *rows("NOT a", (a("true"), TRUE), (NONE, UNKNOWN)),
    *rows("TRUE", (NONE, TRUE)),
    *rows("FALSE", (NONE, FALSE)),
    *rows("NULL", (NONE, UNKNOWN)),
    *rows("NOT NULL", (NONE, UNKNOWN)),
    *rows("a BETWEEN 1 AND 5", (a("1"), TRUE), (a("5"), TRUE), (a("6"), FALSE), (NONE, UNKNOWN)),
    *rows("a BETWEEN 1 AND 5", (a("0"), FALSE), (a("x"), ERROR)),
    *rows("a BETWEEN 5 AND 1", (NONE, REFUSED)),
    *rows("a BETWEEN NULL AND 5", (NONE, REFUSED)),
    *rows("a BETWEEN 'a' AND 'b'", (NONE, REFUSED)),
    *rows("a NOT BETWEEN 1 AND 5", (a("6"), TRUE), (a("0"), TRUE), (a("3"), FALSE), (NONE, UNKNOWN)),
    *rows("a BETWEEN b AND 5", (a("3", b="1"), TRUE), (a("3", b="4"), FALSE), (a("3"), UNKNOWN)),
    *rows("a BETWEEN b AND 5", (a("6"), FALSE)),
    *rows("a between 1 and 5 and b=1", (a("2", b="1"), TRUE), (a("2", b="2"), FALSE)),
    *rows("a IN ('x','y')", (a("x"), TRUE), (a("z"), FALSE), (NONE, UNKNOWN)),
    *rows("a IN ('1', '1')", (a("1"), TRUE), (a("01"), FALSE)),
    *rows("a IN ('')", (NONE, UNKNOWN), (a("x"), FALSE)),
    *rows("a NOT IN ('x')", (a("x"), FALSE), (a("z"), TRUE), (NONE, UNKNOWN)),
    *rows("a IN (1,2)", (NONE, REFUSED)),
    *rows("a IN ()", (NONE, REFUSED)),
    *rows("'x' IN ('x')", (NONE, REFUSED)),
    *rows("a CONTAINS 'b'", (a("abc"), TRUE), (a("axc"), FALSE), (a("ABC"), FALSE), (NONE, FALSE)),
    *rows("a CONTAINS ''", (a("abc"), FALSE), (NONE, FALSE)),
    *rows("a NOT CONTAINS ''", (a("abc"), FALSE), (NONE, FALSE)),
    *rows("a NOT CONTAINS 'b'", (a("axc"), TRUE), (a("abc"), FALSE), (NONE, FALSE)),
    *rows("a STARTSWITH 'ab'", (a("abc"), TRUE), (a("bc"), FALSE), (NONE, FALSE)),
    *rows("a NOT STARTSWITH 'ab'", (a("abc"), FALSE), (a("bc"), TRUE), (NONE, FALSE)),
    *rows("a ENDSWITH 'bc'", (a("abc"), TRUE), (a("ab"), FALSE), (NONE, FALSE)),
    *rows("a NOT ENDSWITH 'bc'", (a("abc"), FALSE), (a("ab"), TRUE), (NONE, FALSE)),
    *rows("a STARTSWITH ''", (a("abc"), FALSE)),
    *rows("a NOT ENDSWITH ''", (a("abc"), FALSE)),
    *rows("a CONTAINS b", (NONE, REFUSED)),
    *rows("a CONTAINS 5", (NONE, REFUSED)),
    *rows("a='x' OR b='y'", (a("z"), UNKNOWN), (a("x"), TRUE), (a("z", b="z"), FALSE)),
    *rows("a='x' AND b='y'", (a("z"), FALSE), (a("x"), UNKNOWN), (a("x", b="y"), TRUE)),
    *rows("a>1 OR b>1 AND c>1", (a("5"), TRUE)),
    *rows("(a>1 OR b>1) AND c>1", (a("5"), UNKNOWN)),
    *rows("NOT a='x'", (a("y"), ERROR), (a("x"), ERROR), (NONE, UNKNOWN)),
    *rows("a > -5", (a("1"), TRUE), (a("-6"), FALSE)),
    *rows("a = - -5", (a("5"), TRUE)),
    *rows("a > --5", (a("6"), TRUE)),
    *rows("-a > 5", (a("-6"), UNKNOWN)),
    *rows("+a > 5", (a("6"), TRUE)),
    *rows("a < 9223372036854775807", (a("1"), TRUE)),
    *rows("a < 9223372036854775808", (a("1"), REFUSED)),
    *rows("a > -9223372036854775808", (a("1"), REFUSED)),
    *rows("a > 1e309", (a("1"), REFUSED)),
    *rows("a > 1e-400", (a("1"), REFUSED)),
    *rows("a > .5", (a("1"), TRUE)),
    *rows("a > 5.", (a("6"), TRUE)),
    *rows("a > 1E2", (a("101"), TRUE)),
    *rows("a > 5.5e-3", (a("0.006"), TRUE)),
    *rows("a > 10l", (a("11"), TRUE)),
    *rows("a > 10L", (a("11"), TRUE)),
    *rows("(a=1", (a("1"), REFUSED)),
    *rows("a=1 AND", (a("1"), REFUSED)),
    *rows("", (a("1"), REFUSED)),
    *rows(" ", (a("1"), REFUSED)),
    *rows("a != 5", (NONE, REFUSED)),
    *rows("a == 5", (NONE, REFUSED)),
    *rows("a * 2 = 4", (NONE, REFUSED)),
    *rows('a = "x"', (NONE, REFUSED)),
    *rows("a.b = 1", (NONE, REFUSED)),
    *rows("中 = 1", (NONE, REFUSED)),
    *rows("a = '中'", (a("中"), TRUE), (a("文"), FALSE)),
    *rows("A = 1", (a("1"), UNKNOWN)),
    *rows("$a_1 = 1", ({"$a_1": "1"}, TRUE)),
    *rows("(a>5) = (b>5)", (a("6", b="6"), TRUE), (a("6", b="5"), FALSE), (NONE, TRUE)),
    *rows("(a>5) = (b>5)", (a("6"), FALSE), ({"b": "6"}, UNKNOWN)),
    *rows("a>5 = b>5", (a("6", b="6"), TRUE)),
    *rows("1 < a < 3", (NONE, REFUSED)),
    *rows("(a = 1) IS NULL", (NONE, TRUE), (a("1"), FALSE), (a("x"), ERROR)),
    *rows("(a = 1) IS NOT NULL", (NONE, FALSE), (a("1"), TRUE)),
    *rows("5 = 5.0", (NONE, TRUE)),
    *rows("'a' = 'a'", (NONE, TRUE)),
    *rows("'a' <> 'a'", (NONE, FALSE)),
    *rows("5 > 3", (NONE, TRUE)),
    *rows("5 IS NULL", (NONE, FALSE)),
    *rows("5", (NONE, REFUSED)),
    *rows("'x'", (NONE, REFUSED)),
    *rows("NOT 5", (NONE, REFUSED)),
    *rows("-a", (NONE, REFUSED)),
    *rows("a>5 /* c */ AND b='y'", (a("6", b="y"), TRUE)),
    *rows("a>5 /* * ** c **/ AND b='y'", (a("6", b="y"), TRUE)),
    *rows("a>5 -- c\n AND b='y'", (a("6", b="y"), TRUE), (a("6", b="z"), FALSE)),
    *rows("a\t>\r\n5\f", (a("6"), TRUE)),
    *rows("not a Is nUlL anD a In ('x')", (a("x"), FALSE)),
    # What is no number makes the whole not match, unless it is decided before that is looked at.
    *rows("a > 5 OR b = 'y'", (a("x", b="y"), ERROR)),
    *rows("b = 'y' OR a > 5", (a("x", b="y"), TRUE), (a("x", b="z"), ERROR), (a("x"), ERROR)),
    *rows("b = 'y' AND a > 5", (a("x", b="y"), ERROR), (a("x", b="z"), FALSE), (a("x"), ERROR)),
    *rows("(b = 'y' AND a > 5) OR c = 'z'", (a("x", c="z"), ERROR), (a("x", b="z", c="z"), TRUE)),
    *rows("NOT (b = 'y' OR a > 5) OR c = 'z'", (a("x", c="z"), ERROR), (a("x", b="y", c="z"), TRUE)),
]


class Difference(NamedTuple):
    """What mq does instead, and the row's name in the table of differences of docs/filters.md."""

    row: Row
    ours: str
    why: str


def differences(why: str, *cases: tuple[str, dict[str, str], str, str]) -> list[Difference]:
    return [Difference(Row(text, given, theirs), ours, why) for text, given, theirs, ours in cases]


DIFFERENT: list[Difference] = [
    *differences(
        "a numeric text compares as a number",
        ("a > 5", a("5.5"), ERROR, TRUE),
        ("a > 5", a("1e3"), ERROR, TRUE),
        ("a > 5", a("NaN"), ERROR, TRUE),
        ("a > 5L", a("5000000000"), ERROR, TRUE),
        ("a > 2147483647", a("5000000000"), ERROR, TRUE),
        ("a = 5", a("5.0"), ERROR, TRUE),
        ("a BETWEEN 1.5 AND 2", a("1.7"), ERROR, TRUE),
        ("a BETWEEN 1 AND 2.5", a("2.2"), ERROR, TRUE),
    ),
    *differences("a property is never empty", ("a > 5", a(""), ERROR, UNKNOWN)),
    *differences(
        "numbers are compared by their exact values",
        ("a = 9007199254740992.0", a("9007199254740993"), TRUE, FALSE),
        ("a < b", a("-0.0", b="0.0"), TRUE, FALSE),
    ),
    *differences(
        "blanks and Java's suffixes are no part of a number",
        ("a > 5.0", a(" 10"), TRUE, ERROR),
        ("a > 5.0", a("10d"), TRUE, ERROR),
        ("a > b", a("0x1p3", b="1"), TRUE, ERROR),
    ),
    *differences(
        "a literal may stand first",
        ("5 = a", NONE, FALSE, UNKNOWN),
        ("5 <> a", NONE, TRUE, UNKNOWN),
        ("'x' = a", NONE, FALSE, UNKNOWN),
        ("TRUE = a", a("true"), ERROR, TRUE),
    ),
    *differences(
        "what cannot be compared is refused",
        ("NOT a = 5", a("5"), FALSE, REFUSED),
        ("NOT a CONTAINS 'x'", a("y"), FALSE, REFUSED),
        ("(a = 1) = 1", a("1"), FALSE, REFUSED),
        ("5 = TRUE", NONE, FALSE, REFUSED),
        ("'x' = TRUE", NONE, FALSE, REFUSED),
        ("'x' = 5", NONE, ERROR, REFUSED),
        ("5 CONTAINS 'x'", NONE, FALSE, REFUSED),
        ("a > -'x'", a("1"), UNKNOWN, REFUSED),
    ),
    *differences(
        "the lower bound comes first",
        ("a NOT BETWEEN 5 AND 1", a("3"), TRUE, REFUSED),
        ("a BETWEEN 5 AND -1", a("3"), FALSE, REFUSED),
    ),
    *differences(
        "0.0 is a number",
        ("a > 0.0", a("1"), REFUSED, TRUE),
        ("a > -0.0", a("1"), REFUSED, TRUE),
        ("a = 0.0", a("-0"), REFUSED, TRUE),
        ("a < 0e5", a("1"), REFUSED, FALSE),
    ),
    *differences(
        "text left over is an error",
        ("a > 00", a("1"), TRUE, REFUSED),
        ("a > 010", a("17"), TRUE, REFUSED),
        ("a > 0x10", a("17"), TRUE, REFUSED),
        ("a=1 garbage", a("1"), TRUE, REFUSED),
        ("a=1)", a("1"), TRUE, REFUSED),
        ("a=1 b=2", a("1"), TRUE, REFUSED),
        ("a LIKE 'x%'", a("x"), FALSE, REFUSED),
        ("a + 1 > 5", a("9"), FALSE, REFUSED),
        ("a-b=1", a("1"), FALSE, REFUSED),
    ),
]


@pytest.mark.parametrize("row", AGREED, ids=lambda row: f"{row.expression} {row.properties}")
def test_an_expression_does_what_rocketmq_does(row: Row) -> None:
    assert outcome(row.expression, row.properties) == row.expected


@pytest.mark.parametrize("case", DIFFERENT, ids=lambda case: f"{case.row.expression} {case.row.properties}")
def test_an_expression_differs_on_purpose(case: Difference) -> None:
    assert case.ours != case.row.expected
    assert outcome(case.row.expression, case.row.properties) == case.ours


DOCUMENT = Path(__file__).parents[2] / "docs/filters.md"
DOCUMENTED = re.compile(
    r"^\| (?P<why>[^|]+?) \| `(?P<text>[^|]+)`, (?P<given>[^|]+) \| (.+) \| (.+) \|$", re.MULTILINE
)


def documented() -> list[Difference]:
    """The rows of the table of differences."""
    found = []
    for why, text, given, theirs, ours in DOCUMENTED.findall(DOCUMENT.read_text()):
        pairs = re.findall(r"`(\w+)=([^`]*)`", given)
        found.append(Difference(Row(text, dict(pairs), theirs), ours, why))
    return found


def test_the_table_of_differences_says_what_is_so() -> None:
    assert {row.why for row in documented()} == {case.why for case in DIFFERENT}
    assert [row for row in documented() if row not in DIFFERENT] == []
