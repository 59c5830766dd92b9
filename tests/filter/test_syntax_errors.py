"""What is no expression is refused with the place marked, in bounded time, whatever it is."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

import mq
from mq.filter.sql import Matches, compiled
from mq.filter.sql.conditions import DEPTH_MAX
from mq.filter.sql.words import KEYWORDS, LENGTH_MAX


def refusal(expression: str) -> mq.FilterSyntaxError:
    with pytest.raises(mq.FilterSyntaxError) as caught:
        compiled(expression)
    return caught.value


@pytest.mark.parametrize(
    ("expression", "position", "problem"),
    [
        ("", 0, "the expression ends where a property or a value is expected"),
        ("a > ", 4, "the expression ends where a property or a value is expected"),
        ("a > > 5", 4, "'>' stands where a property or a value is expected"),
        ("a > 5 b", 6, "'b' stands where an operator or AND or OR or the end is expected"),
        ("(a > 5", 6, "the expression ends where ')' is expected"),
        ("a > 5)", 5, "')' stands where"),
        ("a IN 'x'", 5, "'x' stands where '(' is expected"),
        ("a IN ()", 6, "')' stands where a text in single quotes is expected"),
        ("a IN ('x' 'y')", 10, "'y' stands where ')' or ',' is expected"),
        ("a IN ('x', 5)", 11, "'5' stands where a text in single quotes is expected"),
        ("a IS 5", 5, "'5' stands where NOT or NULL is expected"),
        ("a CONTAINS b", 11, "'b' stands where a text in single quotes is expected"),
        ("a NOT 5", 6, "stands where BETWEEN or CONTAINS or ENDSWITH or IN or STARTSWITH is expected"),
        ("a BETWEEN 1, 2", 11, "',' stands where AND is expected"),
        ("a != 5", 2, "write <> for 'is not'"),
        ("a == 5", 3, "stands where a property or a value is expected"),
        ('a = "x"', 4, "a text stands in single quotes"),
        ("a = 'x", 4, "no closing quote"),
        ("a.b = 1", 1, "letters, digits, _ and $ only"),
        ("a /* > 5", 2, "this comment has no end"),
        ("a LIKE 'x%'", 2, "there is no LIKE"),
        ("a + 1 > 5", 2, "there is no arithmetic"),
        ("a - 1 > 5", 2, "there is no arithmetic"),
        ("a = '1' -- one", 8, "a comment that begins with -- ends with a line end, and here is none"),
        ("a * 2 = 4", 2, "'*' has no meaning here"),
        ("a mod 2 = 1", 2, "there is no arithmetic"),
        ("中 = 1", 0, "'中' has no meaning here"),
        ("a > 010", 4, "does not begin with 0"),
        ("a > 9223372036854775808", 4, "larger than 9223372036854775807"),
        ("a > 1e309", 4, "too large"),
        ("a > 1e-999", 4, "too small"),
        ("b = 1 AND a = NULL", 14, "IS NULL"),
        ("a > NULL", 4, "IS NULL"),
        ("a > 'b'", 4, "a text has no order"),
        ("a > TRUE", 4, "a condition has no order"),
        ("1 < a < 3", 0, "a condition has no order"),
        ("5 = TRUE", 4, "a number cannot be compared with TRUE or FALSE"),
        ("'x' = TRUE", 6, "a text cannot be compared with TRUE or FALSE"),
        ("(a = 1) = 1", 10, "a condition is compared with a number; conditions are joined by AND and OR"),
        ("NOT a = 1", 8, "NOT binds tighter than that: write NOT (...)"),
        ("NOT a > 1", 4, "NOT binds tighter than that: write NOT (...)"),
        ("NOT a IN ('x')", 4, "NOT binds tighter than that: write NOT (...)"),
        ("NOT a CONTAINS 'x'", 4, "NOT binds tighter than that: write NOT (...)"),
        ("NOT a BETWEEN 1 AND 5", 4, "NOT binds tighter than that: write NOT (...)"),
        ("'x' = 5", 0, "compared with a number, and is none"),
        ("a BETWEEN 5 AND 1", 10, "the lower bound comes first"),
        ("a NOT BETWEEN 5 AND -1", 14, "the lower bound comes first"),
        ("a BETWEEN 'a' AND 5", 10, "the bounds of BETWEEN are numbers"),
        ("'x' IN ('x')", 0, "IN asks for the text of a property"),
        ("5 CONTAINS 'x'", 0, "searches the text of a property"),
        ("a = -'x'", 5, "stands before a number"),
        ("- (a = 1)", 3, "stands before a number"),
        ("5", 0, "a number is no condition"),
        ("a = 1 OR 'x'", 9, "a text is no condition"),
        ("NOT -a", 4, "a property with a sign is no condition"),
    ],
)
def test_an_error_says_where_and_what(expression: str, position: int, problem: str) -> None:
    error = refusal(expression)
    assert error.position == position
    assert problem in str(error)


def test_an_error_shows_the_expression_with_a_mark() -> None:
    assert str(refusal("price > 100 AND region LIKE 'E%'")) == (
        "SQL92 expression, character 24: there is no LIKE: CONTAINS, STARTSWITH and ENDSWITH search a text\n"
        "  price > 100 AND region LIKE 'E%'\n"
        "                         ^"
    )


def test_of_several_lines_the_one_in_question_is_shown() -> None:
    error = refusal("a = 1 AND\r\nb ! 2 AND\nc = 3")
    assert str(error).splitlines()[1:] == ["  b ! 2 AND", "    ^"]
    assert error.position == 13


@given(st.integers(0, 300), st.integers(0, 300))
def test_of_a_long_line_the_surroundings_are_shown(before: int, after: int) -> None:
    error = refusal("\t" * before + "?" + " " * after)
    _, shown, mark = str(error).splitlines()
    assert shown[mark.index("^")] == "?"
    assert len(shown) < 110
    assert error.position == before


def test_an_error_can_be_pickled() -> None:
    error = refusal("a >")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.position) == (str(error), 3)


def attempt(expression: str) -> Matches | mq.FilterSyntaxError:
    """The function that it is compiled to, or why it is not."""
    try:
        return compiled(expression)
    except mq.FilterSyntaxError as error:
        return error


Nest = Callable[[str], str]

HOSTILE = {
    "open brackets": "(" * LENGTH_MAX,
    "brackets": "(" * (LENGTH_MAX // 2 - 3) + "a = 1" + ")" * (LENGTH_MAX // 2 - 3),
    "minus signs": "-" * LENGTH_MAX,
    "signed": "a > " + "-" * (LENGTH_MAX - 5) + "5",
    "plus signs": "a > " + "+" * (LENGTH_MAX - 5) + "5",
    "not": "NOT " * (LENGTH_MAX // 4 - 1) + "a",
    "quotes": "'" * (LENGTH_MAX - 1),
    "an open text": "a = '" + "x" * (LENGTH_MAX - 5),
    "an open comment": "/*" + "*" * (LENGTH_MAX - 2),
    "open comments": "/*" * (LENGTH_MAX // 2),
    "comments": "/**/" * (LENGTH_MAX // 4),
    "line comments": "--\n" * (LENGTH_MAX // 3),
    "line comments without an end": "\n" + "--" * (LENGTH_MAX // 2 - 1),
    "blanks": " " * LENGTH_MAX,
    "equal signs": "a" + " = a" * (LENGTH_MAX // 4 - 1),
    "is null": "a" + " IS NULL" * (LENGTH_MAX // 8 - 1),
    "and": "a = 1" + " AND a = 1" * (LENGTH_MAX // 10 - 1),
    "or": "a = 1" + " OR a > 1" * (LENGTH_MAX // 10 - 1),
    "and, or": "a = 1" + " AND a < 1 OR b = 1" * (LENGTH_MAX // 19 - 1),
    "names": " AND ".join(f"a{number} = {number}" for number in range(LENGTH_MAX // 20)),
    "texts": "a IN (" + ", ".join(["'x'"] * (LENGTH_MAX // 5 - 3)) + ")",
    "digits": "a > " + "9" * (LENGTH_MAX - 4),
    "fraction": "a > 0." + "9" * (LENGTH_MAX - 6),
    "exponent": "a > 1e" + "9" * (LENGTH_MAX - 6),
    "a name": "a" * LENGTH_MAX,
    "null bytes": "\0" * LENGTH_MAX,
}


@pytest.mark.timeout(100)  # Each takes a fraction of a second; what grew with the square would not end here.
@pytest.mark.parametrize("expression", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_accepted_or_refused_soon(expression: str) -> None:
    assert len(expression) <= LENGTH_MAX
    attempt(expression)


@pytest.mark.parametrize("length", [LENGTH_MAX + 1, 10 << 20])
def test_an_expression_has_a_longest(length: int) -> None:
    error = refusal("a = 1".ljust(length))
    assert error.position == LENGTH_MAX
    assert "at most 32,768 characters" in str(error)
    assert compiled("a = 1".ljust(LENGTH_MAX))(b"a\x011\x02")


NESTED: dict[str, Nest] = {
    "not": lambda inner: f"NOT ({inner})",
    "or, and": lambda inner: f"b = 'x' OR (c > 1 AND ({inner}))",
    "and, or": lambda inner: f"(({inner}) OR b > 1) AND c > 1",
    "not or": lambda inner: f"NOT (b > 1 OR ({inner}))",
    "is null": lambda inner: f"(b > 1 AND ({inner})) IS NULL",
    "equal": lambda inner: f"(b > 1) = ({inner})",
    "equal from the left": lambda inner: f"{inner} = (b > 1)",
}


def nested(nest: Nest) -> list[str]:
    """An expression at depth 1, and nested more and more until it is refused: the last one is."""
    expressions = ["a > 1"]
    while callable(attempt(expressions[-1])):
        assert len(expressions) <= DEPTH_MAX
        expressions.append(nest(expressions[-1]))
    return expressions


@pytest.mark.parametrize("nest", NESTED.values(), ids=NESTED.keys())
def test_conditions_nest_so_deep_and_no_deeper(nest: Nest) -> None:
    *accepted, refused = nested(nest)
    assert len(accepted) >= DEPTH_MAX // 3
    assert f"nested more than {DEPTH_MAX} deep" in str(attempt(refused))
    for expression in accepted:
        assert compiled(expression)(b"a\x012\x02b\x010\x02c\x012\x02") in {True, False}


@pytest.mark.parametrize("nest", NESTED.values(), ids=NESTED.keys())
def test_the_deepest_is_compiled_and_run_from_deep_within_a_program(nest: Nest) -> None:
    deepest = nested(nest)[-2]

    def deep(left: int) -> bool:
        return deep(left - 1) if left else compiled(deepest)(b"")

    assert deep(sys.getrecursionlimit() // 2) in {True, False}


PIECES = [
    *KEYWORDS,
    "a",
    "b",
    "'x'",
    "5",
    "2.5",
    "(",
    ")",
    ",",
    "=",
    "<>",
    "<",
    ">=",
    "-",
    "+",
    "/*",
    "*/",
    "--",
    "\n",
]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map(" ".join) | st.text(max_size=60))
@example("a BETWEEN b AND c IS NULL = TRUE")
def test_any_text_is_an_expression_or_a_syntax_error(expression: str) -> None:
    found = attempt(expression)
    if isinstance(found, mq.FilterSyntaxError):
        assert 0 <= found.position <= len(expression)
        assert "SQL92 expression, character" in str(found)
    else:
        assert found(b"a\x01x\x02") in {True, False}
        assert found(b"") in {True, False}


SOUND = "a > 5 AND (b IN ('x', 'y') OR NOT (c BETWEEN 1 AND 2.5)) AND d CONTAINS 'it''s' OR e IS NOT NULL"


def test_a_sound_expression_with_one_character_changed_never_crashes() -> None:
    chance = random.Random(5)
    for _ in range(2000):
        at = chance.randrange(len(SOUND))
        changed = SOUND[:at] + chance.choice("'()<>=,-+*/. a5\n\0é") + SOUND[at + chance.randrange(2) :]
        found = attempt(changed)
        if isinstance(found, mq.FilterSyntaxError):
            assert found.position <= len(changed)
        else:
            assert found(b"a\x016\x02") in {True, False}


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\x02",
        b"\x01\x02",
        b"a\x01",
        b"a\x01\x02",
        b"\x02a",
        b"a",
        b"\xff\xfe",
        b"b\x01a\x01",
        b"\0" * 100,
    ],
)
def test_hostile_properties_are_as_if_they_were_not_there(encoded: bytes) -> None:
    assert compiled("a IS NULL")(encoded)
    assert not compiled("a > 5 OR a CONTAINS 'x' OR a IN ('') OR a = ''")(encoded)


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    "value", [b"9" * 30_000, b"-" * 30_000, b"1" * 30_000 + b".5", b"0." + b"1" * 30_000]
)
def test_a_property_may_be_as_long_as_it_is(value: bytes) -> None:
    assert compiled("a > 5 OR a <= 5")(b"a\x01" + value + b"\x02") is (b"." in value)
