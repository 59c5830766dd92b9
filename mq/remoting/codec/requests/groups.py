"""Membership of groups, locks of queues for ordered consumption, settings of groups."""

from __future__ import annotations

from mq.remoting.codec.bodies.consuming import ConsumerIds, LockedQueues, QueueLock
from mq.remoting.codec.bodies.heartbeat import ClientCheck, Heartbeat
from mq.remoting.codec.bodies.settings import GroupSettings, GroupSettingsList, GroupTable, RequestModes
from mq.remoting.codec.fields import Answer, Int, Request
from mq.remoting.codec.wire_names import wire

__all__ = [
    "AllGroupsAnswer",
    "CheckClientConfig",
    "DeleteGroup",
    "GetAllGroups",
    "GetAllRequestModes",
    "GetConsumerList",
    "GetGroup",
    "HeartBeat",
    "HeartBeatAnswer",
    "LockQueues",
    "UnlockQueues",
    "UnregisterClient",
    "UpdateGroup",
    "UpdateGroups",
]


class HeartBeatAnswer(Answer):
    """The version in the answer's header is the broker's. The fields are of 5.x."""

    supports_v2: bool | None = wire("IS_SUPPORT_HEART_BEAT_V2", default=None)
    subscription_changed: bool | None = wire("IS_SUB_CHANGE", default=None)


class HeartBeat(Request, code=34, name="HEART_BEAT", body=Heartbeat, answer=HeartBeatAnswer):
    """Every 30 s, and when a subscription changes. The connection stands for the member: pulls go over it."""


class UnregisterClient(Request, code=35, name="UNREGISTER_CLIENT"):
    client_id: str = wire("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class CheckClientConfig(Request, code=46, name="CHECK_CLIENT_CONFIG", body=ClientCheck):
    """Before a SQL92 subscription. SYSTEM_ERROR: SQL92 is off; SUBSCRIPTION_PARSE_FAILED: it is wrong."""


class GetConsumerList(Request, code=38, name="GET_CONSUMER_LIST_BY_GROUP", answer_body=ConsumerIds):
    """SYSTEM_ERROR for a group without members."""

    consumer_group: str


class LockQueues(Request, code=41, name="LOCK_BATCH_MQ", body=QueueLock, answer_body=LockedQueues):
    """A lock lives for 60 s unless it is renewed."""


class UnlockQueues(Request, code=42, name="UNLOCK_BATCH_MQ", body=QueueLock):
    """Usually oneway."""


class UpdateGroup(Request, code=200, name="UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", body=GroupSettings):
    """Makes a group, or changes its settings."""


class UpdateGroups(
    Request, code=225, name="UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST", body=GroupSettingsList
):
    """The same for several. ⁵"""


class AllGroupsAnswer(Answer):
    total_group_num: Int | None = None  # ⁵


class GetAllGroups(
    Request,
    code=201,
    name="GET_ALL_SUBSCRIPTIONGROUP_CONFIG",
    answer=AllGroupsAnswer,
    answer_body=GroupTable,
):
    """5.x answers page by page, from group_seq on."""

    group_seq: Int | None = None
    data_version: str | None = None
    max_group_num: Int | None = None


class GetAllRequestModes(Request, code=402, name="GET_ALL_MESSAGE_REQUEST_MODE", answer_body=RequestModes):
    """A slave asks its master. ⁵"""


class GetGroup(Request, code=352, name="GET_SUBSCRIPTIONGROUP_CONFIG", answer_body=GroupSettings):
    """⁵"""

    group: str


class DeleteGroup(Request, code=207, name="DELETE_SUBSCRIPTIONGROUP"):
    """Whether its offsets go as well has another name in 4.9 and in 5.x: give both."""

    group_name: str
    clean_offset: bool | None = None  # ⁵
    remove_offset: bool | None = None  # 4.9
