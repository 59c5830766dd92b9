"""Messages that are to be delivered later: where they wait, and what is written on them.

Each waits as a record of another topic than its own. Behind its own properties stand

    TIMER_DELIVER_MS   when it is due, where the message says for how long it is to wait (TIMER_DELAY_MS)
    TIMER_OUT_MS       its slot, see slot_ms            (both of messages that are due at any time alone)
    REAL_TOPIC         where it belongs
    REAL_QID

and the unit of one with a delay level has as its code when it is due: its store time and the level's delay.
The leader looks when the next is due; it is told of one that is due before that.

The usual message takes the way of mq/fastpath/aside.c, which does the same; what comes here asks for more, or
is refused. RocketMQ: broker/util/HookUtils.java, handleScheduleMessage and transformTimerMessage.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Protocol

from mq.api.results import MessageQueue
from mq.due_time import due_ms, slot_ms
from mq.errors import MessageInvalid
from mq.fastpath import Asides as Usual
from mq.message import Message
from mq.properties import PROPERTIES_SIZE_MAX
from mq.store.log.size_limits import ROOM_MAX, message_too_large
from mq.store.native import ffi

__all__ = ["Alarm", "Asides", "Levels", "Timers", "Waiting", "belongs"]

DUE_AFTER = 2  # The code of a unit that says when its message is due counts from the store time.
ROOM = 256  # what a record has besides body, topic and properties
WAKE_PLACE = 2  # of Alarm.words, as in mq/broker/delay/level_progress.py


class Alarm(Protocol):
    """Wakes the leader: see mq/broker/delay/level_progress.py."""

    @property
    def words(self) -> memoryview:
        """Of 64 bits, of which one says when the leader looks next."""
        ...

    def ring(self) -> None: ...


class Levels(Protocol):
    """Where messages with a delay level are put aside: see mq/broker/delay/schedule.py."""

    def alarm(self) -> Alarm: ...

    def aside(self, level: int, /) -> tuple[int, int]:
        """Number of the queue of a delay level, and its delay in ms. Raises MessageInvalid."""
        ...


class Timers(Protocol):
    """Where messages that are due at any time are put aside: see mq/broker/delay/timer.py."""

    @property
    def alarm(self) -> Alarm: ...
    @property
    def precision_ms(self) -> int: ...
    def aside(self) -> int:
        """Number of their queue."""
        ...


class Waiting(NamedTuple):
    """How a delayed message is appended, and how the leader is told of it."""

    number: int
    encoded: bytes
    envelope: Any
    alarm: Alarm
    due_ms: int  # with a delay level, how long after its store time
    out_ms: int  # 0: it has a delay level

    def stored(self, store_time_ms: int) -> None:
        """It was put aside: the leader is woken if it would sleep longer."""
        due_ms = self.due_ms
        if not self.out_ms:
            due_ms += store_time_ms + 1  # Store times are cut to the ms, and the whole delay is to pass.
        if due_ms < self.alarm.words[WAKE_PLACE]:
            self.alarm.ring()


def belongs(queue: MessageQueue) -> bytes:
    """The properties that say of a message put aside where it is to go."""
    return f"REAL_TOPIC\x01{queue.topic}\x02REAL_QID\x01{queue.queue_id}\x02".encode()


class Asides:
    """Puts messages aside that go to one store.

    delay_max_ms: how far ahead a timer message may be due. log_file_size: no record is larger than that.
    """

    def __init__(self, levels: Levels, timers: Timers, delay_max_ms: int, log_file_size: int) -> None:
        self.usual = Usual(log_file_size - ROOM_MAX)
        self._levels = levels
        self._timers = timers
        self._delay_max_ms = delay_max_ms
        self._log_file_size = log_file_size

    def waiting(self, queue: MessageQueue, message: Message, body: bytes) -> Waiting | None:
        """How to put this message aside; None where it is due. Raises MessageInvalid, MessageTooLarge."""
        encoded = message.encoded
        if not encoded.endswith(b"\x02"):
            encoded += b"\x02"
        if level := message.delay_level:
            waiting = self._of_level(level, encoded + belongs(queue))
        elif due := due_ms(message, time.time_ns(), self._delay_max_ms):
            waiting = self._of_time(encoded, message.delay_ms is not None, due, belongs(queue))
        else:
            return None
        size = len(waiting.encoded)
        if size > PROPERTIES_SIZE_MAX:
            raise MessageInvalid(
                f"tags, keys and properties come to {size:,} bytes with those of a delayed"
                f" message, over the limit of {PROPERTIES_SIZE_MAX:,}: move what is large into the body"
            )
        if len(body) + size + len(queue.topic) + ROOM > self._log_file_size:
            raise message_too_large(len(body), size, self._log_file_size)  # Once it is due, it would be.
        return waiting

    def _of_level(self, level: int, encoded: bytes) -> Waiting:
        number, delay_ms = self._levels.aside(level)
        alarm = self._levels.alarm()
        self.usual.set_level(level, number, delay_ms, _told(alarm))
        envelope = ffi.new("mq_append_options *", {"has_tags_code": DUE_AFTER, "tags_code": delay_ms})
        return Waiting(number, encoded, envelope, alarm, delay_ms, 0)

    def _of_time(self, encoded: bytes, say_when: bool, due: int, where: bytes) -> Waiting:
        timers = self._timers
        number, alarm, precision_ms = timers.aside(), timers.alarm, timers.precision_ms
        self.usual.set_timers(number, precision_ms, self._delay_max_ms, _told(alarm))
        out_ms = slot_ms(due, precision_ms)
        if say_when:
            encoded += b"TIMER_DELIVER_MS\x01%d\x02" % due
        encoded += b"TIMER_OUT_MS\x01%d\x02" % out_ms + where
        return Waiting(number, encoded, ffi.NULL, alarm, due, out_ms)


def _told(alarm: Alarm) -> tuple[memoryview, int, Any]:
    """What mq/fastpath/aside.c is told of an alarm."""
    word = alarm.words[WAKE_PLACE : WAKE_PLACE + 1]
    return word, int(ffi.cast("uintptr_t", ffi.from_buffer(word))), alarm.ring
