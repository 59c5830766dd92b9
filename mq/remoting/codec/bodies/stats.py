"""The statistics that operators ask of brokers: ends of queues, lag, rates, consumers."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from mq.api.results import MessageQueue
from mq.remoting.codec.bodies.heartbeat import Subscription
from mq.remoting.codec.json_body import JsonBody
from mq.remoting.codec.wire_names import wire

__all__ = [
    "BrokerConsumeStats",
    "BrokerStats",
    "ConsumeStats",
    "CorrectionOffsets",
    "GroupNames",
    "GroupSubscription",
    "ProducerTable",
    "QueueEnds",
    "QueuePage",
    "QueueProgress",
    "QueueTimeSpan",
    "QueueTimeSpans",
    "Rate",
    "TopicStats",
]


class QueueEnds(JsonBody):
    min_offset: int
    max_offset: int
    last_update_timestamp: int = 0


class TopicStats(JsonBody):
    """TopicStatsTable."""

    offset_table: dict[MessageQueue, QueueEnds] = field(default_factory=dict)
    topic_put_tps: float | None = None


class QueueProgress(JsonBody):
    broker_offset: int
    consumer_offset: int
    last_timestamp: int = 0
    pull_offset: int | None = None  # 5.x


class ConsumeStats(JsonBody):
    offset_table: dict[MessageQueue, QueueProgress] = field(default_factory=dict)
    consume_tps: float = 0.0


class BrokerConsumeStats(JsonBody):
    """ConsumeStatsList: by group, the stats of each of its topics."""

    consume_stats_list: tuple[dict[str, tuple[ConsumeStats, ...]], ...] = ()
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int = 0


class GroupNames(JsonBody):
    """GroupList."""

    group_list: tuple[str, ...] = ()


class GroupSubscription(JsonBody):
    """QuerySubscriptionResponseBody."""

    group: str
    topic: str
    subscription_data: Subscription | None = None


class QueueTimeSpan(JsonBody):
    message_queue: MessageQueue
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0


class QueueTimeSpans(JsonBody):
    """QueryConsumeTimeSpanBody."""

    consume_time_span_set: tuple[QueueTimeSpan, ...] = ()


class CorrectionOffsets(JsonBody):
    """QueryCorrectionOffsetBody."""

    correction_offsets: dict[int, int] = field(default_factory=dict)


class Rate(JsonBody):
    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStats(JsonBody):
    """BrokerStatsData."""

    stats_minute: Rate | None = None
    stats_hour: Rate | None = None
    stats_day: Rate | None = None


class ProducerTable(JsonBody):
    """ProducerTableInfo: by group, its producers."""

    class Producer(JsonBody):
        client_id: str
        remote_ip: str = wire("remoteIP", default="")
        language: str = "OTHER"
        version: int = 0
        last_update_timestamp: int = 0

    data: dict[str, tuple[Producer, ...]] = field(default_factory=dict)


class QueuePage(JsonBody):
    """Units of a consume queue (QueryConsumeQueueResponseBody)."""

    subscription_data: Subscription | None = None
    filter_data: str | None = None
    queue_data: tuple[dict[str, Any], ...] = ()
    max_queue_index: int = 0
    min_queue_index: int = 0
