"""Members of a group over a slave, while the master is away."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import mq
from mq.remoting.codec.requests.groups import GetConsumerList, LockQueues, UnlockQueues
from tests.support.eventually import eventually
from tests.support.fake_cluster import FakeCluster, open_cluster, requests_of
from tests.support.remoting_peer import Peer


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
