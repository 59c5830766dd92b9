"""RemoteBroker: mq.api's Broker over connections to an Apache RocketMQ cluster.

Each of its parts is one module of this package. This module creates them, and closes them in reverse order.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from mq.api.broker import Broker
from mq.api.bulk import Row
from mq.api.local import Directory, no_directory
from mq.api.queues import Appender, Puller
from mq.api.results import MessageQueue, SendResult
from mq.api.topic import Topic, TopicChange
from mq.api.waiter import Waiter
from mq.errors import MQError, NotSupported
from mq.message import Message, MessageExt
from mq.names import check_group, check_topic
from mq.remoting.client.arrivals import Arrivals
from mq.remoting.client.broker_errors import no_route
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.columns.scans import RemoteScans
from mq.remoting.client.connections.addresses import parse_addresses
from mq.remoting.client.connections.cluster import Cluster
from mq.remoting.client.connections.name_servers import NameServers
from mq.remoting.client.connections.options import RemotingOptions
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.client.groups.consumer_groups import RemoteConsumerGroups
from mq.remoting.client.heartbeats import Heartbeats
from mq.remoting.client.message_query import MessageQuery
from mq.remoting.client.namespace import Namespace
from mq.remoting.client.queues import RemoteQueues
from mq.remoting.client.sending import Sending
from mq.remoting.client.topics import RemoteTopics
from mq.remoting.client.transactions import RemoteTransactions
from mq.uninterrupted import handed_over, left_open

if TYPE_CHECKING:
    from mq.api.consumer_groups import ConsumerGroups

__all__ = ["RemoteBroker"]

log = logging.getLogger("mq.remoting")


class NoDirectory(NotSupported, AttributeError):
    """Raised for an attribute that only the broker of a directory has."""


class RemoteBroker(Broker):
    """The broker object of a cluster. Made by mq.open, which documents the options."""

    def __init__(self, name_servers: str, options: RemotingOptions, namespace: str = "") -> None:
        addresses = parse_addresses(name_servers)
        self._target = name_servers
        self._pid = os.getpid()
        self._is_dropped = False
        self._remoting = remoting = Remoting(name_servers, options)
        try:
            self._names = names = Namespace(namespace)
            servers = NameServers(remoting, addresses)
            cluster = Cluster(remoting, servers)
            self._brokers = brokers = Brokers(remoting, cluster)
            self._arrivals = arrivals = Arrivals()
            self._topics = topics = RemoteTopics(brokers, servers, names)
            self._sending = sending = Sending(
                brokers, names, topics.version, topics.check_writable, topics.forget
            )
            self._queues = queues = RemoteQueues(brokers, names, topics, sending, arrivals)
            heartbeats = Heartbeats(remoting, cluster)
            self._transactions = RemoteTransactions(brokers, names, heartbeats, sending)
            # No part refers to the broker object, so the last user's reference closes it.
            self._groups = RemoteConsumerGroups(
                brokers,
                names,
                arrivals,
                queues,
                topics.delete,
                lambda: Remoting(name_servers, options, remoting.events),
            )
            self._message_query = MessageQuery(brokers, names, topics)
        except BaseException:
            remoting.close()
            raise
        self._is_dropped = True  # true when __del__ runs, unless close() ran before

    @property
    def transactions(self) -> RemoteTransactions:
        return self._transactions

    @property
    def consumer_groups(self) -> ConsumerGroups:
        return self._groups

    # Topics.

    def change_topic(self, name: str, change: TopicChange) -> None:
        self._topics.change(name, change)

    def delete_topic(self, name: str) -> None:
        self._topics.delete(name)

    def topics(self) -> list[str]:
        return self._topics.names()

    def topic(self, name: str) -> Topic:
        check_topic(name)
        if not self._topics.exists(name):
            raise no_route(name, self._brokers.cluster.name_servers)
        return Topic(self, name)

    # Queues.

    @property
    def name(self) -> str:
        return self._queues.name

    @property
    def message_size_max(self) -> int:
        return self._queues.message_size_max

    @property
    def may_wait(self) -> bool:
        return self._queues.may_wait

    def route_version(self) -> int:
        return self._queues.route_version()

    def publishable(self, topic: str) -> Sequence[MessageQueue]:
        return self._queues.publishable(topic)

    def readable(self, topic: str) -> Sequence[MessageQueue]:
        return self._queues.readable(topic)

    def appender(self, queue: MessageQueue) -> Appender:
        return self._queues.appender(queue)

    def oneway_appender(self, queue: MessageQueue) -> Appender:
        return self._queues.oneway_appender(queue)

    def append_batch(self, queue: MessageQueue, messages: Sequence[Message]) -> SendResult:
        return self._queues.append_batch(queue, messages)

    def when_reachable(self, queue: MessageQueue, reached: Callable[[], object]) -> Callable[[], object]:
        return self._queues.when_reachable(queue, reached)

    def puller(self, queue: MessageQueue) -> Puller:
        return self._queues.puller(queue)

    def min_offset(self, queue: MessageQueue) -> int:
        return self._queues.min_offset(queue)

    def max_offset(self, queue: MessageQueue) -> int:
        return self._queues.max_offset(queue)

    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        return self._queues.offset_at(queue, time_ms)

    def waiter(self) -> Waiter:
        return self._queues.waiter()

    # Messages.

    def message(self, msg_id: str) -> MessageExt:
        return self._message_query.message(msg_id)

    def query(
        self, topic: str, key: str, *, count_max: int = 32, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[MessageExt]:
        check_topic(topic)
        return self._message_query.query(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)

    def recall(self, handle: str) -> str:
        return self._message_query.recall(handle)

    # Columns.

    def scans(self, group: str | None = None) -> RemoteScans:
        """See Cluster.scans."""
        if group is not None:
            check_group(group)
        return RemoteScans(self._brokers, self._names, self.route_version, group)

    def append_rows(self, queue: MessageQueue, rows: Sequence[Row]) -> SendResult:
        """See Cluster.append_rows."""
        return self._sending.append_rows(queue, rows)

    # The cluster.

    def flush(self) -> None:
        """Nothing: the broker's own flush settings decide when an acknowledged message is on disk."""
        self._remoting.check_open()

    @handed_over
    def close(self) -> None:
        self._close()

    @handed_over
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._is_dropped = False
        if os.getpid() != self._pid:
            return  # The connections are the parent's.
        try:
            self._transactions.close()
            self._groups.close()
        except MQError as error:
            log.warning("%s: the brokers could not be told of the close: %s", self._target, error)
        finally:
            try:
                self._remoting.close()
            finally:
                # Consumers and producers that wait are told that it is closed.
                self._arrivals.changed()
                self._transactions.wake_all()

    def __del__(self) -> None:
        if getattr(self, "_is_dropped", False) and sys is not None and not sys.is_finalizing():
            left_open(self._close, self, self._pid)

    if not TYPE_CHECKING:  # Type checkers should report these as missing attributes.

        def __getattr__(self, name: str) -> NoReturn:
            if not name.startswith("_") and hasattr(Directory, name):
                raise NoDirectory(str(no_directory(f"broker.{name}", repr(self))))
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"RemoteBroker({self._target!r})"
