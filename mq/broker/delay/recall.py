"""Recall: a message that waits for its time is taken back, and never delivered.

As in RocketMQ, a marker is stored behind the message in the timer topic, for the same slot; the leader
drops what a marker of the slot names. A marker is a message

    topic    rmq_sys_wheel_timer, queue 0
    body     0
    TAGS                _RECALL_TAG_
    UNIQ_KEY            of the message
    TIMER_DEL_UNIQKEY   its topic + its unique id, joined by a plus sign
    TIMER_DELIVER_MS    of the message, so that both are in one slot by any precision; else one ms after it
    TIMER_OUT_MS        the slot
    REAL_TOPIC          its topic
    REAL_QID            0
    BORN_TIMESTAMP      now

RocketMQ says that a message is recalled once the marker is stored; the message may have been on its way. Here
the answer comes when the marker has reached the leader. The leader does not deliver the message
after that, so whether it has done so before is final.

RocketMQ: broker/processor/RecallMessageProcessor.java; buildDeleteKey of TimerMessageStore.java.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from mq.api.recall import RecallHandle
from mq.broker.delay.timer import TIMER_TOPIC, Timer
from mq.errors import MessageNotFound, NotPermitted, RequestTimeout
from mq.message import MessageExt
from mq.names import is_system_topic
from mq.properties import number_of, value_of
from mq.store.log.reappend import Copy
from mq.store.shared.leader_lock import who_delays_timers
from mq.store.store import Store

__all__ = ["Recall"]

BODY, TAG = b"0", "_RECALL_TAG_"
MARKS = b"TIMER_DEL_UNIQKEY\x01"
TIMEOUT = 10.0  # seconds until the leader has seen a marker
LOOK_AGAIN = 0.1  # seconds; the leader may have died, and the next one was not notified


class Finds(Protocol):
    """Finds messages by their unique id: see mq/broker/message_query.py."""

    def of_unique_id(self, topic: str, unique_id: str, /) -> Iterable[MessageExt]:
        """All of a topic, the newest first; none where there is no such topic."""
        ...


class Appends(Protocol):
    """Appends to a queue by its number: see mq/store/log/writer.py."""

    def append_to(self, number: int, body: bytes, properties: bytes, /) -> Copy: ...


class Recall:
    """Recalls messages of one broker."""

    def __init__(self, store: Store, broker_name: str, timer: Timer, finds: Finds, appends: Appends) -> None:
        self._store = store
        self._broker_name = broker_name
        self._timer = timer
        self._finds = finds
        self._appends = appends

    def recall(self, handle: str) -> str:
        """See Broker.recall."""
        wanted = RecallHandle.of(handle)
        if wanted.broker_name != self._broker_name:
            raise ValueError(
                f"this recall handle is of a broker {wanted.broker_name!r}; this one is {self._broker_name!r}"
            )
        if is_system_topic(wanted.topic):
            raise ValueError(f"this recall handle is of {wanted.topic}, which is a topic of RocketMQ's own")
        waiting, marked, due_ms = self._waiting(wanted)
        self._check_undelivered(wanted)
        if waiting is None:
            raise MessageNotFound(
                wanted.unique_id,
                f"no message {wanted.unique_id} waits for its time to come to topic {wanted.topic}:"
                " it was never sent so, or retention took it",
            )
        if marked is None or marked < waiting:
            marked = self._mark(wanted, due_ms)
        self._wait_until_seen(wanted, marked)
        self._check_undelivered(wanted)
        return wanted.unique_id

    def _waiting(self, wanted: RecallHandle) -> tuple[int | None, int | None, int]:
        """Where in the timer topic the newest such message is, where the newest marker of it, and when it is
        due."""
        newest: dict[bool, int] = {}
        due_ms = wanted.out_ms + 1
        for message in self._finds.of_unique_id(TIMER_TOPIC, wanted.unique_id):
            encoded = message.encoded
            if (
                number_of(encoded, b"TIMER_OUT_MS\x01") == wanted.out_ms
                and value_of(encoded, b"REAL_TOPIC\x01") == wanted.topic
            ):
                is_marker = value_of(encoded, MARKS) is not None
                newest.setdefault(is_marker, message.queue_offset)
                if not is_marker:
                    due_ms = message.deliver_at_ms or due_ms
        return newest.get(False), newest.get(True), due_ms

    def _check_undelivered(self, wanted: RecallHandle) -> None:
        if self._store.sync:
            self._store.flush()  # What is not on disk would not be seen.
        for _message in self._finds.of_unique_id(wanted.topic, wanted.unique_id):
            raise NotPermitted(f"message {wanted.unique_id} is delivered already: it cannot be recalled")

    def _mark(self, wanted: RecallHandle, due_ms: int) -> int:
        """Store a marker; its place in the timer topic."""
        properties = {
            "TAGS": TAG,
            "UNIQ_KEY": wanted.unique_id,
            "TIMER_DEL_UNIQKEY": f"{wanted.topic}+{wanted.unique_id}",
            "TIMER_DELIVER_MS": due_ms,
            "BORN_TIMESTAMP": time.time_ns() // 1_000_000,
            "TIMER_OUT_MS": wanted.out_ms,
            "REAL_TOPIC": wanted.topic,
            "REAL_QID": 0,
        }
        encoded = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
        return self._appends.append_to(self._timer.queue_number(), BODY, encoded).queue_offset

    def _wait_until_seen(self, wanted: RecallHandle, marked: int) -> None:
        """Until the leader has read the timer topic beyond its offset `marked`."""
        until = time.monotonic() + TIMEOUT
        while self._timer.enqueued() <= marked:
            self._store.live()
            if time.monotonic() > until:
                why = who_delays_timers(self._store)
                raise RequestTimeout(
                    f"the recall of message {wanted.unique_id} is stored, but no leader has seen it"
                    f" for {TIMEOUT:g} s{why}: ask again, as it may still be delivered"
                )
            # The leader looks at all that is there when it is notified, whenever it is due.
            self._timer.progress.notify()
            self._timer.progress.wait_enqueued(marked, LOOK_AGAIN)
