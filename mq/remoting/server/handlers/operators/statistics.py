"""Where queues and groups are, as operators and their tools ask: ends, progress, who consumes, who produces.

RocketMQ: broker/processor/AdminBrokerProcessor.java (getTopicStatsInfo, getConsumeStats).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from time import monotonic

from mq.errors import NotPermitted, TopicNotFound
from mq.names import check_group, check_topic
from mq.remoting.codec.bodies.consuming import Connection, ProducerConnections
from mq.remoting.codec.bodies.route import TopicNames
from mq.remoting.codec.bodies.stats import (
    BrokerConsumeStats,
    ConsumeStats,
    GroupNames,
    ProducerTable,
    QueueEnds,
    QueueProgress,
    QueueTimeSpan,
    QueueTimeSpans,
    TopicStats,
)
from mq.remoting.codec.requests.name_servers import GetTopicsOfCluster
from mq.remoting.codec.requests.statistics import (
    GetAllProducers,
    GetBrokerConsumeStats,
    GetConsumeStats,
    GetProducerConnections,
    GetTopicStats,
    QueryConsumeTimeSpan,
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
    """How far a group is in each queue of the named topics, else of all that it has."""
    group, broker = request.consumer_group, call.served.broker
    check_group(group)
    if group not in broker.groups():
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"group {group} does not exist: it does once a consumer of it has started or an offset was set",
        )
    named = [name for name in (request.topic_list or "").split(";") if name]
    topics = [request.topic] if request.topic else named or broker.consumer_groups.topics(group)
    return Reply(body=_progress(call, group, topics))


@handlers.on(GetBrokerConsumeStats)
def all_consume_stats(request: GetBrokerConsumeStats, call: Call) -> Reply:
    """The same of every group, topic by topic; with is_order, of groups that consume in order alone."""
    broker, found, total = call.served.broker, [], 0
    for group in broker.groups():
        members = broker.consumer_groups.members(group)
        if request.is_order and not any(member.ordered for member in members):
            continue
        stats = [_progress(call, group, [topic]) for topic in broker.consumer_groups.topics(group)]
        for each in stats:
            total += sum(at.broker_offset - at.consumer_offset for at in each.offset_table.values())
        found.append({group: tuple(each for each in stats if each.offset_table)})
    return Reply(body=BrokerConsumeStats(tuple(found), call.served.address(call.connection), total))


@handlers.on(QueryConsumeTimeSpan)
def time_spans(request: QueryConsumeTimeSpan, call: Call) -> Reply:
    """When the messages of each queue were stored: the oldest, the newest, and the one that a group is at."""
    check_group(request.group)
    check_topic(request.topic)
    served, now_ms = call.served, time.time_ns() // 1_000_000
    offsets = served.broker.consumer_groups.offsets(request.group, request.topic)
    found = []
    for queue in served.broker.readable(request.topic):
        begin, end = served.broker.min_offset(queue), served.broker.max_offset(queue)
        at = max(begin, offsets.get(queue, begin))
        oldest_ms = served.stored_ms(queue, begin)
        newest_ms = served.stored_ms(queue, end - 1) if end > begin else 0
        consumed_ms = served.stored_ms(queue, at - 1) if at > begin else oldest_ms
        late_ms = now_ms - served.stored_ms(queue, at) if at < end else 0
        found.append(QueueTimeSpan(queue, oldest_ms, newest_ms, consumed_ms, late_ms))
    return Reply(body=QueueTimeSpans(tuple(found)))


def _progress(call: Call, group: str, topics: Iterable[str]) -> ConsumeStats:
    """How far a group is. A queue of which it has committed nothing begins at its least offset, as the group
    will."""
    broker, figures = call.served.broker, call.served.figures
    table, tps = {}, 0.0
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
        tps += figures.consumed(group, topic)[0].per_second
    return ConsumeStats(table, tps)


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


@handlers.on(GetAllProducers)
def all_producers(_: GetAllProducers, call: Call) -> Reply:
    """Those that are connected to this server, by group."""
    now_ms, now = time.time_ns() // 1_000_000, monotonic()
    table = {
        group: tuple(
            ProducerTable.Producer(
                client_id,
                at.address,
                at.language.name,
                at.version,
                now_ms - int((now - at.used_at) * 1000),
            )
            for at, client_id in call.served.members.producers(group)
        )
        for group in call.served.members.producer_groups()
    }
    return Reply(body=ProducerTable(table))


@handlers.on(GetTopicsOfCluster)
def topics_of_cluster(request: GetTopicsOfCluster, call: Call) -> Reply:
    """All topics: there is one cluster."""
    if request.cluster != CLUSTER:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, f"cluster {request.cluster!r} does not exist: {CLUSTER!r} does"
        )
    return Reply(body=TopicNames(tuple(call.served.broker.topics())))
