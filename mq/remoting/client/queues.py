"""The queues of a cluster's topics: see mq.api.queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mq.api.queues import Appender, Puller, Queues
from mq.api.results import MessageQueue, SendResult
from mq.api.waiter import Waiter
from mq.message import Message
from mq.remoting.client.arrivals import Arrivals, RemoteWaiter
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.namespace import Namespace
from mq.remoting.client.queue_puller import QueuePuller
from mq.remoting.client.reachability import Reachability
from mq.remoting.client.sending import Sending
from mq.remoting.client.topics import RemoteTopics
from mq.remoting.codec.requests.offsets import GetMaxOffset, GetMinOffset, SearchOffsetByTimestamp

__all__ = ["RemoteQueues"]

MESSAGE_SIZE_MAX = 4 << 20  # RocketMQ's default; a broker with a smaller limit rejects the message itself


class RemoteQueues(Queues):
    """The queues of one broker object, also for the use of its parts."""

    def __init__(
        self,
        brokers: Brokers,
        namespace: Namespace,
        topics: RemoteTopics,
        sending: Sending,
        arrivals: Arrivals,
    ) -> None:
        self._brokers = brokers
        self._namespace = namespace
        self._topics = topics
        self._sending = sending
        self._arrivals = arrivals
        self._reachability = Reachability(brokers, namespace)

    @property
    def name(self) -> str:
        """The name servers. Queues and messages have the names of their own brokers."""
        return self._brokers.remoting.name

    @property
    def message_size_max(self) -> int:
        return MESSAGE_SIZE_MAX

    @property
    def may_wait(self) -> bool:
        return True

    def route_version(self) -> int:
        self._brokers.remoting.check_open()
        return self._topics.version()

    def publishable(self, topic: str) -> Sequence[MessageQueue]:
        return self._topics.publishable(topic)

    def readable(self, topic: str) -> Sequence[MessageQueue]:
        return self._topics.readable(topic)

    def appender(self, queue: MessageQueue) -> Appender:
        return self._sending.appender(queue)

    def oneway_appender(self, queue: MessageQueue) -> Appender:
        return self._sending.oneway_appender(queue)

    def append_batch(self, queue: MessageQueue, messages: Sequence[Message]) -> SendResult:
        return self._sending.append_batch(queue, messages)

    def when_reachable(self, queue: MessageQueue, reached: Callable[[], object]) -> Callable[[], object]:
        return self._reachability.when_reachable(queue, reached)

    def puller(self, queue: MessageQueue) -> Puller:
        return QueuePuller(self._brokers, queue, self._namespace, self._topics)

    def min_offset(self, queue: MessageQueue) -> int:
        self._topics.known(queue.topic)  # A broker answers for any topic, even for a missing one.
        wire = self._namespace.wire_queue(queue)
        return self._brokers.offset(queue.broker_name, GetMinOffset(wire.topic, wire.queue_id))

    def max_offset(self, queue: MessageQueue) -> int:
        self._topics.known(queue.topic)
        wire = self._namespace.wire_queue(queue)
        return self._brokers.offset(queue.broker_name, GetMaxOffset(wire.topic, wire.queue_id))

    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        self._topics.known(queue.topic)
        wire = self._namespace.wire_queue(queue)
        request = SearchOffsetByTimestamp(wire.topic, wire.queue_id, time_ms)
        return self._brokers.offset(queue.broker_name, request)

    def waiter(self) -> Waiter:
        return RemoteWaiter(self._arrivals, self._brokers.remoting.check_open)
