"""Recall handles: RocketMQ's own text, there and back, and anything else that may be given instead of one."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mq
from mq.api.recall import RecallHandle
from mq.api.results import MessageQueue, SendResult, SendStatus

TOPICS = st.text("abcXYZ019%-_|", min_size=1, max_size=127)
WORDS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=60)
HANDLES = st.builds(RecallHandle, TOPICS, WORDS, st.integers(0, 10**17), WORDS)

# What a RocketMQ 5.3.3 broker answered to the send of a message.
HANDLE = RecallHandle(
    "orders", "broker", 1_795_278_427_000, "FD000000000000000000000000000002016B4E0E2F2A6A7DC6FB001A"
)
TEXT = (
    "djEgb3JkZXJzIGJyb2tlciAxNzk1Mjc4NDI3MDAxIEZEMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw"
    "MDAyMDE2QjRFMEUyRjJBNkE3REM2RkIwMDFB"
)


def test_a_handle_is_rocketmqs() -> None:
    assert str(HANDLE) == TEXT
    assert RecallHandle.of(TEXT) == HANDLE


@given(HANDLES)
def test_a_handle_comes_back_as_it_was(handle: RecallHandle) -> None:
    text = str(handle)
    assert RecallHandle.of(text) == handle
    # Java's decoder does without the padding too.
    assert RecallHandle.of(text.rstrip("=")) == handle


@given(st.text() | st.binary().map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no recall handle") as raised:
        RecallHandle.of(text)
    assert type(raised.value) is ValueError


@given(HANDLES, st.data())
def test_what_was_changed_is_refused_or_names_something_else(
    handle: RecallHandle, data: st.DataObject
) -> None:
    text = str(handle)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(min_codepoint=0x20, max_codepoint=0x7E))
    changed = text[:at] + other + text[at + 1 :]
    try:
        again = RecallHandle.of(changed)
    except ValueError:
        return
    # Padding, and bits of the last character that stand for nothing, may be whatever they are.
    assert again != handle or changed == text or at >= len(text.rstrip("=")) - 1


def test_no_text_is_no_handle() -> None:
    for value in (None, 5, b"djEg", mq):
        with pytest.raises(TypeError, match="recall handle"):
            RecallHandle.of(value)  # type: ignore[arg-type]  # that is what is tried


def test_only_a_result_of_what_waits_has_one() -> None:
    queue = MessageQueue("orders", "mq", 3)
    place = bytes(8), 0
    for out_ms, handle in ((0, None), (5000, RecallHandle("orders", "mq", 5000, "A" * 32))):
        result = SendResult(SendStatus.SEND_OK, queue, 0, "A" * 32, place, out_ms=out_ms)
        assert result.recall_handle == (None if handle is None else str(handle))
        again = SendResult.restored(*result.__reduce__()[1])
        assert again.recall_handle == result.recall_handle
