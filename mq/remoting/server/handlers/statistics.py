"""Where queues and groups are, as operators and their tools ask: ends, progress, who consumes, who produces.

RocketMQ: broker/processor/AdminBrokerProcessor.java (getTopicStatsInfo, getConsumeStats).
"""

from __future__ import annotations

from mq.errors import NotPermitted, TopicNotFound
from mq.names import check_group, check_topic
from mq.remoting.codec.bodies.consuming import Connection, ProducerConnections
from mq.remoting.codec.bodies.route import TopicNames
from mq.remoting.codec.bodies.stats import (
    ConsumeStats,
    GroupNames,
    QueueEnds,
    QueueProgress,
    TopicStats,
)
from mq.remoting.codec.requests.name_servers import GetTopicsOfCluster
from mq.remoting.codec.requests.statistics import (
    GetConsumeStats,
    GetProducerConnections,
    GetTopicStats,
    QueryTopicConsumers,
    QueryTopicsByConsumer,
)
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.figures import WINDOWS
from mq.remoting.server.options import CLUSTER
from mq.remoting.server.replies import Refusal, Reply

__all__ = ["handlers"]

handlers = Handlers()


@handlers.on(GetTopicStats)
def topic_stats(request: GetTopicStats, call: Call) -> Reply:
    """The ends of every queue, when its last message was stored, and the rate of the last minute."""
    check_topic(request.topic)
    broker = call.served.broker
    table = {}
    for queue in broker.readable(request.topic):
        begin, end = broker.min_offset(queue), broker.max_offset(queue)
        table[queue] = QueueEnds(begin, end, call.served.stored_ms(queue, end - 1) if end > begin else 0)
    minute = call.served.figures.stored([request.topic], WINDOWS[0])[0]
    return Reply(body=TopicStats(table, minute.per_second))


@handlers.on(GetConsumeStats)
def consume_stats(request: GetConsumeStats, call: Call) -> Reply:
    """How far a group is in each queue; a queue of which it has committed nothing begins at its least offset,
    as the group will."""
    group, broker = request.consumer_group, call.served.broker
    check_group(group)
    if group not in broker.groups():
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"group {group} does not exist: it does once a consumer of it has started or an offset was set",
        )
    named = [name for name in (request.topic_list or "").split(";") if name]
    topics = [request.topic] if request.topic else named or broker.consumer_groups.topics(group)
    table = {}
    for topic in topics:
        check_topic(topic)
        try:
            queues = broker.readable(topic)
        except (TopicNotFound, NotPermitted):
            continue  # Its offsets outlive a topic.
        offsets = broker.consumer_groups.offsets(group, topic)
        for queue in queues:
            begin, end = broker.min_offset(queue), broker.max_offset(queue)
            committed = offsets.get(queue)
            at = begin if committed is None else committed
            consumed_ms = call.served.stored_ms(queue, at - 1) if begin < at <= end else 0
            table[queue] = QueueProgress(end, at, consumed_ms, at)
    figures = call.served.figures
    tps = sum(figures.consumed(group, topic)[0].per_second for topic in {queue.topic for queue in table})
    return Reply(body=ConsumeStats(table, tps))


@handlers.on(QueryTopicConsumers)
def consumers_of(request: QueryTopicConsumers, call: Call) -> Reply:
    """The groups that subscribe to a topic, or have offsets of it."""
    check_topic(request.topic)
    broker = call.served.broker
    found = [name for name in broker.groups() if request.topic in broker.consumer_groups.topics(name)]
    return Reply(body=GroupNames(tuple(sorted(found))))


@handlers.on(QueryTopicsByConsumer)
def topics_of(request: QueryTopicsByConsumer, call: Call) -> Reply:
    """The topics of a group."""
    check_group(request.group)
    return Reply(body=TopicNames(tuple(sorted(call.served.broker.consumer_groups.topics(request.group)))))


@handlers.on(GetProducerConnections)
def producers(request: GetProducerConnections, call: Call) -> Reply:
    """The producers of a group that are connected to this server."""
    group = request.producer_group
    check_group(group)
    found = call.served.members.producers(group)
    if not found:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"no producer of group {group} is connected to this server")
    return Reply(
        body=ProducerConnections(
            tuple(Connection(name, at.address, at.language.name, at.version) for at, name in found)
        )
    )


@handlers.on(GetTopicsOfCluster)
def topics_of_cluster(request: GetTopicsOfCluster, call: Call) -> Reply:
    """All topics: there is one cluster."""
    if request.cluster != CLUSTER:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, f"cluster {request.cluster!r} does not exist: {CLUSTER!r} does"
        )
    return Reply(body=TopicNames(tuple(call.served.broker.topics())))
