"""What operators and their tools ask of queues and groups, over a broker of each kind."""

from __future__ import annotations

import time

import mq
from mq.remoting.codec.bodies.consuming import ProducerConnections
from mq.remoting.codec.bodies.heartbeat import Heartbeat, ProducerGroup
from mq.remoting.codec.bodies.route import TopicNames, TopicRoute
from mq.remoting.codec.bodies.stats import (
    BrokerConsumeStats,
    ConsumeStats,
    GroupNames,
    ProducerTable,
    QueueTimeSpans,
    TopicStats,
)
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.groups import HeartBeat
from mq.remoting.codec.requests.name_servers import GetRoute, GetSystemTopics, GetTopicsOfCluster
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
from mq.remoting.codec.requests.topics import GetSystemTopicsOfBroker
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.server import Server
from tests.support.raw_requests import ask, body


def sent(store: mq.Broker, count: int) -> list[mq.MessageExt]:
    topic = store.create_topic("orders", 1)
    for n in range(count):
        topic.send(b"%d" % n)
    return list(topic.queues[0].read(0).messages)


def test_topic_stats_are_the_ends_of_its_queues(store: mq.Broker, server: Server) -> None:
    messages = sent(store, 5)
    ((_, ends),) = body(TopicStats, ask(server, GetTopicStats("orders"))).offset_table.items()
    assert (ends.min_offset, ends.max_offset) == (0, 5)
    assert ends.last_update_timestamp == messages[-1].store_time_ms


def test_an_empty_queue_was_never_written(store: mq.Broker, server: Server) -> None:
    store.create_topic("orders", 2)
    table = body(TopicStats, ask(server, GetTopicStats("orders"))).offset_table
    assert [(e.min_offset, e.max_offset, e.last_update_timestamp) for e in table.values()] == [(0, 0, 0)] * 2


def test_consume_stats_are_where_a_group_is(store: mq.Broker, server: Server) -> None:
    messages = sent(store, 5)
    queue = store.readable("orders")[0]
    store.consumer_groups.assigned("billing").claim(queue).commit(3)
    for request in (GetConsumeStats("billing"), GetConsumeStats("billing", topic_list="orders;")):
        table = body(ConsumeStats, ask(server, request)).offset_table
        ((found, progress),) = table.items()
        assert (found.topic, found.queue_id) == ("orders", 0)
        assert (progress.broker_offset, progress.consumer_offset) == (5, 3)
        assert progress.last_timestamp == messages[2].store_time_ms
    assert body(ConsumeStats, ask(server, GetConsumeStats("billing", "gone"))).offset_table == {}


def test_stats_of_all_groups_are_those_of_each(store: mq.Broker, server: Server) -> None:
    sent(store, 5)
    queue = store.readable("orders")[0]
    for group, offset in (("billing", 3), ("shipping", 0)):
        store.consumer_groups.assigned(group).claim(queue).commit(offset)
    found = body(BrokerConsumeStats, ask(server, GetBrokerConsumeStats(False)))
    tables = {
        group: stats[0].offset_table for each in found.consume_stats_list for group, stats in each.items()
    }
    assert {group: table[queue].consumer_offset for group, table in tables.items()} == {
        "billing": 3,
        "shipping": 0,
    }
    assert (found.total_diff, found.broker_addr) == (2 + 5, server.address)
    assert body(BrokerConsumeStats, ask(server, GetBrokerConsumeStats(True))).consume_stats_list == ()


def test_time_spans_say_how_late_a_group_is(store: mq.Broker, server: Server) -> None:
    messages = sent(store, 5)
    queue = store.readable("orders")[0]
    store.consumer_groups.assigned("billing").claim(queue).commit(2)
    (span,) = body(
        QueueTimeSpans, ask(server, QueryConsumeTimeSpan("orders", "billing"))
    ).consume_time_span_set
    assert (
        span.message_queue.queue_id,
        span.min_time_stamp,
        span.max_time_stamp,
        span.consume_time_stamp,
    ) == (
        0,
        messages[0].store_time_ms,
        messages[4].store_time_ms,
        messages[1].store_time_ms,
    )
    assert 0 <= span.delay_time <= time.time_ns() // 1_000_000 - messages[2].store_time_ms
    store.consumer_groups.assigned("billing").claim(queue).commit(5)
    (span,) = body(
        QueueTimeSpans, ask(server, QueryConsumeTimeSpan("orders", "billing"))
    ).consume_time_span_set
    assert (span.consume_time_stamp, span.delay_time) == (messages[4].store_time_ms, 0)


def test_all_producers_are_told(server: Server) -> None:
    heartbeat = to_json(Heartbeat("shop-1", (ProducerGroup("shop"),)))
    table = body(ProducerTable, ask(server, HeartBeat(), GetAllProducers(), content=heartbeat)).data
    assert [(group, each.client_id) for group, found in table.items() for each in found] == [
        ("shop", "shop-1")
    ]
    assert abs(table["shop"][0].last_update_timestamp - time.time_ns() // 1_000_000) < 60_000


def test_the_cluster_is_found_by_its_name(store: mq.Broker, server: Server) -> None:
    route = body(TopicRoute, ask(server, GetRoute("DefaultCluster")))
    assert [each.broker_addrs for each in route.broker_datas] == [{0: server.address}]
    assert store.topics() == []
    found = body(TopicNames, ask(server, GetSystemTopics()))
    assert found == TopicNames(("DefaultCluster", store.name), server.address)
    assert "TBW102" in body(TopicNames, ask(server, GetSystemTopicsOfBroker())).topic_list


def test_group_topics_and_subscriptions(store: mq.Broker, server: Server) -> None:
    sent(store, 1)
    store.consumer_groups.assigned("billing").claim(store.readable("orders")[0]).commit(1)
    assert body(GroupNames, ask(server, QueryTopicConsumers("orders"))).group_list == ("billing",)
    assert body(TopicNames, ask(server, QueryTopicsByConsumer("billing"))).topic_list == ("orders",)
    assert "orders" in body(TopicNames, ask(server, GetTopicsOfCluster("DefaultCluster"))).topic_list


def test_producers_of_a_group_are_named(server: Server) -> None:
    heartbeat = to_json(Heartbeat("shop-1", (ProducerGroup("shop"),)))
    answer = ask(server, HeartBeat(), GetProducerConnections("shop"), content=heartbeat)
    (found,) = body(ProducerConnections, answer).connection_set
    assert found.client_id == "shop-1"
    assert found.client_addr.startswith("127.0.0.1:")


def test_what_is_not_there_is_refused_by_name(server: Server) -> None:
    for request, code, remark in (
        (GetTopicStats("gone"), ResponseCode.TOPIC_NOT_EXIST, "gone"),
        (GetTopicStats("a b"), ResponseCode.INVALID_PARAMETER, "a b"),
        (GetConsumeStats("gone"), ResponseCode.SYSTEM_ERROR, "group gone does not exist"),
        (GetProducerConnections("gone"), ResponseCode.SYSTEM_ERROR, "no producer of group gone"),
        (GetTopicsOfCluster("gone"), ResponseCode.SYSTEM_ERROR, "'DefaultCluster' does"),
    ):
        answer = ask(server, request)
        assert answer.code == code, request
        assert remark in answer.remark
