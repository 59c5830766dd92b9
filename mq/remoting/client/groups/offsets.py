"""The committed offset of one queue, kept by its owner: read from the broker and written back.

A new offset is written with the next pull, every 5 s by a oneway request, and by a confirmed request when the
owner releases the queue or seeks back. A pull carries an offset once, because a broker may handle the pull
after requests that were sent later, and an old offset would replace the confirmed one.

RocketMQ: client/consumer/store/RemoteBrokerOffsetStore.java.
"""

from __future__ import annotations

import threading

from mq.api.results import MessageQueue
from mq.remoting.client.brokers import Brokers
from mq.remoting.codec.bodies.settings import GroupSettings
from mq.remoting.codec.requests.groups import UpdateGroup
from mq.remoting.codec.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from mq.remoting.codec.response_codes import ResponseCode

__all__ = ["QueueOffset", "query_offset", "set_offset"]


def query_offset(brokers: Brokers, group: str, queue: MessageQueue) -> int | None:
    """The group's committed offset, None if there is none; 4.9 returns 0 instead for a queue whose first
    message is still in memory. Names as on the wire."""
    request = QueryConsumerOffset(group, queue.topic, queue.queue_id, set_zero_if_not_found=False)
    return brokers.offset_or_none(queue.broker_name, request)


def set_offset(brokers: Brokers, group: str, queue: MessageQueue, offset: int) -> None:
    """Write the group's offset. Names as on the wire. A 5.3 broker accepts offsets only for a group with
    settings, which every group gets with its first member; this function creates them if necessary."""
    request = _update(group, queue, offset)
    known = brokers.ask(queue.broker_name, request, also=(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,))
    if known.code != ResponseCode.SUCCESS:
        brokers.ask(queue.broker_name, UpdateGroup(), GroupSettings(group))
        brokers.ask(queue.broker_name, request)


def _update(group: str, queue: MessageQueue, offset: int) -> UpdateConsumerOffset:
    return UpdateConsumerOffset(group, queue.topic, queue.queue_id, offset)


class QueueOffset:
    """`group` and `queue` as on the wire. From any thread."""

    def __init__(self, brokers: Brokers, group: str, queue: MessageQueue) -> None:
        self._brokers = brokers
        self._group = group
        self._queue = queue
        self._lock = threading.Lock()
        self._offset: int | None = None
        self._carried: int | None = None  # by the last pull that carried one
        self._is_dirty = False

    @property
    def offset(self) -> int | None:
        """The newest known offset."""
        return self._offset

    def query(self) -> int | None:
        """The offset at the broker. Raises RemotingError, RequestTimeout."""
        offset = query_offset(self._brokers, self._group, self._queue)
        with self._lock:
            self._offset, self._is_dirty = offset, False
        return offset

    def raise_to(self, offset: int) -> None:
        """Raise the offset; it is written soon. A smaller one is ignored."""
        with self._lock:
            if self._offset is None or offset > self._offset:
                self._offset, self._is_dirty = offset, True

    def set(self, offset: int) -> None:
        """Set the offset and write it at once. Raises RemotingError, RequestTimeout."""
        with self._lock:
            self._offset, self._is_dirty = offset, False
        set_offset(self._brokers, self._group, self._queue, offset)

    def to_carry(self) -> int | None:
        """A changed offset that no pull has carried yet."""
        with self._lock:
            if not self._is_dirty or self._offset == self._carried:
                return None
            self._carried = self._offset
            return self._offset

    def write(self) -> None:
        """Write a changed offset, without waiting."""
        offset = self._taken()
        if offset is not None:
            self._brokers.send_oneway(self._queue.broker_name, _update(self._group, self._queue, offset))

    def write_and_wait(self) -> None:
        """Write a changed offset, and wait for the broker's answer. Raises RemotingError, RequestTimeout."""
        offset = self._taken()
        if offset is not None:
            self.set(offset)

    def _taken(self) -> int | None:
        with self._lock:
            if not self._is_dirty:
                return None
            self._is_dirty = False
            return self._offset
