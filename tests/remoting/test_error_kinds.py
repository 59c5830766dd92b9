"""Every way in which a cluster fails a caller is one named error, with the address and what was tried."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pickle import dumps, loads

import pytest

import mq
from mq.api.queues import Appenders
from mq.remoting.codec.bodies.route import QueueCounts, TopicRoute
from mq.remoting.codec.fields import encode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.consuming import PullAnswer, PullMessage
from mq.remoting.codec.requests.name_servers import GetRoute
from mq.remoting.codec.requests.offsets import GetMaxOffset
from mq.remoting.codec.requests.sending import SendAnswer, SendMessageV2
from mq.remoting.codec.response_codes import ResponseCode
from tests.support.fake_cluster import FakeCluster, answer, open_cluster
from tests.support.records import encode_record
from tests.support.remoting_peer import Link, Peer, after, with_code

QUEUE = mq.MessageQueue("orders", "a", 0)
MESSAGE = mq.Message("orders", b"1")
ACL_REMARK = "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=app"


@pytest.fixture
def master() -> Iterator[Peer]:
    """The broker; the name server is `peer`."""
    with Peer() as master:
        yield master


@pytest.fixture
def cluster(peer: Peer, master: Peer) -> FakeCluster:
    cluster = FakeCluster(peer)
    cluster.serve(master)
    cluster.master = master.address
    cluster.queue_counts["orders"] = 1
    return cluster


def failure_of(name_server: Peer, call: Callable[[mq.Broker], object], timeout: float = 30.0) -> mq.MQError:
    """The error of a call; it survives pickling, as an error from another process has to."""
    with open_cluster(name_server, timeout) as broker, pytest.raises(mq.MQError) as caught:
        call(broker)
    assert isinstance(caught.value, (mq.RemotingError, mq.RequestTimeout))
    again: mq.MQError = loads(dumps(caught.value))
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))
    assert again.__dict__ == caught.value.__dict__
    return again


def send(broker: mq.Broker) -> object:
    return broker.append_batch(QUEUE, [MESSAGE])


def send_one(broker: mq.Broker) -> object:
    return Appenders(broker.appender)(QUEUE, MESSAGE, MESSAGE.body, 0)


def pull(broker: mq.Broker) -> object:
    return broker.puller(QUEUE)(0, 32, 1 << 20, None, 0.0)


def assert_says(error: mq.MQError, peer: Peer, *texts: str) -> None:
    assert getattr(error, "address", None) == peer.address
    for text in (peer.address, *texts):
        assert text in str(error)


def test_a_name_server_that_cannot_be_reached(peer: Peer) -> None:
    peer.stop()
    error = failure_of(peer, lambda broker: broker.publishable("orders"))
    assert_says(error, peer, "no name server answered GET_ROUTEINFO_BY_TOPIC", "cannot be reached")


def test_a_broker_that_cannot_be_reached(peer: Peer, cluster: FakeCluster, master: Peer) -> None:
    master.stop()
    assert_says(failure_of(peer, send), master, "cannot be reached: Connection refused")


def test_a_topic_without_a_route(peer: Peer, cluster: FakeCluster) -> None:
    for call in (
        lambda broker: broker.readable("gone"),
        lambda broker: broker.publishable("gone"),
        lambda broker: broker.topic("gone"),
        lambda broker: broker.delete_topic("gone"),
        lambda broker: broker.query("gone", "key"),
    ):
        error = failure_of(peer, call)
        assert isinstance(error, mq.TopicNotFound)
        assert (error.topic, error.code) == ("gone", ResponseCode.TOPIC_NOT_EXIST)  # type: ignore[attr-defined]  # also a RemotingError
        assert_says(error, peer, "no route", "broker.create_topic('gone')")


def test_a_broker_in_no_route(peer: Peer, cluster: FakeCluster) -> None:
    elsewhere = QUEUE._replace(broker_name="b")
    error = failure_of(peer, lambda broker: broker.append_batch(elsewhere, [MESSAGE]))
    assert_says(error, peer, "'b'")
    cluster.master = None
    assert_says(failure_of(peer, lambda broker: broker.max_offset(QUEUE)), peer, "'a'")


def test_wrong_credentials(peer: Peer, cluster: FakeCluster, master: Peer) -> None:
    """4.9 answers SYSTEM_ERROR, 5.3 NO_PERMISSION."""
    for code in (ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION):
        master.on(SendMessageV2.CODE, with_code(code, ACL_REMARK))
        error = failure_of(peer, send_one)
        assert isinstance(error, mq.RemotingError)
        assert (error.code, error.remark) == (code, ACL_REMARK)
        assert_says(error, master, "answered SEND_MESSAGE_V2 with", "Check signature failed")


def test_a_topic_without_permission(peer: Peer, cluster: FakeCluster) -> None:
    async def closed(link: Link, request: Frame) -> None:
        body = TopicRoute((cluster.addresses,), (QueueCounts("a", 1, 1, perm=0),))
        link.answer(request, body=to_json(body))

    peer.on(GetRoute.CODE, closed)
    for call, text in (
        (lambda broker: broker.publishable("orders"), "may not be written on any broker"),
        (lambda broker: broker.readable("orders"), "may not be read on any broker"),
    ):
        error = failure_of(peer, call)
        assert isinstance(error, mq.NotPermitted)
        assert_says(error, peer, text)


def test_a_frame_that_lies_about_its_length(peer: Peer, cluster: FakeCluster, master: Peer) -> None:
    async def lying(link: Link, request: Frame) -> None:
        link.send_bytes(b"\x00\x00\x00\x08\x00\xff\xff\xff{}{}")

    master.on(SendMessageV2.CODE, lying)
    error = failure_of(peer, send_one)
    assert isinstance(error, mq.ProtocolMismatch)
    assert_says(error, master, "its header has 16,777,215")


def test_an_answer_without_what_it_should_have(peer: Peer, cluster: FakeCluster, master: Peer) -> None:
    master.on(SendMessageV2.CODE, with_code(0))
    error = failure_of(peer, send_one)
    assert_says(error, master, "SendAnswer lacks the field")
    assert error.unique_id is not None  # It is stored: another attempt has to be recognised.

    async def wrong_id(link: Link, request: Frame) -> None:
        answer(link, request, SendAnswer("no offset id", 0, 0))

    master.on(SendMessageV2.CODE, wrong_id)
    error = failure_of(peer, send_one)
    assert_says(error, master, "'no offset id'")
    assert error.unique_id is not None
    master.on(GetMaxOffset.CODE, with_code(0))
    assert_says(failure_of(peer, lambda broker: broker.max_offset(QUEUE)), master, "OffsetAnswer lacks")

    async def no_route(link: Link, request: Frame) -> None:
        link.answer(request, body=b"[1]")

    peer.on(GetRoute.CODE, no_route)
    assert_says(failure_of(peer, send), peer, "a body is no TopicRoute")


def test_a_record_with_a_wrong_checksum(peer: Peer, cluster: FakeCluster, master: Peer) -> None:
    record = encode_record("orders", 0, 0, 0, b"unmistakable", b"")

    async def damaged(link: Link, request: Frame) -> None:
        body = record.replace(b"unmistakable", b"unmistakeble")
        link.answer(request, fields=encode_fields(PullAnswer(0, 1, 0, 1)), body=body)

    master.on(PullMessage.CODE, damaged)
    assert_says(failure_of(peer, pull), master, "messages that are damaged", "checksum")


def test_an_answer_that_comes_late(peer: Peer, cluster: FakeCluster, master: Peer) -> None:
    master.on(SendMessageV2.CODE, after(20.0))
    error = failure_of(peer, send_one, timeout=5.0)  # The route and the connection take some of it too.
    assert isinstance(error, mq.RequestTimeout)
    assert_says(error, master, "did not answer SEND_MESSAGE_V2")
    assert re.search(r"within \d\.\d s", str(error))  # what is left of it for this request
    assert error.unique_id is not None


def test_what_is_too_large_for_a_frame(peer: Peer, cluster: FakeCluster, master: Peer) -> None:
    many = [mq.Message("orders", bytes(4 << 20)) for _ in range(5)]
    error = failure_of(peer, lambda broker: broker.append_batch(QUEUE, many))
    assert_says(error, master, "nothing was sent", "send less at once")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_send_that_has_no_time_left_says_which_broker_was_silent(
    peer: Peer, cluster: FakeCluster, master: Peer, is_async: bool
) -> None:
    master.on(SendMessageV2.CODE, after(20.0))
    with open_cluster(peer) as broker, mq.Producer(broker, timeout=0.5) as producer:
        broker.publishable("orders")  # Else the time may be over before its route is known,
        broker.max_offset(QUEUE)  # or before there is a connection.
        with pytest.raises((mq.RequestTimeout, mq.SendFailed)) as caught:
            producer.send_async(MESSAGE).result(30) if is_async else producer.send(MESSAGE)
        assert master.address in str(caught.value)
        if isinstance(caught.value, mq.RequestTimeout):
            assert caught.value.address == master.address
