"""The settings of topics and groups, as brokers keep and exchange them."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from mq.remoting.codec.json_body import JsonBody
from mq.remoting.codec.wire_names import wire

__all__ = [
    "DataVersion",
    "DelayOffsets",
    "GroupSettings",
    "GroupSettingsList",
    "GroupTable",
    "RequestMode",
    "RequestModes",
    "TimerCount",
    "TimerCounts",
    "TopicSettings",
    "TopicSettingsList",
    "TopicTable",
]


class DataVersion(JsonBody):
    """The version of a table."""

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0


class TopicSettings(JsonBody):
    """TopicConfig."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = None  # 5.x
    # mq's own: where the log ended when the topic was made. RocketMQ's slaves ignore it.
    begin_log_offset: int | None = wire("mqBeginLogOffset", default=None)


class TopicTable(JsonBody):
    """All topics of a broker (TopicConfigSerializeWrapper); the last two are of static topics in 5.x."""

    topic_config_table: dict[str, TopicSettings] = field(default_factory=dict)
    data_version: DataVersion | None = None
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_detail_map: dict[str, Any] | None = None
    topic_queue_mapping_info_map: dict[str, Any] | None = None


class TopicSettingsList(JsonBody):
    """CreateTopicListRequestBody, 5.x."""

    topic_config_list: tuple[TopicSettings, ...] = ()


class AllowedSubscription(JsonBody):
    """SimpleSubscriptionData, 5.x."""

    topic: str
    expression_type: str
    expression: str
    version: int = 0


class GroupSettings(JsonBody):
    """SubscriptionGroupConfig; the members that default to None are of 5.x."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    consume_message_orderly: bool | None = None
    group_retry_policy: dict[str, Any] | None = None
    group_sys_flag: int | None = None
    consume_timeout_minute: int | None = None
    subscription_data_set: tuple[AllowedSubscription, ...] | None = None
    attributes: dict[str, str] | None = None


class GroupTable(JsonBody):
    """All groups of a broker (SubscriptionGroupWrapper)."""

    subscription_group_table: dict[str, GroupSettings] = field(default_factory=dict)
    forbidden_table: dict[str, dict[str, int]] | None = None  # later than 5.3.3
    data_version: DataVersion | None = None


class GroupSettingsList(JsonBody):
    """SubscriptionGroupList, 5.x."""

    group_config_list: tuple[GroupSettings, ...] = ()


class TimerCount(JsonBody):
    """How many timer messages of a topic wait, and since when that is known (TimerMetrics.Metric, 5.x)."""

    count: int = 0
    time_stamp: int = 0


class TimerCounts(JsonBody):
    """TimerMetricsSerializeWrapper, 5.x."""

    timing_count: dict[str, TimerCount] = field(default_factory=dict)
    data_version: DataVersion | None = None


class RequestMode(JsonBody):
    """Whether a group consumes a topic by PULL or by POP (SetMessageRequestModeRequestBody, 5.x)."""

    topic: str | None = None
    consumer_group: str | None = None
    mode: str = "PULL"
    pop_share_queue_num: int = 0


class RequestModes(JsonBody):
    """By topic and group (MessageRequestModeSerializeWrapper, 5.x)."""

    message_request_mode_map: dict[str, dict[str, RequestMode]] = field(default_factory=dict)


class DelayOffsets(JsonBody):
    """The delivered offset of each delay level (DelayOffsetSerializeWrapper)."""

    offset_table: dict[int, int] = field(default_factory=dict)
    data_version: DataVersion | None = None
