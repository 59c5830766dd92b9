"""A reader of a queue goes where the broker sends it: to a slave, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

import mq
from mq.remoting.client.groups import claim_puller
from mq.remoting.codec.fields import decode_fields, encode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.consuming import PullAnswer, PullMessage
from mq.remoting.codec.response_codes import ResponseCode
from tests.support.eventually import eventually
from tests.support.fake_cluster import FakeCluster, answer, open_cluster, requests_of
from tests.support.records import encode_record
from tests.support.remoting_peer import Link, Peer, Reply, with_code


@pytest.fixture
def slave() -> Iterator[Peer]:
    with Peer() as slave:
        yield slave


def suggesting(broker_id: int) -> Reply:
    """One message, and where to go on."""

    async def reply(link: Link, request: Frame) -> None:
        offset = decode_fields(PullMessage, request.fields).queue_offset
        fields = encode_fields(PullAnswer(broker_id, offset + 1, 0, offset + 1))
        link.answer(request, fields=fields, body=encode_record("orders", 0, offset, 0, b"1", b""))

    return reply


def test_a_reader_follows_the_suggested_broker(peer: Peer, slave: Peer) -> None:
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 1
    cluster.serve(slave)
    cluster.slave = slave.address
    peer.on(PullMessage.CODE, suggesting(1))
    slave.on(PullMessage.CODE, suggesting(1))

    def counts() -> tuple[int, int]:
        return len(requests_of(peer, PullMessage)), len(requests_of(slave, PullMessage))

    with open_cluster(peer) as broker:
        pull = broker.puller(mq.MessageQueue("orders", "a", 0))

        def read() -> None:
            assert len(pull(0, 32, 1 << 20, None, 0.0).messages) == 1

        read()
        read()
        read()
        assert counts() == (1, 2)
        slave.on(PullMessage.CODE, suggesting(0))
        read()
        read()
        assert counts() == (2, 3)
        slave.on(PullMessage.CODE, with_code(ResponseCode.SYSTEM_ERROR, "broken"))
        with pytest.raises(mq.RemotingError, match="broken"):
            read()
        read()
        assert counts() == (3, 4)
        peer.on(PullMessage.CODE, suggesting(7))  # There is no such slave.
        cluster.slave = None
        slave.on(PullMessage.CODE, suggesting(7))
        read()
        read()
        assert counts() == (4, 5)


@pytest.mark.parametrize("code", [ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED])
def test_what_a_slave_lacks_is_read_from_the_master(peer: Peer, slave: Peer, code: ResponseCode) -> None:
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 1
    cluster.serve(slave)
    cluster.slave = slave.address
    peer.on(PullMessage.CODE, suggesting(1))

    async def behind(link: Link, request: Frame) -> None:
        answer(link, request, PullAnswer(1, 0, 0, 0), code)

    slave.on(PullMessage.CODE, behind)
    with open_cluster(peer) as broker:
        pull = broker.puller(mq.MessageQueue("orders", "a", 0))
        for offset in (5, 6):
            assert pull(offset, 32, 1 << 20, None, 0.0).next_offset == offset + 1
    assert len(requests_of(slave, PullMessage)) == 1


def lacks_topic(peer: Peer) -> Callable[[], None]:
    """Have a peer hold its pulls, and answer that there is no such topic from the call that comes back on."""
    told = asyncio.Event()

    async def answer_late(link: Link, request: Frame) -> None:
        await told.wait()
        link.answer(request, ResponseCode.TOPIC_NOT_EXIST, remark="no topic")

    async def tell() -> None:
        told.set()

    peer.on(PullMessage.CODE, answer_late)
    return lambda: peer.run(tell())


@pytest.mark.parametrize("is_alone", [False, True], ids=["beside its master", "alone"])
def test_a_topic_that_a_slave_lacks_is_not_gone(
    peer: Peer, slave: Peer, is_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the consumer has read of it stays read."""
    monkeypatch.setattr(claim_puller, "BACKOFF_SECONDS", 0.01)
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 1
    cluster.serve(slave)
    cluster.slave = slave.address
    peer.on(PullMessage.CODE, suggesting(1))
    tell = lacks_topic(slave)
    with open_cluster(peer) as broker, mq.PullConsumer(broker, "billing") as consumer:
        consumer.assign(broker.topic("orders").queues)
        found = [message.queue_offset for message in consumer.poll(30)]
        if is_alone:
            cluster.master = None
            broker.topic("orders")  # It asks for the route.
        tell()

        def has_more() -> bool:
            found.extend(message.queue_offset for message in consumer.poll(0.1))
            return len(found) >= 4

        eventually(lambda: bool(requests_of(slave, PullMessage)) and (is_alone or has_more()), found.copy, 60)
        if is_alone:
            assert consumer.poll(0.1) == []
            cluster.master = peer.address
            broker.topic("orders")
            eventually(has_more, found.copy, 60)
    assert found[:4] == [0, 1, 2, 3]


def test_a_topic_that_its_master_lacks_is_gone_whatever_the_routes_say_by_then(peer: Peer) -> None:
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 1
    tell = lacks_topic(peer)
    with open_cluster(peer) as broker, mq.PullConsumer(broker, "billing") as consumer:
        consumer.assign(broker.topic("orders").queues)
        assert consumer.poll(0) == []
        del cluster.queue_counts["orders"]
        with pytest.raises(mq.TopicNotFound):
            broker.topic("orders")  # It asks for the route, which has the broker's address.
        tell()
        with pytest.raises(mq.TopicNotFound):
            consumer.poll(30)
