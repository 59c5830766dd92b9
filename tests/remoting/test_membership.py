"""What a member of a group tells the brokers of a cluster, where a call fails, is late or is cut short."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import pytest

import mq
from mq.api.group import Subscription
from mq.remoting.client import heartbeats
from mq.remoting.client.groups import claims
from mq.remoting.client.groups import membership as memberships
from mq.remoting.client.groups.membership import subscription_data
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.groups import HeartBeat, LockQueues, UnlockQueues, UnregisterClient
from tests.support.eventually import eventually
from tests.support.fake_cluster import FakeCluster, HeldRequests, joined, open_cluster, requests_of, success
from tests.support.interrupting import interrupted_at
from tests.support.remoting_peer import Link, Peer, silence

LIMIT = 60.0
BEGUN_SECONDS = 0.3  # after which the other thread waits: if it does not, the test proves nothing
QUEUE = mq.MessageQueue("orders", "a", 0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def cluster(peer: Peer) -> FakeCluster:
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 1
    return cluster


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


def unlocked(peer: Peer) -> int:
    return len(requests_of(peer, UnlockQueues))


def test_a_renewal_that_comes_after_the_release_leaves_no_queue_locked(
    peer: Peer, cluster: FakeCluster
) -> None:
    """The broker handled the unlocking before it: the next owner would wait until the lock expires."""
    with open_cluster(peer) as broker:
        membership = joined(broker, ordered=True)
        claim = membership.claim(QUEUE)
        assert claim is not None
        renewals = HeldRequests(peer, LockQueues)
        membership.renew_locks()
        renewals.wait()
        claim.release()
        eventually(lambda: unlocked(peer) == 1, lambda: peer.requests)
        renewals.answer()
        eventually(lambda: unlocked(peer) == 2, lambda: peer.requests)


def test_a_renewal_that_comes_after_the_next_claim_unlocks_nothing(peer: Peer, cluster: FakeCluster) -> None:
    with open_cluster(peer) as broker:
        membership = joined(broker, ordered=True)
        claim = membership.claim(QUEUE)
        assert claim is not None
        answering = peer.replies[LockQueues.CODE]
        renewals = HeldRequests(peer, LockQueues)
        membership.renew_locks()
        renewals.wait()
        claim.release()
        peer.on(LockQueues.CODE, answering)
        assert membership.claim(QUEUE) is not None
        renewals.answer()
        membership.members()  # Its answer comes after that of the renewal.
        assert unlocked(peer) == 1


def test_a_queue_that_is_locked_after_the_member_has_left_is_unlocked(
    peer: Peer, cluster: FakeCluster
) -> None:
    with open_cluster(peer) as broker, ThreadPoolExecutor(1) as threads:
        membership = joined(broker, ordered=True)
        locks = HeldRequests(peer, LockQueues)
        claiming = threads.submit(membership.claim, QUEUE)
        locks.wait()
        membership.leave()
        locks.answer()
        assert claiming.result(60) is None
        eventually(lambda: unlocked(peer) == 1, lambda: peer.requests)
        assert not membership.claims


def test_a_lock_counts_from_when_it_was_asked_for(
    peer: Peer, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker counts from then on. Its answer may be late."""
    clock = Clock()
    for module in (claims, memberships):
        monkeypatch.setattr(module, "monotonic", clock)
    answering = peer.replies[LockQueues.CODE]

    async def late(link: Link, request: Frame) -> None:
        clock.now += claims.LOCK_SECONDS - 1
        await answering(link, request)

    peer.on(LockQueues.CODE, late)
    with open_cluster(peer) as broker:
        membership = joined(broker, ordered=True)
        claim, other = membership.claim(QUEUE), membership.claim(QUEUE._replace(queue_id=1))
        assert claim is not None
        assert other is not None
        assert claim.is_lost()
        assert not other.is_lost()
        membership.renew_locks()
        eventually(lambda: clock.now > 100 + 3 * (claims.LOCK_SECONDS - 2), lambda: clock.now)
        membership.members()  # Its answer comes after that of the renewal.
        assert not other.is_lost()
        clock.now += 2
        assert other.is_lost()


def after_unregistration(peer: Peer) -> list[int]:
    """The codes of what came later."""
    codes = [frame.code for frame in peer.requests]
    return codes[codes.index(UnregisterClient.CODE) + 1 :]


def test_a_member_that_leaves_sends_no_heartbeat_after_that(
    peer: Peer, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker would take it for a member again, and its queues would stand still."""
    is_made, may_go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        is_made.set()
        may_go_on.wait(LIMIT)
        return subscription_data(*arguments)

    with open_cluster(peer) as broker, ThreadPoolExecutor(2) as threads:
        membership = joined(broker)
        monkeypatch.setattr(memberships, "subscription_data", slow)
        sending = threads.submit(membership.on_unknown_member)
        assert is_made.wait(LIMIT)
        leaving = threads.submit(membership.leave)
        time.sleep(BEGUN_SECONDS)
        may_go_on.set()
        sending.result(LIMIT)
        leaving.result(LIMIT)
        membership.members()  # Its answer comes after all that was sent before.
        assert HeartBeat.CODE not in after_unregistration(peer)


def test_a_member_leaves_once_its_last_heartbeat_is_answered(peer: Peer, cluster: FakeCluster) -> None:
    """RocketMQ's brokers have one pool of threads for heartbeats, and another one for who leaves."""
    with open_cluster(peer) as broker, ThreadPoolExecutor(1) as threads:
        membership = joined(broker)
        beats = HeldRequests(peer, HeartBeat)
        membership.on_unknown_member()
        beats.wait()
        leaving = threads.submit(membership.leave)
        time.sleep(BEGUN_SECONDS)
        assert requests_of(peer, UnregisterClient) == []
        beats.answer()
        leaving.result(LIMIT)
        assert len(requests_of(peer, UnregisterClient)) == 1
