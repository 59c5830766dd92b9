"""What operators and tools ask a broker about topics and groups."""

from __future__ import annotations

from mq.remoting.codec.bodies.consuming import ConsumerConnections, ProducerConnections
from mq.remoting.codec.bodies.route import TopicNames
from mq.remoting.codec.bodies.stats import (
    BrokerConsumeStats,
    BrokerStats,
    ConsumeStats,
    CorrectionOffsets,
    GroupNames,
    GroupSubscription,
    ProducerTable,
    QueuePage,
    QueueTimeSpans,
    TopicStats,
)
from mq.remoting.codec.fields import Int, Long, Request

__all__ = [
    "GetAllProducers",
    "GetBrokerConsumeStats",
    "GetConsumeStats",
    "GetConsumerConnections",
    "GetProducerConnections",
    "GetTopicStats",
    "QueryConsumeQueue",
    "QueryConsumeTimeSpan",
    "QueryCorrectionOffset",
    "QuerySubscription",
    "QueryTopicConsumers",
    "QueryTopicsByConsumer",
    "ViewBrokerStats",
]


class GetTopicStats(Request, code=202, name="GET_TOPIC_STATS_INFO", answer_body=TopicStats):
    topic: str


class GetConsumerConnections(
    Request, code=203, name="GET_CONSUMER_CONNECTION_LIST", answer_body=ConsumerConnections
):
    """CONSUMER_NOT_ONLINE for a group without members."""

    consumer_group: str


class GetProducerConnections(
    Request, code=204, name="GET_PRODUCER_CONNECTION_LIST", answer_body=ProducerConnections
):
    producer_group: str


class GetConsumeStats(Request, code=208, name="GET_CONSUME_STATS", answer_body=ConsumeStats):
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None  # ⁵ with ; between


class GetBrokerConsumeStats(
    Request, code=317, name="GET_BROKER_CONSUME_STATS", answer_body=BrokerConsumeStats
):
    is_order: bool


class QueryTopicConsumers(Request, code=300, name="QUERY_TOPIC_CONSUME_BY_WHO", answer_body=GroupNames):
    """The groups that consume a topic."""

    topic: str


class QueryConsumeTimeSpan(Request, code=303, name="QUERY_CONSUME_TIME_SPAN", answer_body=QueueTimeSpans):
    topic: str
    group: str


class QueryTopicsByConsumer(Request, code=343, name="QUERY_TOPICS_BY_CONSUMER", answer_body=TopicNames):
    """⁵"""

    group: str


class QuerySubscription(
    Request, code=345, name="QUERY_SUBSCRIPTION_BY_CONSUMER", answer_body=GroupSubscription
):
    """⁵"""

    group: str
    topic: str | None = None


class QueryCorrectionOffset(Request, code=308, name="QUERY_CORRECTION_OFFSET", answer_body=CorrectionOffsets):
    topic: str
    compare_group: str
    filter_groups: str | None = None


class ViewBrokerStats(Request, code=315, name="VIEW_BROKER_STATS_DATA", answer_body=BrokerStats):
    stats_name: str
    stats_key: str


class QueryConsumeQueue(Request, code=321, name="QUERY_CONSUME_QUEUE", answer_body=QueuePage):
    topic: str | None = None
    queue_id: Int | None = None
    index: Long | None = None
    count: Int | None = None
    consumer_group: str | None = None


class GetAllProducers(Request, code=328, name="GET_ALL_PRODUCER_INFO", answer_body=ProducerTable):
    """All producers of a broker."""
