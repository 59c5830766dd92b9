"""When a message is due that says so itself, and its slot of the timer wheel.

The same rules stand in mq/fastpath/delayed_append.c for the usual message. RocketMQ:
broker/util/HookUtils.java, transformTimerMessage.
"""

from __future__ import annotations

from mq.errors import MessageInvalid
from mq.message import Message

__all__ = ["due_ms", "slot_ms"]


def due_ms(message: Message, now_ns: int, delay_max_ms: int) -> int:
    """When a message is due, in ms; 0 where it waits for nothing. Raises MessageInvalid beyond the limit."""
    now_ms, delay_ms, due = now_ns // 1_000_000, message.delay_ms, message.deliver_at_ms or 0
    if delay_ms is not None:
        if delay_ms > delay_max_ms:
            raise MessageInvalid(
                f"delay_ms {delay_ms:,} is over the limit of {delay_max_ms:,} ms (timer_max_delay_ms)"
            )
        # The whole delay is to pass: of the ms that has begun, nothing counts.
        due = -(-now_ns // 1_000_000) + delay_ms if delay_ms else 0
    elif due - now_ms > delay_max_ms:
        raise MessageInvalid(
            f"deliver_at_ms {due} is {due - now_ms:,} ms from now, over the limit of {delay_max_ms:,} ms"
            " (timer_max_delay_ms)"
        )
    return due if due > now_ms else 0


def slot_ms(due_ms: int, precision_ms: int) -> int:
    """RocketMQ's TIMER_OUT_MS: the last multiple of the precision before a message is due."""
    return (due_ms - 1) // precision_ms * precision_ms
