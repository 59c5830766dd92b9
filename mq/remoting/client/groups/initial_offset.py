"""The initial offset of a queue for which a group has no offset: `consume_from`.

RocketMQ: client/impl/consumer/RebalancePushImpl.java, computePullFromWhere. RocketMQ's rule for "last"
depends on what is in the page cache; this one does not.
"""

from __future__ import annotations

from collections.abc import Iterable

from mq.api.results import MessageQueue
from mq.errors import NotPermitted, RemotingError, RequestTimeout
from mq.names import RETRY_PREFIX
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections.answers import body_of
from mq.remoting.client.namespace import Namespace
from mq.remoting.codec.bodies.consuming import ConsumerOffsets
from mq.remoting.codec.requests.offsets import (
    GetAllConsumerOffset,
    GetMaxOffset,
    GetMinOffset,
    SearchOffsetByTimestamp,
)

__all__ = ["InitialOffset"]


class InitialOffset:
    """queues: those that exist when the group begins. "last" means their current end, and 0 for later
    queues. Where a broker is away it is the end that the queue has when it is first taken."""

    def __init__(
        self,
        brokers: Brokers,
        namespace: Namespace,
        consume_from: str | int,
        queues: Iterable[MessageQueue] = (),
    ) -> None:
        self._brokers = brokers
        self._namespace = namespace
        self._consume_from = consume_from
        self._ends: dict[MessageQueue, int] = {}
        self._unknown: set[MessageQueue] = set()
        if consume_from == "last":
            for queue in queues:
                self._note_end(queue)

    def offset(self, queue: MessageQueue) -> int | None:
        """The initial offset; None: that of the oldest message. Raises RemotingError, RequestTimeout."""
        if self._is_first(queue):
            return self._first(queue)
        if self._consume_from == "last":
            if queue in self._unknown:
                self._ends[queue] = self._end(queue)
                self._unknown.discard(queue)
            return self._ends.get(queue)
        assert isinstance(self._consume_from, int)
        wire = self._namespace.wire_queue(queue)
        request = SearchOffsetByTimestamp(wire.topic, wire.queue_id, self._consume_from)
        return self._brokers.offset(queue.broker_name, request)

    def is_placeholder(self, wire_group: str, wire_queue: MessageQueue) -> bool:
        """Whether the broker's answer 0 means that the group has no offset: 4.9 answers so for a queue whose
        first message is still in memory."""
        if self._is_first(wire_queue):
            return False
        answer = self._brokers.ask(wire_queue.broker_name, GetAllConsumerOffset())
        known = body_of(ConsumerOffsets, answer).offset_table
        return wire_queue.queue_id not in known.get(f"{wire_queue.topic}@{wire_group}", {})

    def _is_first(self, queue: MessageQueue) -> bool:
        return self._consume_from == "first" or queue.topic.startswith(RETRY_PREFIX)

    def _first(self, queue: MessageQueue) -> int:
        """The oldest offset; 0 if the client may consume but not ask: then the first pull corrects it."""
        wire = self._namespace.wire_queue(queue)
        try:
            return self._brokers.offset(queue.broker_name, GetMinOffset(wire.topic, wire.queue_id))
        except NotPermitted:
            return 0

    def _note_end(self, queue: MessageQueue) -> None:
        if any(queue.broker_name == other.broker_name for other in self._unknown):
            self._unknown.add(queue)  # Each question to a broker that hangs takes the whole limit.
            return
        try:
            self._ends[queue] = self._end(queue)
        except (RemotingError, RequestTimeout) as error:
            if isinstance(error, RemotingError) and error.code is not None:
                raise  # The broker is there, and refuses.
            self._unknown.add(queue)

    def _end(self, queue: MessageQueue) -> int:
        wire = self._namespace.wire_queue(queue)
        return self._brokers.offset(queue.broker_name, GetMaxOffset(wire.topic, wire.queue_id))
