"""What a member of a group tells the brokers of a cluster, where a call fails, is late or is cut short."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest

import mq
from mq.api.group import Subscription
from mq.remoting.client import heartbeats
from mq.remoting.client.groups.membership import RemoteMembership
from mq.remoting.codec.requests.groups import HeartBeat
from tests.support.eventually import eventually
from tests.support.fake_cluster import FakeCluster, open_cluster, success
from tests.support.interrupting import interrupted_at
from tests.support.remoting_peer import Peer, silence


@pytest.fixture
def cluster(peer: Peer) -> FakeCluster:
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 1
    return cluster


def joined(broker: mq.Broker, *, ordered: bool = False) -> RemoteMembership:
    membership = broker.consumer_groups.join(
        "billing",
        client_id="one",
        model="clustering",
        consume_type="push",
        ordered=ordered,
        subscriptions=[Subscription("orders", "paid")],
        consume_from="first",
    )
    assert isinstance(membership, RemoteMembership)
    return membership


def known_expression(cluster: FakeCluster) -> str:
    """What a broker filters by: it keeps the newest subscription."""
    told = [
        each
        for beat in cluster.heartbeats()
        for group in beat.consumer_data_set
        for each in group.subscription_data_set
        if each.topic == "orders"
    ]
    return max(told, key=lambda each: each.sub_version).sub_string


def test_a_subscription_that_no_broker_confirms_is_taken_back(
    peer: Peer, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer keeps the former one: a broker that filters by the new one passes over its messages."""
    monkeypatch.setattr(heartbeats, "CALL_SECONDS", 0.2)
    with open_cluster(peer) as broker:
        membership = joined(broker)
        peer.on(HeartBeat.CODE, silence)
        with pytest.raises(mq.RequestTimeout):
            membership.subscribe([Subscription("orders", "refunded")])
        eventually(lambda: known_expression(cluster) == "paid", cluster.heartbeats)
        peer.on(HeartBeat.CODE, success)
        membership.subscribe([Subscription("orders", "refunded")])
        assert known_expression(cluster) == "refunded"


def test_a_subscription_that_is_interrupted_is_taken_back(peer: Peer, cluster: FakeCluster) -> None:
    with open_cluster(peer) as broker:
        membership = joined(broker)
        subscribe = partial(membership.subscribe, [Subscription("orders", "refunded")])
        for at in count():
            if interrupted_at(subscribe, at, ("mq.remoting.client.heartbeats",)) is not None:
                break
            told = membership.consumer_group().subscription_data_set[0]
            assert (told.topic, told.sub_string) == ("orders", "paid"), at
        assert at > 10
        assert known_expression(cluster) == "refunded"
