"""What a broker asks of a client, on the connection that the client opened.

RUNNING_INFO and CONSUME_DIRECTLY an operator sends to the broker as well, which hands them on.
"""

from __future__ import annotations

from mq.remoting.codec.bodies.consuming import (
    ConsumedDirectly,
    ConsumersStatus,
    QueueOffsets,
    RunningInfo,
)
from mq.remoting.codec.body_kind import MESSAGE, RECORDS
from mq.remoting.codec.fields import Int, Long, Request
from mq.remoting.codec.requests.offsets import ResetFields
from mq.remoting.codec.wire_names import wire

__all__ = [
    "CheckTransactionState",
    "ConsumeMessageDirectly",
    "GetConsumerRunningInfo",
    "GetConsumerStatusFromClient",
    "NotifyConsumerIdsChanged",
    "PushReplyMessage",
    "ResetClientOffset",
]


class CheckTransactionState(Request, code=39, name="CHECK_TRANSACTION_STATE", body=RECORDS):
    """What has become of a half message? The answer is END_TRANSACTION, oneway. The body is its record."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None  # ⁵
    broker_name: str | None = wire("bname", default=None)


class NotifyConsumerIdsChanged(Request, code=40, name="NOTIFY_CONSUMER_IDS_CHANGED"):
    """A member of the group came or went: rebalance. Oneway."""

    consumer_group: str


class ResetClientOffset(ResetFields, code=220, name="RESET_CONSUMER_CLIENT_OFFSET", body=QueueOffsets):
    """Go on from these offsets. Oneway."""


class GetConsumerStatusFromClient(
    Request, code=221, name="GET_CONSUMER_STATUS_FROM_CLIENT", answer_body=ConsumersStatus
):
    """How far are you?"""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfo(Request, code=307, name="GET_CONSUMER_RUNNING_INFO", answer_body=RunningInfo):
    """SYSTEM_ERROR where the client is not in the group."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class ConsumeMessageDirectly(
    Request, code=309, name="CONSUME_MESSAGE_DIRECTLY", body=RECORDS, answer_body=ConsumedDirectly
):
    """Hand this one message to the listener. The body is its record; from an operator there is none."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None  # ⁵, like those below
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None


class PushReplyMessage(Request, code=326, name="PUSH_REPLY_MESSAGE_TO_CLIENT", body=MESSAGE):
    """The reply to a message of Producer.request()."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    born_host: str
    store_host: str
    store_timestamp: Long
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool | None = None
