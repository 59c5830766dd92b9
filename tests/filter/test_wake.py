"""What senders go by, in C, against the conditions themselves: it may say "perhaps" too often, and never "no"
where the message is selected."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import mq
from mq.filter.sql import compiled, wake, wake_test
from mq.store.native import lib
from tests.filter.conditions import EXPRESSIONS, MESSAGES

SELECTED_OR_NOT = [
    # expression, properties, and whether a sender can tell that it is not selected
    ("color = 'red'", {"color": "blue"}, True),
    ("color = 'red'", {}, True),
    ("color = 'red'", {"color": "redder"}, True),
    ("color <> 'red'", {}, True),
    ("color <> 'red'", {"color": "red"}, False),
    ("color IN ('red', 'green')", {"color": "blue"}, True),
    ("color NOT IN ('red', 'green')", {"color": "red"}, False),
    ("price > 100", {"price": "100"}, True),
    ("price > 100", {"price": "99.99"}, True),
    ("price > 100", {"other": "1000"}, True),
    ("price >= 100.5", {"price": "-200"}, True),
    ("price BETWEEN 1 AND 5", {"price": "6"}, True),
    ("price NOT BETWEEN 1 AND 5", {"price": "3"}, True),
    ("price = 7", {"price": "+8"}, True),
    ("price > 100", {"price": "1e1"}, False),
    ("price < 100", {"price": "1234567890123456"}, False),
    ("price > 100 AND color = 'red'", {"price": "200", "color": "blue"}, True),
    ("price > 100 OR color = 'red'", {"price": "100", "color": "blue"}, True),
    ("NOT (price > 100 OR color = 'red')", {"price": "200"}, True),
    ("color CONTAINS 'e'", {"price": "1"}, True),
    ("color CONTAINS 'e'", {"color": "black"}, False),
    ("color IS NOT NULL", {"price": "1"}, True),
    ("TAGS = 'a' AND price IS NULL", {"TAGS": "b"}, True),
]


def encoded(properties: dict[str, str]) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


def holds(test: bytes | None, properties: bytes) -> bool:
    return test is None or bool(lib.mq_test_holds(test, len(test), properties, len(properties)))


@pytest.mark.parametrize(("expression", "properties", "is_told"), SELECTED_OR_NOT)
def test_what_a_sender_can_tell(expression: str, properties: dict[str, str], is_told: bool) -> None:
    text = encoded(properties)
    assert not compiled(expression)(text)
    assert holds(wake_test(expression), text) is not is_told


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, st.lists(MESSAGES, min_size=1, max_size=6))
def test_a_selected_message_is_never_refused(expression: str, messages: list[dict[str, str]]) -> None:
    try:
        matches, test = compiled(expression), wake_test(expression)
    except mq.FilterSyntaxError:
        return
    for message in messages:
        assert holds(test, encoded(message)) or not matches(encoded(message))


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(["<", "<=", ">", ">=", "=", "<>"]),
    st.integers(-(10**17), 10**17) | st.floats(-1e9, 1e9).map(lambda value: round(value, 6)),
    st.integers(-(10**17), 10**17).map(str) | st.decimals(-(10**9), 10**9, places=7).map(str),
)
def test_numbers_compare_as_in_python(order: str, value: Any, text: str) -> None:
    expression = f"a {order} {value:f}" if isinstance(value, float) else f"a {order} {value}"
    for written in {text, str(value)}:
        message = encoded({"a": written})
        assert holds(wake_test(expression), message) or not compiled(expression)(message)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=600), st.binary(max_size=100))
def test_bytes_that_are_no_test_are_survived(test: bytes, properties: bytes) -> None:
    holds(test, properties)
    for kind in range(8):
        holds(bytes([kind, 0, len(test) & 127]) + test, properties)


def test_the_last_property_of_a_name_counts() -> None:
    test = wake_test("a = '2'")
    assert holds(test, b"a\x011\x02a\x012\x02")
    assert holds(test, b"a\x011\x02a\x012")
    assert not holds(test, b"a\x012\x02a\x011\x02")
    assert not holds(test, b"ba\x012\x02a\x01\x02")


def test_a_condition_that_is_too_long_is_left_to_the_consumer() -> None:
    texts = ", ".join(f"'text number {number}'" for number in range(100))
    assert wake_test(f"a IN ({texts})") is None
    assert wake_test("a IS NULL") is None


def test_both_sides_go_by_the_same_numbers() -> None:
    assert wake.TEST_SIZE_MAX == lib.MQ_TEST_SIZE_MAX
    for name in ("MAY", "NEVER", "ALL", "ANY", "THERE", "TEXT", "NUMBER"):
        assert getattr(wake, name) == getattr(lib, f"MQ_TEST_{name}")
    for name in ("LESS", "EQUAL", "GREATER"):
        assert getattr(wake, name) == getattr(lib, f"MQ_ORDER_{name}")
