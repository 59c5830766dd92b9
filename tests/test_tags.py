"""Tag expressions and the hash that stands for a tag."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

import mq
from mq.filter.tags import parse, tag_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("中文", 646394),
        ("标签", 857175),
        ("😀", 1772899),
        ("order-1001", 708180863),
        ("order-created", -392709271),
        ("TopicTest", -1902610879),
        ("TopicTest#key1", -1655984460),
        ("TopicA#k1", -1903240649),
        ("TopicA#0A000005000118B4AAC2000000000000", -335049552),
        ("polygenelubricants", -2147483648),
        ("T#5eeedzu", -2147483648),
    ],
)
def test_a_hash_is_javas(text: str, expected: int) -> None:
    assert tag_hash(text) == expected


@given(st.text())
def test_a_hash_is_javas_formula(text: str) -> None:
    units = text.encode("utf-16-be", "surrogatepass")
    whole = sum(
        int.from_bytes(units[at : at + 2], "big") * 31 ** ((len(units) - at) // 2 - 1)
        for at in range(0, len(units), 2)
    )
    assert tag_hash(text) % (1 << 32) == whole % (1 << 32)
    assert -(1 << 31) <= tag_hash(text) < 1 << 31


@pytest.mark.parametrize("expression", [None, "", "*", " * ", "*\n"])
def test_an_expression_for_everything_passes_every_tag(expression: str | None) -> None:
    assert parse(expression) is None


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("a", {"a"}),
        ("a||b", {"a", "b"}),
        (" a || b ", {"a", "b"}),
        ("a||||b||", {"a", "b"}),
        ("a || a", {"a"}),
        ("a|b", {"a|b"}),
        ("a b", {"a b"}),
        ("* || a", {"*", "a"}),
        ("\ta\n", {"a"}),
    ],
)
def test_an_expression_names_tags(expression: str, tags: set[str]) -> None:
    found = parse(expression)
    assert found is not None
    assert found.tags == tags
    assert found.hashes == {tag_hash(tag) for tag in tags}


@pytest.mark.parametrize("expression", [" ", "||", " || ", "||||"])
def test_separators_alone_are_an_error(expression: str) -> None:
    with pytest.raises(mq.FilterSyntaxError):
        parse(expression)


def test_an_expression_is_text() -> None:
    expression: Any = 5
    with pytest.raises(TypeError, match="str"):
        parse(expression)
