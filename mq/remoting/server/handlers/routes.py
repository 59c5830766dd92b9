"""Where topics are: what a client asks of name servers. Every topic is here.

RocketMQ: namesrv/processor/ClientRequestProcessor.java, namesrv/routeinfo/RouteInfoManager.java.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mq.api.results import MessageQueue
from mq.errors import NotPermitted, TopicNotFound
from mq.names import RETRY_PREFIX, SYSTEM_TOPICS, check_topic
from mq.remoting.codec.bodies.route import (
    INHERIT,
    MASTER_ID,
    READ,
    WRITE,
    BrokerAddresses,
    ClusterInfo,
    QueueCounts,
    TopicNames,
    TopicRoute,
)
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.language import STANDARD_JSON_VERSION
from mq.remoting.codec.requests.name_servers import GetClusterInfo, GetRoute, GetSystemTopics, GetTopicList
from mq.remoting.codec.requests.topics import GetSystemTopicsOfBroker
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.options import CLUSTER, REPLY_TOPIC
from mq.remoting.server.replies import Refusal, Reply
from mq.remoting.server.served import Served

__all__ = ["handlers", "queue_counts"]

handlers = Handlers()

TEMPLATE_TOPIC = "TBW102"  # whose settings a topic gets that the first message makes
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
UNKNOWN_TOPIC = "mq_no_topic_of_this_name"
HOW_TO = "make it with broker.create_topic, mqadmin updateTopic, or by sending to it where that is allowed"


@handlers.on(GetRoute)
def route(request: GetRoute, call: Call) -> Reply:
    counts = queue_counts(call.served, request.topic)
    group = request.topic.removeprefix(RETRY_PREFIX)
    if not counts and group != request.topic and group in call.served.broker.groups():
        call.served.members.have_retry_topic(group)
        counts = queue_counts(call.served, request.topic)
    if not counts and request.topic == REPLY_TOPIC:
        # Which no client makes by sending to it.
        call.served.broker.create_topic(REPLY_TOPIC, 1)
        counts = queue_counts(call.served, REPLY_TOPIC)
    if not counts and request.topic == TRACE_TOPIC:
        # A client that asks for the template, too, may be closed before its trace is sent.
        counts = queue_counts(call.served, TEMPLATE_TOPIC)
    if not counts and request.topic == CLUSTER:
        # Tools look for the brokers of a cluster by the route of its name.
        counts = queue_counts(call.served, TEMPLATE_TOPIC) or (QueueCounts(call.served.broker.name, 1, 1, 0),)
    if not counts:
        raise Refusal(
            ResponseCode.TOPIC_NOT_EXIST,
            f"No topic route info in name server for the topic: {request.topic}: {HOW_TO}",
        )
    address = call.served.address(call.connection)
    names = [each.broker_name for each in counts]
    body = TopicRoute(brokers(names, address), counts)
    is_standard = call.frame.version >= STANDARD_JSON_VERSION or bool(request.accept_standard_json_only)
    return Reply(body=to_json(body, quoted_numbers=is_standard))


@handlers.on(GetClusterInfo)
def cluster(_: GetClusterInfo, call: Call) -> Reply:
    found = brokers([call.served.broker.name], call.served.address(call.connection))
    names = tuple(each.broker_name for each in found)
    return Reply(body=ClusterInfo({each.broker_name: each for each in found}, {CLUSTER: names}))


@handlers.on(GetTopicList)
def topics(_: GetTopicList, call: Call) -> Reply:
    """All of them. By their retry topics tools find the groups, those of local consumers among them."""
    for group in call.served.broker.groups():
        call.served.members.have_retry_topic(group)
    return Reply(body=TopicNames(tuple(call.served.broker.topics())))


@handlers.on(GetSystemTopics)
def cluster_topics(_: GetSystemTopics, call: Call) -> Reply:
    """The names of cluster and broker, which are topics to RocketMQ, and where the rest of them is told."""
    names = (CLUSTER, call.served.broker.name)
    return Reply(body=TopicNames(names, call.served.address(call.connection)))


@handlers.on(GetSystemTopicsOfBroker)
def system_topics(_: GetSystemTopicsOfBroker, _call: Call) -> Reply:
    """RocketMQ's own, whether there are any messages in them or not."""
    return Reply(body=TopicNames(tuple(sorted(SYSTEM_TOPICS))))


def brokers(names: Sequence[str], address: str) -> tuple[BrokerAddresses, ...]:
    """Brokers of these names, all at one address."""
    return tuple(BrokerAddresses(name, {MASTER_ID: address}, CLUSTER) for name in names)


def queue_counts(served: Served, topic: str) -> tuple[QueueCounts, ...]:
    """How many queues each broker has of a topic, and what may be done there; nothing for no topic.

    Of a topic that may not be read, or written, the border does not say with how many queues: as many as it
    had when it might, else as many as for the other."""
    broker = served.broker
    if topic == TEMPLATE_TOPIC:
        try:
            made = broker.publishable(UNKNOWN_TOPIC)
        except (TopicNotFound, NotPermitted):
            return ()
        return tuple(
            QueueCounts(name, count, count, READ | WRITE | INHERIT)
            for name, count in sorted(_count(made).items())
        )
    check_topic(topic)
    perm, readable, writable = READ | WRITE, Counter[str](), Counter[str]()
    try:
        readable = _count(broker.readable(topic))
    except TopicNotFound:
        return ()
    except NotPermitted:
        perm &= ~READ
    try:
        writable = _count(broker.publishable(topic))
    except TopicNotFound:
        return ()
    except NotPermitted:
        perm &= ~WRITE
    before = served.counts.get(topic, (Counter[str](), Counter[str]()))
    readable = readable or before[0] or writable
    writable = writable or before[1] or readable
    served.counts[topic] = readable, writable
    names = sorted(readable.keys() | writable.keys()) or [broker.name]
    return tuple(QueueCounts(name, readable[name], writable[name], perm) for name in names)


def _count(queues: Sequence[MessageQueue]) -> Counter[str]:
    return Counter(queue.broker_name for queue in queues)
