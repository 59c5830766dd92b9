"""Groups and their members over a slave, while the master is away."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import mq
from mq.remoting.codec.bodies.consuming import Connection, ConsumerConnections, RunningInfo
from mq.remoting.codec.bodies.heartbeat import ConsumeType, MessageModel, Subscription
from mq.remoting.codec.bodies.settings import GroupSettings, GroupTable
from mq.remoting.codec.bodies.stats import ConsumeStats, QueueProgress
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import JsonBody, to_json
from mq.remoting.codec.requests.groups import GetAllGroups, GetConsumerList, LockQueues, UnlockQueues
from mq.remoting.codec.requests.pushed import GetConsumerRunningInfo
from mq.remoting.codec.requests.statistics import GetConsumerConnections, GetConsumeStats
from mq.remoting.codec.response_codes import ResponseCode
from tests.support.eventually import eventually
from tests.support.fake_cluster import FakeCluster, open_cluster, requests_of
from tests.support.remoting_peer import Link, Peer, Reply, with_code


@pytest.fixture
def slave() -> Iterator[Peer]:
    with Peer() as slave:
        yield slave


@pytest.fixture
def cluster(peer: Peer, slave: Peer) -> FakeCluster:
    """The peer is the name server, and no broker."""
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 4
    cluster.serve(slave)
    slave.on(GetConsumerConnections.CODE, with_code(ResponseCode.CONSUMER_NOT_ONLINE))
    cluster.master, cluster.slave = None, slave.address
    return cluster


def wait(what: Callable[[], bool], why: Callable[[], object]) -> None:
    eventually(what, why, 60)


def test_members_share_the_queues_over_a_slave(peer: Peer, slave: Peer, cluster: FakeCluster) -> None:
    with open_cluster(peer) as broker, mq.PushConsumer(broker, "billing") as consumer:
        consumer.subscribe("orders", listener=lambda _message: None)
        cluster.other_members = ("another@1",)
        consumer.start()
        wait(lambda: len(consumer.assignment()) == 2, consumer.assignment)
        assert requests_of(slave, GetConsumerList)
        assert [beat.client_id for beat in cluster.heartbeats(slave)][:1] == [consumer.client_id]


def test_no_slave_is_asked_for_a_lock(peer: Peer, slave: Peer, cluster: FakeCluster) -> None:
    with open_cluster(peer) as broker, mq.PushConsumer(broker, "billing", ordered=True) as consumer:
        consumer.subscribe("orders", listener=lambda _message: None)
        consumer.start()
        wait(lambda: len(requests_of(slave, GetConsumerList)) > 1, lambda: slave.requests)
        assert not consumer.assignment()
        cluster.serve(peer)
        cluster.master = peer.address
        broker.topic("orders")  # It asks for the route.
        wait(lambda: len(consumer.assignment()) == 4, consumer.assignment)
        assert requests_of(peer, LockQueues)
    assert not requests_of(slave, LockQueues)
    assert not requests_of(slave, UnlockQueues)


def with_body(body: JsonBody) -> Reply:
    async def reply(link: Link, request: Frame) -> None:
        link.answer(request, body=to_json(body))

    return reply


def test_an_operator_sees_the_groups_that_a_slave_knows(
    peer: Peer, slave: Peer, cluster: FakeCluster
) -> None:
    queue = mq.MessageQueue("bills", "a", 0)
    connections = ConsumerConnections(
        (Connection("one@1", "127.0.0.1:1"),),
        {"orders": Subscription("orders", "*")},
        ConsumeType.PUSH,
        MessageModel.CLUSTERING,
    )
    slave.on(GetAllGroups.CODE, with_body(GroupTable({"billing": GroupSettings("billing")})))
    slave.on(GetConsumerConnections.CODE, with_body(connections))
    slave.on(GetConsumeStats.CODE, with_body(ConsumeStats({queue: QueueProgress(0, 0, 0)})))
    slave.on(GetConsumerRunningInfo.CODE, with_body(RunningInfo()))
    with open_cluster(peer) as broker:
        group = broker.group("billing")
        assert broker.groups() == ["billing"]
        assert [member.client_id for member in group.members()] == ["one@1"]
        assert group.topics() == ["bills", "orders"]
        assert len(group.states("orders")) == 4
        assert requests_of(slave, GetConsumerRunningInfo)
        with pytest.raises(mq.RemotingError, match="broker 'a' has no master now"):
            group.delete()
