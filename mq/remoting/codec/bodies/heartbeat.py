"""The heartbeat that a client sends to each broker every 30 seconds: its groups and their subscriptions."""

from __future__ import annotations

from enum import Enum

from mq.remoting.codec.json_body import JsonBody
from mq.remoting.codec.wire_names import wire

__all__ = [
    "INNER_PRODUCER_GROUP",
    "ClientCheck",
    "ConsumeFrom",
    "ConsumeType",
    "ConsumerGroup",
    "Heartbeat",
    "MessageModel",
    "ProducerGroup",
    "Subscription",
]

INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"  # in every heartbeat of RocketMQ's own clients


class ConsumeType(Enum):
    """In RocketMQ's order: C++ clients send the ordinal."""

    PULL = "CONSUME_ACTIVELY"
    PUSH = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(Enum):
    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFrom(Enum):
    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    LAST_OFFSET_AND_MIN_AT_BOOT = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class Subscription(JsonBody):
    """One topic of a group (SubscriptionData). sub_string is an expression of tags, or SQL92.

    Brokers keep the one with the highest sub_version, which is the time in ms at which it was made. code_set
    has the hashes of the tags; a C++ client sends wrong ones.
    """

    topic: str
    sub_string: str
    expression_type: str = "TAG"
    tags_set: tuple[str, ...] = ()
    code_set: tuple[int, ...] = ()
    sub_version: int = 0
    class_filter_mode: bool = False


class ConsumerGroup(JsonBody):
    """ConsumerData."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.PUSH
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    subscription_data_set: tuple[Subscription, ...] = ()
    unit_mode: bool = False


class ProducerGroup(JsonBody):
    """ProducerData."""

    group_name: str


class Heartbeat(JsonBody):
    """HeartbeatData. The last two are of 5.x: a fingerprint stands for unchanged subscriptions."""

    client_id: str = wire("clientID")
    producer_data_set: tuple[ProducerGroup, ...] = ()
    consumer_data_set: tuple[ConsumerGroup, ...] = ()
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class ClientCheck(JsonBody):
    """Asks whether the broker can filter by this subscription (CheckClientRequestBody)."""

    client_id: str
    group: str
    subscription_data: Subscription
    namespace: str | None = None
