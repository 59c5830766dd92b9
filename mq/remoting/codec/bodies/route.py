"""Routes: the brokers of a topic, their addresses and queues; and the members of the cluster."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from mq.remoting.codec.json_body import JsonBody

__all__ = [
    "INHERIT",
    "MASTER_ID",
    "READ",
    "WRITE",
    "BrokerAddresses",
    "BrokerMembers",
    "ClusterInfo",
    "KeyValues",
    "QueueCounts",
    "TopicNames",
    "TopicRoute",
]

READ = 4  # bits of perm
WRITE = 2
INHERIT = 1
MASTER_ID = 0


class QueueCounts(JsonBody):
    """The queues of a topic on one broker (QueueData)."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int = READ | WRITE
    topic_sys_flag: int = 0


class BrokerAddresses(JsonBody):
    """A broker's master (id 0) and its slaves, each as host:port (BrokerData)."""

    broker_name: str
    broker_addrs: dict[int, str]
    cluster: str = ""
    zone_name: str | None = None
    enable_acting_master: bool = False

    @property
    def master(self) -> str | None:
        return self.broker_addrs.get(MASTER_ID)


class TopicRoute(JsonBody):
    """The answer of GET_ROUTEINFO_BY_TOPIC (TopicRouteData). order_topic_conf is as in `a:4;b:4`."""

    broker_datas: tuple[BrokerAddresses, ...] = ()
    queue_datas: tuple[QueueCounts, ...] = ()
    filter_server_table: dict[str, tuple[str, ...]] = field(default_factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, Any] | None = None


class ClusterInfo(JsonBody):
    """The answer of GET_BROKER_CLUSTER_INFO: brokers by name, and the names in each cluster."""

    broker_addr_table: dict[str, BrokerAddresses] = field(default_factory=dict)
    cluster_addr_table: dict[str, tuple[str, ...]] = field(default_factory=dict)


class BrokerMembers(JsonBody):
    """The answer of GET_BROKER_MEMBER_GROUP."""

    class Group(JsonBody):
        cluster: str
        broker_name: str
        broker_addrs: dict[int, str]

    broker_member_group: Group | None = None


class TopicNames(JsonBody):
    """TopicList."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


class KeyValues(JsonBody):
    """KVTable."""

    table: dict[str, str] = field(default_factory=dict)
