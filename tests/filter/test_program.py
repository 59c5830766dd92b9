"""The compiled function against a plain walk over the condition, on everything that the language has."""

from __future__ import annotations

import operator
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given, settings

import mq
from mq.filter.sql import compiled
from mq.filter.sql.conditions import (
    Cast,
    Condition,
    Equal,
    EqualsNumber,
    EqualsText,
    EqualsTruth,
    In,
    IsNull,
    Junction,
    Negated,
    Not,
    Number,
    Ordered,
    Property,
    Search,
    Text,
    Truth,
)
from mq.filter.sql.grammar import parse
from mq.filter.sql.program import source_of
from tests.filter.conditions import (
    EXPRESSIONS,
    MESSAGES,
)

Value = bool | str | float | None
COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class NotANumber(Exception):
    """The message is not selected, whatever is left to evaluate."""


def number(text: str) -> float:
    """The texts of this test are numbers as Python writes them, or begin with a letter."""
    if text[0].isalpha():
        raise NotANumber
    return float(text)


def evaluated(node: Any, message: dict[str, str]) -> Value:
    """The value of an operand or a condition, evaluated from the left as RocketMQ does."""
    match node:
        case Property():
            return message.get(node.name)
        case Negated():
            return None
        case Text() | Number() | Truth():
            return node.value
        case Cast():
            return None if message.get(node.operand.name) is None else False
        case Not():
            inner = evaluated(node.condition, message)
            return None if inner is None else not inner
        case IsNull():
            return evaluated(node.operand, message) is None
        case Junction():
            decides = node.kind == "OR"
            unknown = False
            for part in node.conditions:
                value = evaluated(part, message)
                if value is decides:
                    return decides
                unknown |= value is None
            return None if unknown else not decides
        case Equal():
            return equal(evaluated(node.left, message), evaluated(node.right, message))
    return leaf(node, message)


def leaf(node: Any, message: dict[str, str]) -> bool | None:
    text = message.get((node.operand if isinstance(node, In | Search) else node.left).name)
    match node:
        case Search():
            return text is not None and found(node, text) != node.negated
        case _ if text is None:
            return None
        case In():
            return (text in node.texts) is not node.negated
        case EqualsText():
            return bool(text == node.right)
        case EqualsTruth():
            return (text.lower() == "true") is node.right
        case EqualsNumber():
            return number(text) == node.right
        case Ordered():
            right = evaluated(node.right, message)
            if right is None:
                return None
            left = number(text)
            return bool(COMPARE[node.order](left, number(right) if isinstance(right, str) else right))
    raise AssertionError(node)


def found(search: Search, text: str) -> bool:
    if search.sought == "CONTAINS":
        return search.text in text
    return text.startswith(search.text) if search.sought == "STARTSWITH" else text.endswith(search.text)


def equal(left: Value, right: Value) -> bool | None:
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    if isinstance(left, bool) and isinstance(right, str):
        raise NotANumber
    if isinstance(left, str) and isinstance(right, bool):
        return (left.lower() == "true") is right
    return left == right


def selects(condition: Condition, message: dict[str, str]) -> bool:
    try:
        return evaluated(condition, message) is True
    except NotANumber:
        return False


@settings(max_examples=1000, deadline=None)
@given(EXPRESSIONS, st.lists(MESSAGES, min_size=1, max_size=6))
@example("(a = 'x' AND b > 1) OR c = 'x'", [{"b": "x", "c": "x"}])
@example("(NOT (a = 'x' OR b > 1)) OR c = 'x'", [{"b": "x", "c": "x"}])
@example("(a > 1 OR b > 1) AND (b > 1 OR a > 1)", [{"a": "1", "b": "2"}, {"b": "2"}])
@example("(a > b OR c = 'x') AND b > 1", [{"b": "2", "c": "x"}])
def test_the_function_does_what_a_walk_over_the_condition_does(
    expression: str, messages: list[dict[str, str]]
) -> None:
    try:
        condition = parse(expression)
    except mq.FilterSyntaxError:
        return  # Some compare a number with a condition, or nest too deep.
    matches = compiled(expression)
    for message in messages:
        encoded = "".join(f"{name}\x01{value}\x02" for name, value in message.items()).encode()
        assert matches(encoded) is selects(condition, message)


def test_what_the_user_wrote_never_becomes_code() -> None:
    expression = "os = '''); import os; (''' AND __import__ = 'x' AND $ = '\"' AND exit IN ('quit()', '\\')"
    namespace: dict[str, Any] = {}
    source = source_of(parse(expression), namespace)
    assert not any(word in source for word in ("os", "import", "exit", "quit", "$", "\\'", "\"'"))
    message = {"os": "'); import os; ('", "__import__": "x", "$": '"', "exit": "\\"}
    encoded = "".join(f"{name}\x01{value}\x02" for name, value in message.items()).encode()
    assert compiled(expression)(encoded)


def test_of_equal_names_the_last_one_counts() -> None:
    assert compiled("a = '2'")(b"a\x011\x02b\x013\x02a\x012\x02")
    assert not compiled("a = '1'")(b"a\x011\x02a\x012\x02")


def test_a_name_is_no_part_of_another() -> None:
    encoded = b"xa\x011\x02ab\x012\x02c\x01a\x02"
    assert compiled("a IS NULL AND b IS NULL AND xa = 1 AND ab = 2")(encoded)


def test_the_last_property_may_lack_its_separator() -> None:
    assert compiled("b = 'xyz'")(b"a\x011\x02b\x01xyz")
