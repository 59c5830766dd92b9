"""The committed offset of one queue, kept by its owner: read from the broker and written back.

A new offset is written with the next pull, every 5 s until the broker has confirmed it, and by a request that
is waited for when the owner releases the queue or seeks back. A pull carries an offset once, because a broker
may handle the pull after requests that were sent later, and an old offset would replace the confirmed one.

A broker puts offsets on disk every 5 s, and one that is killed forgets those that it confirmed since. So an
offset is written until the broker has confirmed it for a while.

A queue may have two owners for a moment, and the earlier one may be the last to write. So it asks for the
broker's offset before it writes one in release, and lowers none; and the new owner has a look every 30 s, and
replaces a smaller one. RocketMQ's Java client writes all offsets every 5 s, for ever.

RocketMQ: client/consumer/store/RemoteBrokerOffsetStore.java.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic, sleep

from mq.api.results import MessageQueue
from mq.errors import MQError, RemotingError
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections.answers import fields_of
from mq.remoting.codec.bodies.settings import GroupSettings
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.groups import UpdateGroup
from mq.remoting.codec.requests.offsets import OffsetAnswer, QueryConsumerOffset, UpdateConsumerOffset
from mq.remoting.codec.response_codes import ResponseCode

__all__ = ["QueueOffset", "query_offset", "set_offset"]

LOOK_SECONDS = 0.001
AGAIN_SECONDS = 4.0  # before a confirmed offset is written again
KEPT_SECONDS = 15.0  # an offset that was confirmed for so long is on the broker's disk
CHECK_SECONDS = 30.0  # between two looks at the offset that the broker has
WRITE_SECONDS = 1.0  # how long a confirmed write waits for the answer to an earlier one


def query_offset(brokers: Brokers, group: str, queue: MessageQueue) -> int | None:
    """The group's committed offset, None if there is none; 4.9 returns 0 instead for a queue whose first
    message is still in memory. Names as on the wire."""
    return brokers.offset_or_none(queue.broker_name, _query(group, queue))


def set_offset(brokers: Brokers, group: str, queue: MessageQueue, offset: int) -> None:
    """Write the group's offset. Names as on the wire. A 5.3 broker accepts offsets only for a group with
    settings, which every group gets with its first member; this function creates them if necessary."""
    request = _update(group, queue, offset)
    known = brokers.ask(queue.broker_name, request, also=(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,))
    if known.code != ResponseCode.SUCCESS:
        brokers.ask(queue.broker_name, UpdateGroup(), GroupSettings(group))
        brokers.ask(queue.broker_name, request)


def _query(group: str, queue: MessageQueue) -> QueryConsumerOffset:
    return QueryConsumerOffset(group, queue.topic, queue.queue_id, set_zero_if_not_found=False)


def _update(group: str, queue: MessageQueue, offset: int) -> UpdateConsumerOffset:
    return UpdateConsumerOffset(group, queue.topic, queue.queue_id, offset)


class QueueOffset:
    """`group` and `queue` as on the wire. From any thread."""

    def __init__(
        self, brokers: Brokers, group: str, queue: MessageQueue, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._brokers = brokers
        self._group = group
        self._queue = queue
        self._clock = clock
        self._lock = threading.Lock()
        self._offset: int | None = None
        self._carried: int | None = None  # the last one that a pull or a write has carried
        self._is_writing = False  # while a write() waits for its answer
        self._is_checking = False  # while a check() does
        self._is_dirty = False  # the broker has not confirmed the offset yet
        self._is_set = False  # it was set lately, and may be smaller than the broker's
        self._is_kept = True  # it has had the time to put it on disk
        self._known_since = self._confirmed_at = 0.0  # the first and the last time that it confirmed it

    @property
    def offset(self) -> int | None:
        """The newest known offset."""
        return self._offset

    def query(self) -> int | None:
        """The offset at the broker. Raises RemotingError, RequestTimeout."""
        offset = query_offset(self._brokers, self._group, self._queue)
        with self._lock:
            self._forget(offset)
        return offset

    def raise_to(self, offset: int) -> None:
        """Raise the offset; it is written soon. A smaller one is ignored."""
        with self._lock:
            if self._offset is None or offset > self._offset:
                self._offset, self._is_dirty = offset, True

    def set(self, offset: int) -> None:
        """Set the offset and write it at once. Raises RemotingError, RequestTimeout: then write() repeats
        it."""
        with self._lock:
            self._offset = self._carried = offset
            self._is_dirty = self._is_set = True
        # A broker may handle an earlier write after this one, and would keep the earlier offset.
        deadline = monotonic() + WRITE_SECONDS
        while self._is_writing and monotonic() < deadline:
            sleep(LOOK_SECONDS)  # No Event: an interrupt could leave its lock taken.
        set_offset(self._brokers, self._group, self._queue, offset)
        self._confirm(offset)

    def forget(self) -> None:
        """Write nothing more, until there is another offset."""
        with self._lock:
            self._forget(None)

    def _forget(self, offset: int | None) -> None:
        self._offset, self._confirmed_at = offset, self._clock()
        self._is_dirty, self._is_set, self._is_kept = False, False, True

    def to_carry(self) -> int | None:
        """A changed offset that no pull has carried yet."""
        with self._lock:
            if not self._is_dirty or self._offset == self._carried:
                return None
            self._carried = self._offset
            return self._offset

    def write(self) -> None:
        """Write an offset that the broker has not confirmed, or may forget, without waiting."""
        is_begun = is_sent = False
        try:
            with self._lock:
                offset = self._offset
                if offset is None or self._is_writing or not self._must_write():
                    return
                self._carried = offset
                is_begun = self._is_writing = True
            request = _update(self._group, self._queue, offset)
            answered = partial(self._written, offset)
            is_sent = self._brokers.ask_async(self._queue.broker_name, request, answered)
        finally:
            if is_begun and not is_sent:
                self._is_writing = False

    def _written(self, offset: int, answer: Frame | MQError) -> None:
        if isinstance(answer, Frame) and answer.code == ResponseCode.SUCCESS:
            self._confirm(offset)
        else:
            with self._lock:
                self._is_dirty = True  # The broker may be another process by now.
        self._is_writing = False

    def write_and_wait(self) -> None:
        """Write an offset that the broker has not confirmed, and wait for the answer; none that is smaller
        than the broker's, unless the offset was set lately. Raises RemotingError, RequestTimeout."""
        with self._lock:
            # A write that is under way may reach the broker after the first one of the next owner.
            offset = self._offset if self._is_dirty or self._is_writing else None
            is_set = self._is_set
        if offset is None:
            return
        if is_set or offset >= (query_offset(self._brokers, self._group, self._queue) or 0):
            self.set(offset)

    def check(self) -> None:
        """Have a look, without waiting, whether the broker still has a confirmed offset: write() writes it
        again where it has a smaller one. Does nothing until 30 s after the last confirmation."""
        is_begun = is_sent = False
        try:
            with self._lock:
                is_due = not self._is_dirty and self._clock() - self._confirmed_at >= CHECK_SECONDS
                if self._offset is None or not is_due or self._is_checking:
                    return
                is_begun = self._is_checking = True
            request = _query(self._group, self._queue)
            is_sent = self._brokers.ask_async(self._queue.broker_name, request, self._checked)
        finally:
            if is_begun and not is_sent:
                self._is_checking = False

    def _checked(self, answer: Frame | MQError) -> None:
        self._is_checking = False
        at_broker = _told(answer)
        with self._lock:
            if at_broker is None or self._offset is None:
                return
            if at_broker < self._offset:
                self._is_dirty = True
            else:
                # Another owner has written a greater one, and looks after it.
                self._confirmed_at = self._clock() if at_broker == self._offset else inf

    def _must_write(self) -> bool:
        if self._is_dirty:
            return True
        return not self._is_kept and self._clock() - self._confirmed_at >= AGAIN_SECONDS

    def _confirm(self, offset: int) -> None:
        with self._lock:
            if self._offset is not None and self._offset != offset:
                self._is_dirty = True
                return
            self._confirmed_at = self._clock()
            if self._is_dirty:
                self._known_since, self._is_dirty = self._confirmed_at, False
            self._is_kept = self._confirmed_at - self._known_since >= KEPT_SECONDS
            if self._is_kept:
                self._is_set = False


def _told(answer: Frame | MQError) -> int | None:
    """The offset in an answer, -1 if the broker has none; None if it does not say."""
    if not isinstance(answer, Frame):
        return None
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return -1
    with suppress(RemotingError):
        if answer.code == ResponseCode.SUCCESS:
            return fields_of(OffsetAnswer, answer).offset
    return None
