"""What name servers are asked, by clients, brokers and operators."""

from __future__ import annotations

from mq.remoting.codec.bodies.route import BrokerMembers, ClusterInfo, KeyValues, TopicNames, TopicRoute
from mq.remoting.codec.bodies.settings import DataVersion
from mq.remoting.codec.body_kind import TEXT_PROPERTIES, Raw
from mq.remoting.codec.fields import Answer, Int, Long, Request

__all__ = [
    "AddWritePermission",
    "BrokerHeartbeat",
    "DataVersionAnswer",
    "DeleteKeyValue",
    "DeleteTopicInNameServer",
    "GetBrokerMembers",
    "GetClusterInfo",
    "GetKeyValue",
    "GetKeyValues",
    "GetNameServerConfig",
    "GetRoute",
    "GetSystemTopics",
    "GetTopicList",
    "GetTopicsOfCluster",
    "PutKeyValue",
    "QueryDataVersion",
    "RegisterBroker",
    "RegisterBrokerAnswer",
    "RegisterTopic",
    "UnregisterBroker",
    "UpdateNameServerConfig",
    "ValueAnswer",
    "WipeWritePermission",
]


class GetRoute(Request, code=105, name="GET_ROUTEINFO_BY_TOPIC", answer_body=TopicRoute):
    """TOPIC_NOT_EXIST where no broker has the topic."""

    topic: str
    accept_standard_json_only: bool | None = None


class GetClusterInfo(Request, code=106, name="GET_BROKER_CLUSTER_INFO", answer_body=ClusterInfo):
    """All brokers."""


class RegisterBrokerAnswer(Answer):
    ha_server_addr: str | None = None
    master_addr: str | None = None


class RegisterBroker(
    Request,
    code=103,
    name="REGISTER_BROKER",
    body=Raw.REGISTRATION,
    answer=RegisterBrokerAnswer,
    answer_body=KeyValues,
):
    """A broker's, every 30 s. A 5.x name server refuses a first one with exactly one topic."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    heartbeat_timeout_millis: Long | None = None  # ⁵
    enable_acting_master: bool | None = None  # ⁵
    compressed: bool | None = None
    body_crc32: Int | None = None


class BrokerIdentity(Request):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


class UnregisterBroker(BrokerIdentity, code=104, name="UNREGISTER_BROKER"):
    """A broker's, when it shuts down."""


class DataVersionAnswer(Answer):
    changed: bool


class QueryDataVersion(
    BrokerIdentity,
    code=322,
    name="QUERY_DATA_VERSION",
    body=DataVersion,
    answer=DataVersionAnswer,
    answer_body=DataVersion,
):
    """Whether the name server knows the broker's topics as they are."""


class BrokerHeartbeat(Request, code=904, name="BROKER_HEARTBEAT"):
    """A broker's, oneway. ⁵"""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    heartbeat_timeout_mills: Long | None = None
    election_priority: Int | None = None


class GetBrokerMembers(Request, code=901, name="GET_BROKER_MEMBER_GROUP", answer_body=BrokerMembers):
    """⁵"""

    cluster_name: str
    broker_name: str


class WipeAnswer(Answer):
    wipe_topic_count: Int


class WipeWritePermission(Request, code=205, name="WIPE_WRITE_PERM_OF_BROKER", answer=WipeAnswer):
    """Nobody sends to the broker any more, as soon as clients have the route."""

    broker_name: str


class AddAnswer(Answer):
    add_topic_count: Int


class AddWritePermission(Request, code=327, name="ADD_WRITE_PERM_OF_BROKER", answer=AddAnswer):
    broker_name: str


class GetTopicList(Request, code=206, name="GET_ALL_TOPIC_LIST_FROM_NAMESERVER", answer_body=TopicNames):
    """All topics."""


class GetTopicsOfCluster(Request, code=224, name="GET_TOPICS_BY_CLUSTER", answer_body=TopicNames):
    cluster: str


class GetSystemTopics(Request, code=304, name="GET_SYSTEM_TOPIC_LIST_FROM_NS", answer_body=TopicNames):
    """The names of clusters and brokers, which are topics too."""


class DeleteTopicInNameServer(Request, code=216, name="DELETE_TOPIC_IN_NAMESRV"):
    topic: str
    cluster_name: str | None = None


class RegisterTopic(Request, code=217, name="REGISTER_TOPIC_IN_NAMESRV", body=TopicRoute):
    """⁵"""

    topic: str


class PutKeyValue(Request, code=100, name="PUT_KV_CONFIG"):
    namespace: str
    key: str
    value: str


class ValueAnswer(Answer):
    value: str | None = None


class GetKeyValue(Request, code=101, name="GET_KV_CONFIG", answer=ValueAnswer):
    """QUERY_NOT_FOUND where there is none."""

    namespace: str
    key: str


class DeleteKeyValue(Request, code=102, name="DELETE_KV_CONFIG"):
    namespace: str
    key: str


class GetKeyValues(Request, code=219, name="GET_KVLIST_BY_NAMESPACE", answer_body=KeyValues):
    namespace: str


class UpdateNameServerConfig(Request, code=318, name="UPDATE_NAMESRV_CONFIG", body=TEXT_PROPERTIES):
    """Settings, as Java properties."""


class GetNameServerConfig(Request, code=319, name="GET_NAMESRV_CONFIG", answer_body=TEXT_PROPERTIES):
    """All of them."""
