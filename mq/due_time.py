"""When a message is due that says so itself, and its slot of the timer wheel.

The rules are those of mq/fastpath/delayed_append.c, which every append goes through.
RocketMQ: broker/util/HookUtils.java, transformTimerMessage.
"""

from __future__ import annotations

from mq import fastpath
from mq.errors import MessageInvalid
from mq.fastpath import slot_ms
from mq.message import Message

__all__ = ["beyond_limit", "due_ms", "slot_ms"]


def due_ms(message: Message, now_ns: int, delay_max_ms: int) -> int:
    """When a message is due, in ms; 0 where it waits for nothing. Raises MessageInvalid beyond the limit."""
    due = fastpath.due_ms(message, now_ns, delay_max_ms)
    if due < 0:
        raise beyond_limit(message, now_ns // 1_000_000, delay_max_ms)
    return due


def beyond_limit(message: Message, now_ms: int, delay_max_ms: int) -> MessageInvalid:
    """What is said of a message that would be due later than it may be."""
    if message.delay_ms is not None:
        ahead = f"delay_ms {message.delay_ms:,} is"
    else:
        due = message.deliver_at_ms or 0
        ahead = f"deliver_at_ms {due} is {due - now_ms:,} ms from now,"
    return MessageInvalid(f"{ahead} over the limit of {delay_max_ms:,} ms (timer_max_delay_ms)")
