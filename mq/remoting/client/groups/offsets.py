"""The offset of one queue in a group, as its owner has it: read from the broker, and written back.

It is written every 5 s without an answer, on the way of each pull, and when the owner gives the queue up or
goes back with an answer. RocketMQ: client/consumer/store/RemoteBrokerOffsetStore.java.
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
    """What the group has committed. Names as on the wire. None: nothing; 4.9 says 0 of a queue whose first
    message still is in memory."""
    request = QueryConsumerOffset(group, queue.topic, queue.queue_id, set_zero_if_not_found=False)
    return brokers.offset_or_none(queue.broker_name, request)


def set_offset(brokers: Brokers, group: str, queue: MessageQueue, offset: int) -> None:
    """Write what the group is to have. Names as on the wire. A broker of 5.3 takes offsets of groups that it
    has settings of, as of each that ever had a member: another one gets them here."""
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
        self._is_dirty = False

    @property
    def offset(self) -> int | None:
        """The newest that is known here."""
        return self._offset

    def query(self) -> int | None:
        """What the broker says. Raises RemotingError, RequestTimeout."""
        offset = query_offset(self._brokers, self._group, self._queue)
        with self._lock:
            self._offset, self._is_dirty = offset, False
        return offset

    def raise_to(self, offset: int) -> None:
        """Written soon; a smaller one is ignored."""
        with self._lock:
            if self._offset is None or offset > self._offset:
                self._offset, self._is_dirty = offset, True

    def set(self, offset: int) -> None:
        """Written at once. Raises RemotingError, RequestTimeout."""
        with self._lock:
            self._offset, self._is_dirty = offset, False
        set_offset(self._brokers, self._group, self._queue, offset)

    def write(self) -> None:
        """Write what is new, without waiting."""
        offset = self._taken()
        if offset is not None:
            self._brokers.tell(self._queue.broker_name, _update(self._group, self._queue, offset))

    def write_and_wait(self) -> None:
        """Write what is new, and wait until the broker has it. Raises RemotingError, RequestTimeout."""
        offset = self._taken()
        if offset is not None:
            self.set(offset)

    def _taken(self) -> int | None:
        with self._lock:
            if not self._is_dirty:
                return None
            self._is_dirty = False
            return self._offset
