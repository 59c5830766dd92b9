"""Consumers where a broker of several is down, has just started, lags behind or answers strangely."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import mq
from mq.api.group import Membership, Subscription
from mq.remoting import serve
from mq.remoting.client.connections import cluster as routes
from mq.remoting.client.groups import consumer_groups
from mq.remoting.codec.bodies.consuming import ConsumerIds, QueueOffsets
from mq.remoting.codec.bodies.route import BrokerAddresses, QueueCounts, TopicRoute
from mq.remoting.codec.fields import decode_fields, encode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.consuming import PullAnswer, PullMessage
from mq.remoting.codec.requests.groups import GetConsumerList
from mq.remoting.codec.requests.name_servers import GetRoute
from mq.remoting.codec.requests.offsets import (
    GetMaxOffset,
    OffsetAnswer,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from mq.remoting.codec.requests.pushed import ResetClientOffset
from mq.remoting.codec.requests.statistics import GetConsumerConnections
from mq.remoting.codec.response_codes import ResponseCode
from tests.support.eventually import eventually
from tests.support.fake_cluster import FakeCluster, answer, open_cluster, requests_of
from tests.support.remoting_peer import Link, Peer, with_code

Answering = Callable[[Link, Frame, int], Awaitable[None]]
NO_MEMBERS = ResponseCode.CONSUMER_NOT_ONLINE


@pytest.fixture
def cluster(peer: Peer) -> FakeCluster:
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 2
    peer.on(GetConsumerConnections.CODE, with_code(NO_MEMBERS))
    return cluster


@pytest.fixture
def other() -> Iterator[Peer]:
    with Peer() as other:
        yield other


def pulls(peer: Peer, answering: Answering) -> list[int]:
    """The offsets that it is asked for from now on."""
    asked: list[int] = []

    async def pull(link: Link, request: Frame) -> None:
        offset = decode_fields(PullMessage, request.fields).queue_offset
        asked.append(offset)
        await answering(link, request, offset)

    peer.on(PullMessage.CODE, pull)
    return asked


def committed(peer: Peer) -> list[int]:
    found = requests_of(peer, UpdateConsumerOffset)
    return [decode_fields(UpdateConsumerOffset, each.fields).commit_offset for each in found]


def joined(broker: mq.Broker) -> Membership:
    return broker.consumer_groups.join(
        "billing",
        client_id="one",
        model="clustering",
        consume_type="push",
        ordered=False,
        subscriptions=[Subscription("orders")],
        consume_from="first",
    )


@pytest.mark.parametrize("code", [ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY])
def test_what_a_slave_lacks_is_asked_of_the_master(
    peer: Peer, other: Peer, cluster: FakeCluster, code: ResponseCode
) -> None:
    cluster.queue_counts["orders"] = 1
    cluster.serve(other)
    cluster.slave = other.address

    async def of_master(link: Link, request: Frame, offset: int) -> None:
        if offset == 0:
            answer(link, request, PullAnswer(1, 1, 0, 1000), ResponseCode.PULL_RETRY_IMMEDIATELY)
        else:
            answer(link, request, PullAnswer(0, offset, 0, 1000), ResponseCode.PULL_NOT_FOUND)

    async def of_slave(link: Link, request: Frame, _: int) -> None:
        answer(link, request, PullAnswer(0, 500, 500, 1000), code)

    asked, of_other = pulls(peer, of_master), pulls(other, of_slave)
    with open_cluster(peer) as broker, mq.PushConsumer(broker, "billing") as consumer:
        consumer.subscribe("orders", listener=lambda _: None)
        consumer.start()
        eventually(lambda: asked[:2] == [0, 1], lambda: (asked, of_other))
    assert of_other == [1]
    assert max(committed(peer), default=0) <= 1


@pytest.mark.parametrize("step", [0, -1], ids=["same", "back"])
def test_a_pull_that_gets_nowhere_is_not_repeated_at_once(
    peer: Peer, cluster: FakeCluster, step: int
) -> None:
    cluster.queue_counts["orders"] = 1

    async def same(link: Link, request: Frame, offset: int) -> None:
        fields = PullAnswer(0, offset + (step if offset else 5), 0, 500_000)
        answer(link, request, fields, ResponseCode.PULL_RETRY_IMMEDIATELY)

    asked = pulls(peer, same)
    with open_cluster(peer) as broker, mq.PushConsumer(broker, "billing") as consumer:
        consumer.subscribe("orders", listener=lambda _: None)
        consumer.start()
        eventually(lambda: len(asked) >= 3, lambda: asked)
        assert asked[:3] == [0, 5, 5]
        time.sleep(0.2)
        assert len(asked) < 10


def test_a_queue_of_which_a_file_is_missing_goes_on_behind_it(peer: Peer, cluster: FakeCluster) -> None:
    cluster.queue_counts["orders"] = 1

    async def missing(link: Link, request: Frame, offset: int) -> None:
        fields = PullAnswer(0, max(offset, 300), 0, 300)
        answer(link, request, fields, ResponseCode.PULL_NOT_FOUND)

    asked = pulls(peer, missing)
    with open_cluster(peer) as broker:
        found = broker.topic("orders").queues[0].read(7)
        assert (found.status, found.next_offset) == (mq.PullStatus.NO_MATCHED_MESSAGE, 300)
        asked.clear()
        with mq.PushConsumer(broker, "billing") as consumer:
            consumer.subscribe("orders", listener=lambda _: None)
            consumer.start()
            eventually(lambda: len(asked) >= 2, lambda: asked)
            assert asked[:2] == [0, 300]
    assert committed(peer)[-1] == 300


def test_a_claim_that_is_released_writes_the_reset_that_came(
    peer: Peer, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_groups, "OFFSETS_SECONDS", 3600.0)  # Nothing else writes offsets.
    queue = mq.MessageQueue("orders", "a", 0)
    with open_cluster(peer) as broker:
        membership = joined(broker)
        claim = membership.claim(queue)
        assert claim is not None
        assert claim.committed() == 0
        assert claim.commit(10)
        reset = ResetClientOffset(topic="orders", group="billing", timestamp=0, is_force=True)
        body = to_json(QueueOffsets({queue: 3}))
        peer.push(Frame(ResetClientOffset.CODE, encode_fields(reset), body))
        eventually(lambda: not claim.is_current(), lambda: "the reset did not come")
        claim.release()
        membership.leave()
    assert committed(peer) == [3]


def test_a_broker_that_has_just_started_ends_no_sharing(peer: Peer, cluster: FakeCluster) -> None:
    """It answers that the group has no consumer, until it has got their heartbeats."""
    cluster.other_members = ("zzz",)
    with open_cluster(peer) as broker:
        membership = joined(broker)
        assert [member.client_id for member in membership.members()] == ["one", "zzz"]
        beats = len(cluster.heartbeats())
        peer.on(GetConsumerList.CODE, with_code(ResponseCode.SYSTEM_ERROR, "no consumer for this group"))
        assert [member.client_id for member in membership.members()] == ["one", "zzz"]
        eventually(lambda: len(cluster.heartbeats()) > beats, lambda: "no heartbeat")
        membership.leave()


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "refuses"])
def test_a_broker_that_is_down_keeps_no_consumer_from_the_others(
    peer: Peer, cluster: FakeCluster, other: Peer, hangs: bool
) -> None:
    async def route(link: Link, request: Frame) -> None:
        brokers = [BrokerAddresses("A-down", {0: other.address}, "c"), cluster.addresses]
        counts = [QueueCounts(broker.broker_name, 1, 1) for broker in brokers]
        link.answer(request, body=to_json(TopicRoute(tuple(brokers), tuple(counts))))

    async def members(link: Link, request: Frame) -> None:
        ids = {beat.client_id for beat in cluster.heartbeats() if beat.consumer_data_set}
        link.answer(request, body=to_json(ConsumerIds(tuple(ids))))

    peer.on(GetRoute.CODE, route)
    peer.on(GetConsumerList.CODE, members)
    if not hangs:
        other.stop()
    # Of one that hangs each question takes as long; one that refuses takes none.
    timeout = 3.0 if hangs else 30.0
    with open_cluster(peer, timeout=timeout) as broker, mq.PullConsumer(broker, "billing") as consumer:
        consumer.subscribe("orders")
        for _ in range(2):
            assert consumer.poll(0.1) == []
        assert {queue.broker_name for queue in consumer.assignment()} == {"a"}


@pytest.mark.parametrize("body", [None, b'{{1:2,"1":"x"}:3}'], ids=["refused", "hostile"])
def test_a_route_that_fails_keeps_no_other_from_being_refreshed(
    peer: Peer, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, body: bytes | None
) -> None:
    monkeypatch.setattr(routes, "REFRESH_SECONDS", 0.05)
    cluster.queue_counts["bad"] = 1
    usual = peer.replies[GetRoute.CODE]
    with open_cluster(peer) as broker:
        assert (len(broker.publishable("bad")), len(broker.publishable("orders"))) == (1, 2)

        async def route(link: Link, request: Frame) -> None:
            if decode_fields(GetRoute, request.fields).topic != "bad":
                await usual(link, request)
            elif body is None:
                link.answer(request, ResponseCode.NO_PERMISSION, remark="denied")
            else:
                link.answer(request, body=body)

        peer.on(GetRoute.CODE, route)
        for count in (8, 4):
            cluster.queue_counts["orders"] = count
            eventually(lambda: len(broker.publishable("orders")) == count, lambda: "the route stays")  # noqa: B023 - called here


def test_a_new_group_that_begins_last_gets_nothing_old(directory: Path) -> None:
    with (
        mq.open(directory) as store,
        serve(store, port=0, namesrv_port=0) as server,
        mq.open("rocketmq://" + server.name_server, timeout=30.0) as broker,
    ):
        topic = store.create_topic("orders", 2)
        for number in range(6):
            topic.send(b"old %d" % number)
        with mq.PullConsumer(broker, "billing", consume_from="last") as consumer:
            consumer.subscribe("orders")
            topic.send(b"new")
            found: list[bytes] = []
            until = time.monotonic() + 60
            while b"new" not in found and time.monotonic() < until:
                found += [message.body for message in consumer.poll(0.2)]
            assert found == [b"new"]


def beginning(broker: mq.Broker) -> None:
    with mq.PullConsumer(broker, "billing", consume_from="last") as consumer:
        consumer.assign(broker.topic("orders").queues)


def test_a_group_begins_at_all_ends_or_at_none(peer: Peer, cluster: FakeCluster) -> None:
    """With offsets of some queues it would have begun, and its other queues would have been made later."""

    async def end(link: Link, request: Frame) -> None:
        if decode_fields(GetMaxOffset, request.fields).queue_id == 0:
            answer(link, request, OffsetAnswer(7))
        else:
            link.answer(request, ResponseCode.SYSTEM_ERROR, remark="no end")

    peer.on(QueryConsumerOffset.CODE, with_code(ResponseCode.QUERY_NOT_FOUND))
    peer.on(GetMaxOffset.CODE, end)
    with open_cluster(peer) as broker, pytest.raises(mq.RemotingError, match="no end"):
        beginning(broker)
    assert not requests_of(peer, UpdateConsumerOffset)


def test_a_beginning_that_cannot_be_written_is_an_error(peer: Peer, cluster: FakeCluster) -> None:
    peer.on(QueryConsumerOffset.CODE, with_code(ResponseCode.QUERY_NOT_FOUND))
    peer.on(UpdateConsumerOffset.CODE, with_code(ResponseCode.SYSTEM_ERROR, "not written"))
    with open_cluster(peer) as broker, pytest.raises(mq.RemotingError, match="not written"):
        beginning(broker)


def test_an_assigned_queue_that_was_made_again_is_read_from_its_begin(directory: Path) -> None:
    with (
        mq.open(directory) as store,
        serve(store, port=0, namesrv_port=0) as server,
        mq.open("rocketmq://" + server.name_server, timeout=30.0) as broker,
        mq.PullConsumer(broker, "billing") as consumer,
    ):
        topic = store.create_topic("orders", 1)
        for number in range(5):
            topic.send(b"old %d" % number)
        found: list[bytes] = []

        def is_gone() -> bool:
            try:
                found.extend(message.body for message in consumer.poll(0.2))
            except mq.TopicNotFound:
                return True
            return False

        def has(count: int) -> bool:
            is_gone()
            return len(found) >= count

        consumer.assign(broker.topic("orders").queues)
        eventually(lambda: has(5), lambda: found, 60)
        consumer.commit()
        store.delete_topic("orders")
        eventually(is_gone, lambda: "the topic is there", 60)
        topic, found = store.create_topic("orders", 1), []
        for number in range(10):
            topic.send(b"new %d" % number)
        eventually(lambda: has(10), lambda: found, 60)
        assert found == [b"new %d" % number for number in range(10)]
        consumer.close()
        assert list(store.group("billing").offsets("orders").values()) == [10]
