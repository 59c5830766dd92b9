"""Messages that are to be delivered later: what appending one needs to know, and why one is refused.

What is written on such a message, and where it waits, is decided in mq/fastpath/delayed_append.c, which every
append goes through. It is told here of the queue of a delay level, and of that of timer messages, when the
first message asks for it: these queues are made then. RocketMQ: broker/util/HookUtils.java,
handleScheduleMessage and transformTimerMessage.
"""

from __future__ import annotations

import time
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from mq.api.results import MessageQueue
from mq.due_time import beyond_limit
from mq.errors import BrokerClosed, MessageInvalid
from mq.fastpath import DelayedRecords
from mq.message import Message
from mq.properties import PROPERTIES_SIZE_MAX
from mq.store.log.size_limits import message_too_large
from mq.store.native import ffi
from mq.store.shared.due_event import AT_WAKE, DueEvent

__all__ = ["DelayedAppend", "LevelQueues", "Refused", "TimerQueue", "target_properties"]

ROOM = 256  # what a record has besides body, topic and properties


class Refused(IntEnum):
    """MQ_REFUSED_... of mq/fastpath/objects.h."""

    CLOSED = -1
    NOT_SET = -2
    TOO_LATE = -3
    PROPERTIES = -4
    SIZE = -5
    MEMORY = -6


class LevelQueues(Protocol):
    """Where messages with a delay level wait: see mq/broker/delay/schedule.py."""

    def progress(self) -> DueEvent: ...

    def queue_of(self, level: int, /) -> tuple[int, int]:
        """Number of the queue of a delay level, and its delay in ms. Raises MessageInvalid."""
        ...


class TimerQueue(Protocol):
    """Where messages that are due at any time wait: see mq/broker/delay/timer.py."""

    @property
    def progress(self) -> DueEvent: ...
    @property
    def precision_ms(self) -> int: ...
    def queue_number(self) -> int: ...


class Delayed(NamedTuple):
    """How a message that is due at a time of its own is appended."""

    properties: bytes
    due_ms: int


def target_properties(queue: MessageQueue) -> bytes:
    """The properties that say of a delayed message where it is to go."""
    return f"REAL_TOPIC\x01{queue.topic}\x02REAL_QID\x01{queue.queue_id}\x02".encode()


class DelayedAppend:
    """What appends of delayed messages to one store share.

    delay_max_ms: how far ahead a timer message may be due. log_file_size: no record is larger than that.
    """

    def __init__(
        self, levels: LevelQueues, timers: TimerQueue, delay_max_ms: int, log_file_size: int
    ) -> None:
        self.records = DelayedRecords(log_file_size - ROOM)
        self._levels = levels
        self._timers = timers
        self._delay_max_ms = delay_max_ms
        self._log_file_size = log_file_size

    def ensure_queue(self, message: Message) -> None:
        """Make the queue in which a message waits, if there is none. Raises MessageInvalid for an unknown
        level."""
        if level := message.delay_level:
            number, delay_ms = self._levels.queue_of(level)
            self.records.set_level(level, number, delay_ms, _address(self._levels.progress()))
        elif message.delayed:
            timers = self._timers
            number, precision_ms = timers.queue_number(), timers.precision_ms
            self.records.set_timers(number, precision_ms, self._delay_max_ms, _address(timers.progress))

    def check(self, queue: MessageQueue, message: Message, body: bytes) -> None:
        """Raises MessageInvalid, MessageTooLarge for what is wrong with a delayed message."""
        self.prepare(queue, message, len(body))

    def prepare(self, queue: MessageQueue, message: Message, body_size: int) -> Delayed | None:
        """How to append a message; None where it is due. Raises as check()."""
        self.ensure_queue(message)
        found = self.records.prepare(message, body_size, target_properties(queue))
        if isinstance(found, int):
            raise self.refusal(found, message, body_size, queue)
        return None if found is None else Delayed(*found)

    def appended(self, delayed: Delayed) -> None:
        """One that was prepared is stored: the leader is woken if it would sleep longer."""
        self._timers.progress.stored(delayed.due_ms)

    def refusal(self, code: int, message: Message, body_size: int, queue: MessageQueue) -> Exception:
        """What Refused says of a message, as an error."""
        if code == Refused.CLOSED:
            return BrokerClosed("this broker is closed")
        if code == Refused.TOO_LATE:
            return beyond_limit(message, time.time_ns() // 1_000_000, self._delay_max_ms)
        if code == Refused.MEMORY:
            return MemoryError()
        size = len(message.encoded) + 1 + len(target_properties(queue))
        if code == Refused.PROPERTIES:
            return MessageInvalid(
                f"tags, keys and properties come to {size:,} bytes with those of a delayed"
                f" message, over the limit of {PROPERTIES_SIZE_MAX:,}: move what is large into the body"
            )
        if code == Refused.SIZE:  # Once it is due, it would be too large.
            return message_too_large(body_size, size, self._log_file_size)
        raise AssertionError(Refused(code))


def _address(event: DueEvent) -> tuple[memoryview, int, Any]:
    """What mq/fastpath/delayed_append.c is told of the leader's wake-up."""
    word = event.words[AT_WAKE : AT_WAKE + 1]
    return word, int(ffi.cast("uintptr_t", ffi.from_buffer(word))), event.notify
