"""The topics of a cluster: their queues; create, change and delete topics.

A topic is created on every broker that has a master, with the same number of queues on each.
RocketMQ: client/impl/factory/MQClientInstance.java, tools/admin/DefaultMQAdminExtImpl.java.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic, sleep

from mq.api.results import MessageQueue
from mq.api.topic import TopicChange
from mq.errors import MQError, NotPermitted, RemotingError, RequestTimeout
from mq.fastpath import time_left
from mq.names import DEAD_PREFIX, RETRY_PREFIX, UNSENDABLE_TOPICS, check_topic, is_system_topic
from mq.remoting.client.broker_errors import denied, no_route
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections.answers import body_of, checked
from mq.remoting.client.connections.name_servers import NameServers
from mq.remoting.client.namespace import Namespace
from mq.remoting.client.routing import readable_queues, writable_queues
from mq.remoting.client.sending import INHERITED_QUEUE_COUNT, INHERITED_TOPIC
from mq.remoting.codec.bodies.route import READ, WRITE, QueueCounts, TopicNames, TopicRoute
from mq.remoting.codec.bodies.settings import TopicSettings, TopicTable
from mq.remoting.codec.requests.name_servers import DeleteTopicInNameServer, GetTopicList
from mq.remoting.codec.requests.topics import DeleteTopicInBroker, GetAllTopics, GetTopic, UpdateTopic
from mq.remoting.codec.response_codes import ResponseCode

__all__ = ["RemoteTopics"]

QUEUE_COUNT = 4  # of a new topic
QUEUE_COUNT_MAX = 1024  # of a topic on one broker
ROUTE_SECONDS, ROUTE_LOOK_SECONDS = 10.0, 0.05
ANY = TopicChange(None, None, None, None, shrink=False)  # a topic of this name, whatever it is like
PERMS = {"": 0, "r": READ, "w": WRITE, "rw": READ | WRITE}
_OWN_PREFIXES = (RETRY_PREFIX, DEAD_PREFIX)


class RemoteTopics:
    """The topics of one broker object. Thread-safe."""

    def __init__(self, brokers: Brokers, name_servers: NameServers, namespace: Namespace) -> None:
        self._brokers = brokers
        self._name_servers = name_servers
        self._namespace = namespace
        self._lock = threading.Lock()  # guards what follows
        self._version = 0
        brokers.cluster.changed.append(self._route_changed)

    def version(self) -> int:
        """See Queues.route_version."""
        return self._version

    def publishable(self, topic: str) -> Sequence[MessageQueue]:
        """See Queues.publishable."""
        self._brokers.remoting.check_open()
        check_topic(topic)
        if topic in UNSENDABLE_TOPICS:
            raise NotPermitted(f"{topic} is one of RocketMQ's own topics: clients may not send to it")
        route = self._route(topic, time_left())  # as long as its send may wait
        if route is None:
            return self._inherit(topic)
        queues = writable_queues(topic, route)
        if not queues:
            raise self._closed(topic, "written")
        return queues

    def readable(self, topic: str) -> Sequence[MessageQueue]:
        """See Queues.readable."""
        route = self.known(topic)
        queues = readable_queues(topic, route)
        if not queues:
            raise self._closed(topic, "read")
        return queues

    def known(self, topic: str) -> TopicRoute:
        """The route of a topic. Raises TopicNotFound."""
        self._brokers.remoting.check_open()
        check_topic(topic)
        route = self._route(topic)
        if route is None:
            raise no_route(topic, self._brokers.cluster.name_servers)
        return route

    def check_writable(self, queue: MessageQueue) -> None:
        """Raises if a queue may not be sent to: a broker checks neither the topic's permission nor a negative
        queue id."""
        self._check_among(queue, self.publishable(queue.topic), "sent to")

    def check_readable(self, queue: MessageQueue) -> None:
        """Raises if a queue may not be read."""
        self._check_among(queue, self.readable(queue.topic), "read")

    def exists(self, topic: str) -> bool:
        return self._fresh(topic) is not None

    def names(self) -> list[str]:
        """See Broker.topics."""
        answer = self._name_servers.call(GetTopicList())
        checked(answer, GetTopicList, self._name_servers.chosen)
        own = set(self._brokers.names()) | self._brokers.cluster_names()
        return sorted(
            self._namespace.plain(name)
            for name in body_of(TopicNames, answer).topic_list
            if self._namespace.holds(name)
            and name not in own
            and not is_system_topic(name)
            and not name.startswith(_OWN_PREFIXES)
            and not name.endswith("_REPLY_TOPIC")
        )

    def change(self, topic: str, change: TopicChange) -> None:
        """See Broker.change_topic. The counts are per broker."""
        for count in (change.read_queue_count, change.write_queue_count):
            if count is not None and count > QUEUE_COUNT_MAX:
                raise ValueError(
                    f"a topic of a cluster has 1 to {QUEUE_COUNT_MAX:,} queues on each broker, not {count:,}"
                )
        route = self._fresh(topic)
        known = {} if route is None else {each.broker_name: each for each in route.queue_datas}
        asks_for_any = replace(change, shrink=False) == ANY
        if asks_for_any and known.keys() >= set(self._brokers.names()) and known:
            return  # No broker is sent anything, so none needs a master.
        # All are made before one is sent, so that a refusal changes nothing.
        requests = {
            name: self._request(name, topic, known.get(name), change)
            for name in self._brokers.masters(() if asks_for_any else known)
            # A request would end a shrinking that is under way, of which the route does not tell.
            if name not in known or not asks_for_any
        }
        for name, request in requests.items():
            try:
                self._brokers.ask(name, request, only_master=True)
            except RemotingError as error:
                raise _without_shrink(error) if change.shrink else error from None
        self._wait_for_route(topic, requests)

    def delete(self, topic: str) -> None:
        """See Broker.delete_topic."""
        check_topic(topic)
        if is_system_topic(topic):
            raise NotPermitted(f"{topic} is RocketMQ's own: it cannot be deleted")
        if self._fresh(topic) is None:
            raise no_route(topic, self._brokers.cluster.name_servers)
        wire = self._namespace.wire(topic)
        for name in self._brokers.masters():
            self._brokers.ask(name, DeleteTopicInBroker(wire), only_master=True)
        for address, answer in self._name_servers.call_all(DeleteTopicInNameServer(wire)).items():
            if isinstance(answer, MQError):
                raise answer
            checked(answer, DeleteTopicInNameServer, address)
        self._fresh(topic)

    def forget(self, topic: str) -> None:
        """Drop the route of a topic, since a broker no longer has the topic."""
        self._brokers.cluster.forget(self._namespace.wire(topic))
        self._changed()

    def _request(
        self,
        broker_name: str,
        topic: str,
        known: QueueCounts | None,
        change: TopicChange,
    ) -> UpdateTopic:
        """The request for this broker, with its present settings where `change` gives none."""
        reads = change.read_queue_count or (known.read_queue_nums if known else QUEUE_COUNT)
        writes = change.write_queue_count or (known.write_queue_nums if known else QUEUE_COUNT)
        perm, ordered = change.perm, change.ordered
        if known is not None and reads < known.read_queue_nums and not change.shrink:
            raise NotPermitted(
                f"topic {topic!r} has {known.read_queue_nums} queues to read on broker {broker_name!r}: with"
                f" {reads} the messages in the others could not be read any more; consume them first, then"
                " give shrink=True"
            )
        return UpdateTopic(
            topic=self._namespace.wire(topic),
            default_topic=INHERITED_TOPIC,
            read_queue_nums=reads,
            write_queue_nums=writes,
            perm=PERMS[perm] if perm is not None else known.perm if known else READ | WRITE,
            topic_filter_type="SINGLE_TAG",
            order=self._is_ordered(broker_name, topic) if known and ordered is None else bool(ordered),
            topic_sys_flag=known.topic_sys_flag if known else 0,
        )

    def _is_ordered(self, broker_name: str, topic: str) -> bool:
        settings = self._settings(broker_name, topic)
        return settings is not None and settings.order

    def _settings(self, broker_name: str, topic: str) -> TopicSettings | None:
        """A topic's settings on a broker; 4.9 returns those of all topics together."""
        wire = self._namespace.wire(topic)
        also = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.TOPIC_NOT_EXIST)
        answer = self._brokers.ask(broker_name, GetTopic(wire), also=also)
        if answer.code == ResponseCode.SUCCESS:
            return body_of(TopicSettings, answer)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        answer = self._brokers.ask(broker_name, GetAllTopics())
        return body_of(TopicTable, answer).topic_config_table.get(wire)

    def _route(self, topic: str, timeout: float | None = None) -> TopicRoute | None:
        return self._brokers.cluster.route(self._namespace.wire(topic), timeout)

    def _fresh(self, topic: str) -> TopicRoute | None:
        return self._brokers.cluster.refresh(self._namespace.wire(topic))

    def _wait_for_route(self, topic: str, made: Mapping[str, UpdateTopic]) -> None:
        """Wait until a name server has the route: brokers answer before they have registered the change."""
        deadline = monotonic() + ROUTE_SECONDS
        while True:
            route = self._fresh(topic)
            known = {} if route is None else {each.broker_name: each for each in route.queue_datas}
            if all(name in known and _is_as_made(known[name], request) for name, request in made.items()):
                break
            if monotonic() > deadline:
                raise RequestTimeout(
                    f"the brokers have topic {topic!r}, but after {ROUTE_SECONDS:g} s no name server has all"
                    f" its queues; asked was {self._brokers.cluster.name_servers}",
                    address=self._brokers.cluster.name_servers,
                )
            sleep(ROUTE_LOOK_SECONDS)

    def _inherit(self, topic: str) -> Sequence[MessageQueue]:
        route = self._brokers.cluster.route(INHERITED_TOPIC, time_left())
        # The first message creates the topic, with the queue count of the template topic, up to a limit.
        queues = [] if route is None else writable_queues(topic, route, INHERITED_QUEUE_COUNT)
        if not queues:
            raise no_route(topic, self._brokers.cluster.name_servers)
        return queues

    def _closed(self, topic: str, done: str) -> RemotingError:
        """The error for a topic whose permission excludes that it is read or written."""
        asked = self._brokers.cluster.name_servers
        return denied(
            f"topic {topic!r} may not be {done} on any broker of the cluster, by its route from {asked}",
            asked,
        )

    def _check_among(self, queue: MessageQueue, queues: Sequence[MessageQueue], done: str) -> None:
        """Raises ValueError if the broker does not have the queue, and RemotingError if the broker is in no
        route: it may come back."""
        if queue in queues:
            return
        where = f"topic {queue.topic!r} has no queue {queue.queue_id} on broker {queue.broker_name!r}"
        if any(queue.broker_name == each.broker_name for each in queues):
            raise ValueError(f"{where} that is {done}")
        known = ", ".join(sorted({each.broker_name for each in queues}))
        asked = self._brokers.cluster.name_servers
        raise RemotingError(
            f"{where} now; the brokers that have some are: {known}; asked was the name server at {asked}",
            address=asked,
        )

    def _route_changed(self, _topic: str, _route: TopicRoute | None) -> None:
        self._changed()

    def _changed(self) -> None:
        with self._lock:
            self._version += 1


def _without_shrink(error: RemotingError) -> RemotingError:
    """The refusal of mq's own server, which advises a shrink=True that no request can carry."""
    told, advised, _ = str(error).partition(" Give shrink=True")
    if not advised:
        return error
    text = f"{told} Have these messages consumed first, or shrink the topic in the directory that is served"
    return denied(text, error.address, code=error.code, remark=error.remark or "")


def _is_as_made(known: QueueCounts, request: UpdateTopic) -> bool:
    return (known.read_queue_nums, known.write_queue_nums, known.perm) == (
        request.read_queue_nums,
        request.write_queue_nums,
        request.perm,
    )
