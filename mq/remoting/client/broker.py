"""RemoteBroker: the border of mq.api over the connections to an Apache RocketMQ cluster.

Each of its parts is one room of this package; here they are made, and closed in the other order.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mq.api.broker import Broker
from mq.api.queues import Appender, Puller
from mq.api.results import MessageQueue, SendResult
from mq.api.topic import Topic
from mq.api.waiter import Waiter
from mq.errors import TopicNotFound
from mq.message import Message, MessageExt
from mq.names import check_topic
from mq.remoting.client.arrivals import Arrivals, RemoteWaiter
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections.addresses import parse_addresses
from mq.remoting.client.connections.cluster import Cluster
from mq.remoting.client.connections.name_servers import NameServers
from mq.remoting.client.connections.options import RemotingOptions
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.client.finding import Finding
from mq.remoting.client.groups.consumer_groups import RemoteConsumerGroups
from mq.remoting.client.heartbeats import Heartbeats
from mq.remoting.client.namespace import Namespace
from mq.remoting.client.queue_puller import QueuePuller
from mq.remoting.client.sending import Sending
from mq.remoting.client.topics import RemoteTopics
from mq.remoting.client.transactions import RemoteTransactions
from mq.remoting.codec.requests.offsets import GetMaxOffset, GetMinOffset, SearchOffsetByTimestamp

if TYPE_CHECKING:
    from mq.api.consumer_groups import ConsumerGroups

__all__ = ["RemoteBroker"]

log = logging.getLogger("mq.remoting")

MESSAGE_SIZE_MAX = 4 << 20  # RocketMQ's default; a broker that takes less says so


class RemoteBroker(Broker):
    """The broker object of a cluster. Made by mq.open, which documents the options."""

    def __init__(self, name_servers: str, options: RemotingOptions, namespace: str = "") -> None:
        addresses = parse_addresses(name_servers)
        self._target = name_servers
        self._options = options
        self._remoting = Remoting(name_servers, options)
        try:
            self._namespace = Namespace(namespace)
            self._name_servers = NameServers(self._remoting, addresses)
            self._cluster = Cluster(self._remoting, self._name_servers)
            self._brokers = Brokers(self._remoting, self._cluster)
            self._topics = RemoteTopics(self._brokers, self._name_servers, self._namespace)
            self._sending = Sending(self._brokers, self._namespace, self._topics.version, self._topics.forget)
            self._arrivals = Arrivals()
            self._heartbeats = Heartbeats(self._remoting, self._cluster)
            self._transactions = RemoteTransactions(
                self._brokers, self._namespace, self._heartbeats, self._sending
            )
            self._groups = RemoteConsumerGroups(
                self._brokers, self._namespace, self._arrivals, self, self._more_connections
            )
            self._finding = Finding(self._brokers, self._namespace, self._topics)
        except BaseException:
            self._remoting.close()
            raise

    @property
    def name(self) -> str:
        return self._target

    @property
    def message_size_max(self) -> int:
        return MESSAGE_SIZE_MAX

    @property
    def may_wait(self) -> bool:
        return True

    @property
    def transactions(self) -> RemoteTransactions:
        return self._transactions

    @property
    def consumer_groups(self) -> ConsumerGroups:
        return self._groups

    # Topics.

    def create_topic(
        self,
        name: str,
        queue_count: int | None = None,
        *,
        read_queue_count: int | None = None,
        write_queue_count: int | None = None,
        perm: str | None = None,
        ordered: bool | None = None,
        shrink: bool = False,
    ) -> Topic:
        """See Broker.create_topic. Counts are those of each broker of the cluster."""
        self._topics.create(
            name,
            queue_count if read_queue_count is None else read_queue_count,
            queue_count if write_queue_count is None else write_queue_count,
            perm,
            ordered,
            shrink=shrink,
        )
        return Topic(self, name)

    def delete_topic(self, name: str) -> None:
        self._topics.delete(name)

    def topics(self) -> list[str]:
        return self._topics.names()

    def topic(self, name: str) -> Topic:
        check_topic(name)
        if not self._topics.exists(name):
            raise TopicNotFound(name)
        return Topic(self, name)

    # Queues.

    def route_version(self) -> int:
        self._remoting.check_open()
        return self._topics.version()

    def publishable(self, topic: str) -> Sequence[MessageQueue]:
        return self._topics.publishable(topic)

    def readable(self, topic: str) -> Sequence[MessageQueue]:
        return self._topics.readable(topic)

    def appender(self, queue: MessageQueue) -> Appender:
        return self._sending.appender(queue)

    def append_batch(self, queue: MessageQueue, messages: Sequence[Message]) -> SendResult:
        return self._sending.append_batch(queue, messages)

    def puller(self, queue: MessageQueue) -> Puller:
        return QueuePuller(self._brokers, queue, self._namespace.wire_queue(queue))

    def min_offset(self, queue: MessageQueue) -> int:
        wire = self._namespace.wire_queue(queue)
        return self._brokers.offset(queue.broker_name, GetMinOffset(wire.topic, wire.queue_id))

    def max_offset(self, queue: MessageQueue) -> int:
        wire = self._namespace.wire_queue(queue)
        return self._brokers.offset(queue.broker_name, GetMaxOffset(wire.topic, wire.queue_id))

    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        wire = self._namespace.wire_queue(queue)
        request = SearchOffsetByTimestamp(wire.topic, wire.queue_id, time_ms)
        return self._brokers.offset(queue.broker_name, request)

    def waiter(self) -> Waiter:
        return RemoteWaiter(self._arrivals, self._remoting.check_open)

    # Messages.

    def message(self, msg_id: str) -> MessageExt:
        return self._finding.message(msg_id)

    def query(
        self, topic: str, key: str, *, count_max: int = 32, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[MessageExt]:
        check_topic(topic)
        return self._finding.query(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)

    def recall(self, handle: str) -> str:
        return self._finding.recall(handle)

    # Consumer groups.

    def groups(self) -> list[str]:
        return self._groups.groups()

    # The cluster.

    def flush(self) -> None:
        """Nothing: what a broker acknowledged is as safe as its own settings make it."""
        self._remoting.check_open()

    def close(self) -> None:
        try:
            self._transactions.close()
            self._groups.close()
        except Exception:
            log.exception("%s: not everything was told when it was closed", self._target)
        finally:
            self._remoting.close()

    def __repr__(self) -> str:
        return f"RemoteBroker({self._target!r})"

    def _more_connections(self) -> Remoting:
        return Remoting(self._target, self._options)
