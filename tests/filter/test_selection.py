"""A selection by tags or SQL: what to pull by, and what to keep of it."""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import Any

import pytest

import mq
from mq.filter.selection import Selection
from mq.filter.tags import tag_hash
from mq.message import MessageExt


def stored(encoded: bytes, topic: bytes = b"orders", body: bytes = b"body") -> MessageExt:
    """A message as it comes out of a store, with this property string."""
    head = bytes(84) + struct.pack(">i", len(body)) + body + bytes([len(topic)]) + topic
    return MessageExt(head + struct.pack(">h", len(encoded)) + encoded, "broker-a")


def tagged(*tags: str | None) -> list[MessageExt]:
    return [stored(b"" if tag is None else f"TAGS\x01{tag}\x02".encode()) for tag in tags]


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_the_star_keeps_the_very_list(expression: str | None) -> None:
    selection = Selection.of(expression)
    messages = tagged("a", None)
    assert selection.hashes is None
    assert selection.keep(messages) is messages


def test_tags_are_pulled_by_their_hashes() -> None:
    assert Selection.of("a || b").hashes == frozenset(map(tag_hash, "ab"))


def test_what_shares_no_more_than_a_hash_is_left_out() -> None:
    assert tag_hash("Aa") == tag_hash("BB")
    messages = tagged("Aa", "BB", None, "Aa")
    assert Selection.of("Aa").keep(messages) == [messages[0], messages[3]]


def test_of_two_tags_of_a_message_the_last_one_counts() -> None:
    messages = [
        stored(b"TAGS\x01a\x02TAGS\x01b\x02"),
        stored(b"x\x01y\x02TAGS\x01a\x02"),
        stored(b"XTAGS\x01a\x02"),
    ]
    assert Selection.of("a").keep(messages) == messages[1:2]
    assert Selection.of("b || c").keep(messages) == messages[:1]


def test_equal_expressions_share_one_selection() -> None:
    assert Selection.of("x || y") is Selection.of("x || y")
    assert Selection.of(sql="x = 1") is Selection.of("*", "x = 1")


def test_sql_is_no_matter_of_hashes() -> None:
    messages = [stored(b"price\x01100\x02"), stored(b"price\x01101\x02"), stored(b"")]
    selection = Selection.of(sql="price > 100")
    assert selection.hashes is None
    assert selection.keep(messages) == messages[1:2]


def test_tags_and_sql_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="not both"):
        Selection.of("paid", "price > 100")


def test_malformed_sql_is_refused() -> None:
    with pytest.raises(mq.FilterSyntaxError, match="character 8") as caught:
        Selection.of(sql="price >")
    assert caught.value.position == 7


def test_the_parser_is_imported_when_it_is_needed() -> None:
    program = (
        "import sys, mq; mq.open, mq.PushConsumer; assert 'lark' not in sys.modules;"
        "mq.filter.selection.Selection.of(sql='a = 1'); assert 'lark' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("expression", [" ", "||"])
def test_an_expression_that_names_no_tag_is_a_syntax_error(expression: str) -> None:
    with pytest.raises(mq.FilterSyntaxError):
        Selection.of(expression)


def test_an_expression_is_text() -> None:
    expression: Any = 5
    with pytest.raises(TypeError, match="str"):
        Selection.of(expression)
    with pytest.raises(TypeError, match="str"):
        Selection.of(sql=expression)
