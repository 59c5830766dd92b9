"""Messages due at any time, of the broker in memory: a heap, under the broker's one lock."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Collection
from typing import Protocol

from mq.api.recall import RecallHandle
from mq.errors import MessageInvalid, MessageNotFound, NotPermitted
from mq.message import Message, MessageExt
from mq.names import is_system_topic
from mq.properties import number_of, value_of

TIMER_TOPIC = "rmq_sys_wheel_timer"


class Keeps(Protocol):
    """A broker that stores what others have waiting, its lock held."""

    @property
    def name(self) -> str: ...

    def keep(
        self,
        topic: str,
        queue_id: int,
        queue: list[MessageExt],
        body: bytes,
        properties: bytes,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_time_ms: int | None = None,
        prepared_offset: int = 0,
    ) -> MessageExt: ...


class Log(Keeps, Protocol):
    """What timers ask of their broker, its lock held."""

    def deliver_due(self) -> None: ...
    def ids_in(self, topic: str) -> Collection[str]:
        """The unique ids of all messages of a topic; none where there is no such topic."""
        ...


class MemoryTimers:
    """What waits for its time."""

    def __init__(
        self,
        log: Log,
        changed: threading.Condition,
        clock: Callable[[], int],
        *,
        precision_ms: int,
        delay_max_ms: int,
    ) -> None:
        self._log = log
        self._changed = changed
        self._clock = clock
        self._precision_ms = precision_ms
        self._delay_max_ms = delay_max_ms
        self._queue: list[MessageExt] = []
        self._waiting: list[tuple[int, int, MessageExt]] = []  # due, place, message: a heap

    def due_ms(self, message: Message) -> int | None:
        """When a message is due; None for one that is to be delivered at once."""
        now = self._clock()
        due = message.deliver_at_ms
        if message.delay_ms is not None:
            # The whole delay is to pass: of the ms that has begun, nothing counts.
            due = now + 1 + message.delay_ms if message.delay_ms else now
        if due is None or due <= now or message.delay_level:
            return None
        if (message.delay_ms or due - now) > self._delay_max_ms:
            raise MessageInvalid(f"{due - now:,} ms from now is over the limit of {self._delay_max_ms:,} ms")
        return due

    def put(
        self,
        due_ms: int,
        topic: str,
        queue_id: int,
        message: Message,
        body: bytes,
        sys_flag: int,
        own_id: str,
    ) -> MessageExt:
        out_ms = (due_ms - 1) // self._precision_ms * self._precision_ms
        more = {"TIMER_OUT_MS": out_ms, "REAL_TOPIC": topic, "REAL_QID": queue_id, "UNIQ_KEY": own_id}
        if message.delay_ms is not None:
            more["TIMER_DELIVER_MS"] = due_ms
        properties = message.encoded + "".join(f"{name}\x01{more[name]}\x02" for name in more).encode()
        stored = self._log.keep(
            TIMER_TOPIC, 0, self._queue, body, properties, flag=message.flag, sys_flag=sys_flag
        )
        heapq.heappush(self._waiting, (due_ms, stored.queue_offset, stored))
        return stored

    @staticmethod
    def out_ms(stored: MessageExt) -> int:
        """The slot of a message that waits; 0 of any other."""
        return (number_of(stored.encoded, b"TIMER_OUT_MS\x01") or 0) if stored.topic == TIMER_TOPIC else 0

    def until_due(self) -> float:
        """Seconds until the next is due."""
        return (self._waiting[0][0] - self._clock()) / 1000 if self._waiting else 3600.0

    def take(self) -> MessageExt | None:
        """One whose time has come."""
        if self._waiting and self._waiting[0][0] <= self._clock():
            return heapq.heappop(self._waiting)[2]
        return None

    def recall(self, handle: str) -> str:
        """See Broker.recall."""
        wanted = RecallHandle.of(handle)
        if wanted.broker_name != self._log.name or is_system_topic(wanted.topic):
            raise ValueError(f"{handle!r} is a handle of another broker")
        with self._changed:
            self._log.deliver_due()
            if wanted.unique_id in self._log.ids_in(wanted.topic):
                raise NotPermitted(f"{wanted.unique_id} is delivered")
            known = [message for message in self._queue if self._is_meant(message, wanted)]
            if not known:
                raise MessageNotFound(wanted.unique_id)
            self._waiting = [each for each in self._waiting if each[2] not in known]
            heapq.heapify(self._waiting)
        return wanted.unique_id

    def _is_meant(self, message: MessageExt, wanted: RecallHandle) -> bool:
        topic = value_of(message.encoded, b"REAL_TOPIC\x01")
        return (topic, message.msg_id, self.out_ms(message)) == (
            wanted.topic,
            wanted.unique_id,
            wanted.out_ms,
        )
