"""Where a group of a cluster begins with a queue of which it has no offset: `consume_from`.

RocketMQ: client/impl/consumer/RebalancePushImpl.java, computePullFromWhere. Its own rule for the end goes by
what happens to be in memory; this one does not.
"""

from __future__ import annotations

from collections.abc import Iterable

from mq.api.results import MessageQueue
from mq.errors import NotPermitted
from mq.names import RETRY_PREFIX
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.namespace import Namespace
from mq.remoting.codec.bodies.consuming import ConsumerOffsets
from mq.remoting.codec.json_body import from_json
from mq.remoting.codec.requests.offsets import (
    GetAllConsumerOffset,
    GetMaxOffset,
    GetMinOffset,
    SearchOffsetByTimestamp,
)

__all__ = ["Starting"]


class Starting:
    """`queues` are those there are when the group begins: "last" is their end now, and 0 of later ones."""

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
        if consume_from == "last":
            self._ends = {queue: self._end(queue) for queue in queues}

    def offset(self, queue: MessageQueue) -> int | None:
        """Where to begin; None: at the oldest message. Raises RemotingError, RequestTimeout."""
        if self._is_first(queue):
            return self._first(queue)
        if self._consume_from == "last":
            return self._ends.get(queue)
        assert isinstance(self._consume_from, int)
        wire = self._namespace.wire_queue(queue)
        request = SearchOffsetByTimestamp(wire.topic, wire.queue_id, self._consume_from)
        return self._brokers.offset(queue.broker_name, request)

    def is_made_up(self, wire_group: str, wire_queue: MessageQueue) -> bool:
        """Whether the group has no offset of a queue although its broker said 0: 4.9 does so of a queue whose
        first message it still has in memory."""
        if self._is_first(wire_queue):
            return False
        answer = self._brokers.ask(wire_queue.broker_name, GetAllConsumerOffset())
        known = from_json(ConsumerOffsets, answer.body).offset_table
        return wire_queue.queue_id not in known.get(f"{wire_queue.topic}@{wire_group}", {})

    def _is_first(self, queue: MessageQueue) -> bool:
        return self._consume_from == "first" or queue.topic.startswith(RETRY_PREFIX)

    def _first(self, queue: MessageQueue) -> int:
        """The oldest message; 0 where one that may consume may not ask, and the first pull is put right."""
        wire = self._namespace.wire_queue(queue)
        try:
            return self._brokers.offset(queue.broker_name, GetMinOffset(wire.topic, wire.queue_id))
        except NotPermitted:
            return 0

    def _end(self, queue: MessageQueue) -> int:
        wire = self._namespace.wire_queue(queue)
        return self._brokers.offset(queue.broker_name, GetMaxOffset(wire.topic, wire.queue_id))
