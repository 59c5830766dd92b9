"""Members of groups, the locks of their queues, their offsets."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from mq.api.results import MessageQueue
from mq.remoting.codec.bodies.heartbeat import ConsumeFrom, ConsumeType, MessageModel, Subscription
from mq.remoting.codec.bodies.settings import DataVersion
from mq.remoting.codec.json_body import JsonBody
from mq.remoting.codec.wire_names import wire

__all__ = [
    "ConsumeResult",
    "ConsumeStatus",
    "ConsumedDirectly",
    "ConsumerConnections",
    "ConsumerIds",
    "ConsumerOffsets",
    "ConsumersStatus",
    "LockedQueues",
    "ProcessQueueStatus",
    "ProducerConnections",
    "QueueLock",
    "QueueOffset",
    "QueueOffsetList",
    "QueueOffsets",
    "RunningInfo",
]


class ConsumerIds(JsonBody):
    """The live members of a group (GetConsumerListByGroupResponseBody)."""

    consumer_id_list: tuple[str, ...] = ()


class QueueLock(JsonBody):
    """Queues of a group that a client wants to lock or unlock (LockBatchRequestBody)."""

    consumer_group: str
    client_id: str
    mq_set: tuple[MessageQueue, ...] = ()
    only_this_broker: bool = False


class LockedQueues(JsonBody):
    """The queues that the client has locked now."""

    locked: tuple[MessageQueue, ...] = wire("lockOKMQSet", default=())


class QueueOffsets(JsonBody):
    """The offsets that queues are reset to (ResetOffsetBody)."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


class QueueOffset(JsonBody):
    topic: str
    broker_name: str
    queue_id: int
    offset: int


class QueueOffsetList(JsonBody):
    """The offsets of a reset, in the format for C++ clients (ResetOffsetBodyForC)."""

    offset_table: tuple[QueueOffset, ...] = ()


class ConsumersStatus(JsonBody):
    """The offsets of one member (message_queue_table), or of all by client id (GetConsumerStatusBody)."""

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)


class ConsumerOffsets(JsonBody):
    """All offsets of a broker, by `topic@group` and queue (ConsumerOffsetSerializeWrapper)."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion | None = None


class Connection(JsonBody):
    client_id: str
    client_addr: str = ""
    language: str = "OTHER"
    version: int = 0


class ConsumerConnections(JsonBody):
    """ConsumerConnection."""

    connection_set: tuple[Connection, ...] = ()
    subscription_table: dict[str, Subscription] = field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFrom | None = None


class ProducerConnections(JsonBody):
    """ProducerConnection."""

    connection_set: tuple[Connection, ...] = ()


class ProcessQueueStatus(JsonBody):
    """One queue of a consumer (ProcessQueueInfo). RocketMQ spells it `droped`."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = wire("cachedMsgSizeInMiB", default=0)
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class PoppedQueueStatus(JsonBody):
    """PopProcessQueueInfo, 5.x."""

    wait_ack_count: int = 0
    last_pop_timestamp: int = 0
    droped: bool = False


class ConsumeStatus(JsonBody):
    """Rates per second and times in ms of one topic."""

    pull_rt: float = wire("pullRT", default=0.0)
    pull_tps: float = wire("pullTPS", default=0.0)
    consume_rt: float = wire("consumeRT", default=0.0)
    consume_ok_tps: float = wire("consumeOKTPS", default=0.0)
    consume_failed_tps: float = wire("consumeFailedTPS", default=0.0)
    consume_failed_msgs: int = 0


class RunningInfo(JsonBody):
    """A consumer's report about itself (ConsumerRunningInfo); the properties are PROP_…"""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: tuple[Subscription, ...] = ()
    mq_table: dict[MessageQueue, ProcessQueueStatus] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, PoppedQueueStatus] | None = None
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] | None = None
    jstack: str | None = None


class ConsumeResult(Enum):
    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    RETURN_NULL = "CR_RETURN_NULL"


class ConsumedDirectly(JsonBody):
    """The result of a message that an operator sent to a consumer (ConsumeMessageDirectlyResult)."""

    consume_result: ConsumeResult
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: int = 0
