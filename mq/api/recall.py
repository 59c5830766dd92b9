"""The handle by which a message that waits for its time is recalled: RocketMQ's own text.

URL-safe Base64, with padding, of

    v1 <topic> <broker's name> <time in ms> <unique id>

separated by single spaces. The time is one ms after the message's TIMER_OUT_MS, so that it falls into the
same slot of the timer wheel.

RocketMQ: common/producer/RecallMessageHandle.java.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

from mq.errors import TopicInvalid
from mq.names import check_topic

__all__ = ["RecallHandle"]

SIZE_MAX = 2048
BASE64 = re.compile(r"[A-Za-z0-9_-]+={0,2}", re.ASCII)
TIME = re.compile(r"[1-9]\d{0,17}", re.ASCII)
WORD = re.compile(r"[\x21-\x7e]{1,255}")


class RecallHandle(NamedTuple):
    """Which message it is, and when it is due."""

    topic: str
    broker_name: str
    out_ms: int
    unique_id: str

    def __str__(self) -> str:
        text = f"v1 {self.topic} {self.broker_name} {self.out_ms + 1} {self.unique_id}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def of(cls, text: str) -> RecallHandle:
        """The handle that this is the text of. Raises ValueError; TypeError for what is no text."""
        if not isinstance(text, str):
            raise TypeError(f"a recall handle is a str, not {type(text).__name__}")
        parts = _decoded(text).split(" ")
        if len(parts) != 5 or parts[0] != "v1":
            raise _no_handle(text)
        _, topic, broker_name, time_ms, unique_id = parts
        if not TIME.fullmatch(time_ms) or not WORD.fullmatch(unique_id) or not WORD.fullmatch(broker_name):
            raise _no_handle(text)
        try:
            check_topic(topic)
        except TopicInvalid:
            raise _no_handle(text) from None
        return cls(topic, broker_name, int(time_ms) - 1, unique_id)


def _decoded(text: str) -> str:
    if len(text) > SIZE_MAX or not BASE64.fullmatch(text):
        raise _no_handle(text)
    bare = text.rstrip("=")
    try:
        return base64.urlsafe_b64decode(bare + "=" * (-len(bare) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise _no_handle(text) from None


def _no_handle(text: str) -> ValueError:
    shown = repr(text) if len(text) <= 80 else f"{text[:80]!r}..."
    return ValueError(
        f"{shown} is no recall handle: give the recall_handle of the result of sending a message that is due"
        " at a time of its own"
    )
