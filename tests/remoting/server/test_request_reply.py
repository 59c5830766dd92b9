"""Replies to messages of Producer.request(), as they are on the wire; test_java_clients.py has Java do it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mq
from mq.properties import decode
from mq.remoting import serve
from mq.remoting.codec.bodies.heartbeat import Heartbeat, ProducerGroup
from mq.remoting.codec.fields import Request, decode_fields, encode_fields
from mq.remoting.codec.frame import Frame, answer_to
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.groups import HeartBeat, UnregisterClient
from mq.remoting.codec.requests.name_servers import GetRoute
from mq.remoting.codec.requests.pushed import PushReplyMessage
from mq.remoting.codec.requests.sending import SendAnswer, SendMessage, SendReplyMessage, SendReplyMessageV2
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.server import Server
from tests.support.eventually import eventually
from tests.support.raw_requests import RawClient, ask

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = "CORRELATION_ID\x01c1\x02REPLY_TO_CLIENT\x01asking\x02TTL\x013000\x02"


def reply(properties: str = PROPERTIES + "MSG_TYPE\x01reply\x02") -> SendReplyMessage:
    return SendReplyMessage("answering", REPLY_TOPIC, "TBW102", 4, 0, 0, 123, 7, properties)


def request_for_reply(client: RawClient) -> None:
    request = SendMessage("shop", "orders", "TBW102", 4, 0, 0, 0, 0, PROPERTIES)
    assert client.ask(request, b"question").code == ResponseCode.SUCCESS


def send(client: RawClient, request: Request, content: bytes) -> None:
    client.send(Frame(request.CODE, encode_fields(request), content))


@pytest.fixture
def asking(server: Server) -> Iterator[RawClient]:
    """A producer that waits for replies."""
    with RawClient(server) as client:
        heartbeat = to_json(Heartbeat("asking", (ProducerGroup("shop"),), ()))
        assert client.ask(HeartBeat(), heartbeat).code == ResponseCode.SUCCESS
        yield client


def test_a_request_names_the_cluster(store: mq.Broker, server: Server) -> None:
    queue = store.create_topic("orders", 1).queues[0]
    for properties in ("KEYS\x01k\x02", PROPERTIES + "CLUSTER\x01other\x02"):
        request = SendMessage("shop", "orders", "TBW102", 4, 0, 0, 0, 0, properties)
        assert ask(server, request, content=b"body").code == ResponseCode.SUCCESS
    found = [decode(message.encoded).get("CLUSTER") for message in queue.read(0).messages]
    assert found == [None, "DefaultCluster"]


@pytest.mark.parametrize("kind", [SendReplyMessage, SendReplyMessageV2])
def test_a_reply_is_pushed_to_the_producer_that_waits(
    store: mq.Broker, server: Server, asking: RawClient, kind: type[Request]
) -> None:
    assert ask(server, GetRoute(REPLY_TOPIC)).code == ResponseCode.SUCCESS
    sent = reply()
    with RawClient(server) as answering:
        send(answering, kind(**vars(sent)), b"yes")
        pushed = asking.asked(PushReplyMessage)
        fields = decode_fields(PushReplyMessage, pushed.fields)
        assert pushed.body == b"yes"
        assert (fields.topic, fields.queue_id, fields.flag, fields.born_timestamp) == (REPLY_TOPIC, 0, 7, 123)
        found = decode((fields.properties or "").encode())
        assert (found["CORRELATION_ID"], found["MSG_TYPE"]) == ("c1", "reply")
        assert int(found["PUSH_REPLY_TIME"]) == fields.store_timestamp
        assert fields.store_host == server.address
        asking.send(answer_to(pushed, ResponseCode.SUCCESS))
        answer = answering.receive()
    assert answer.code == ResponseCode.SUCCESS
    assert answer.fields["MSG_REGION"]
    [message] = store.topic(REPLY_TOPIC).queues[0].read(0).messages
    assert message.body == b"yes"
    assert decode_fields(SendAnswer, answer.fields).queue_offset == message.queue_offset


def test_a_reply_that_the_producer_refuses_has_failed(server: Server, asking: RawClient) -> None:
    assert ask(server, GetRoute(REPLY_TOPIC)).code == ResponseCode.SUCCESS
    with RawClient(server) as answering:
        send(answering, reply(), b"yes")
        asking.send(answer_to(asking.asked(PushReplyMessage), ResponseCode.SYSTEM_ERROR, remark="too late"))
        answer = answering.receive()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "push reply message to asking fail: too late"


def test_a_reply_to_nobody_has_failed(server: Server, asking: RawClient) -> None:
    for properties, remark in (
        (PROPERTIES.replace("asking", "gone"), "channel of <gone> not found"),
        ("CORRELATION_ID\x01c1\x02", "properties[REPLY_TO_CLIENT] is null"),
    ):
        answer = ask(server, reply(properties), content=b"yes")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert remark in answer.remark
    assert asking.ask(UnregisterClient("asking", producer_group="shop")).code == ResponseCode.SUCCESS
    assert "not found" in ask(server, reply(), content=b"yes").remark


def test_a_producer_that_is_lost_gets_no_reply(server: Server, asking: RawClient) -> None:
    asking.close()
    eventually(
        lambda: server.served.members.producer("asking") is None,
        lambda: server.served.members.producer("asking"),
    )
    assert "channel of <asking> not found" in ask(server, reply(), content=b"yes").remark


@pytest.fixture
def other(store: mq.Broker) -> Iterator[Server]:
    """Another server of the store."""
    with serve(store, port=0, namesrv_port=0) as other:
        yield other


def test_a_reply_reaches_a_producer_at_another_server(
    store: mq.Broker, other: Server, asking: RawClient
) -> None:
    store.create_topic("orders", 1)
    request_for_reply(asking)
    sent = reply()
    for body in (b"yes", b"and more"):
        answer = ask(other, sent, content=body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        pushed = asking.asked(PushReplyMessage)
        fields = decode_fields(PushReplyMessage, pushed.fields)
        assert pushed.body == body
        assert (fields.topic, fields.flag) == (REPLY_TOPIC, 7)
        found = decode((fields.properties or "").encode())
        assert (found["CORRELATION_ID"], found["MSG_TYPE"]) == ("c1", "reply")
        assert int(found["PUSH_REPLY_TIME"]) == fields.store_timestamp
        asking.send(answer_to(pushed, ResponseCode.SUCCESS))
    stored = store.topic(REPLY_TOPIC).queues[0].read(0).messages
    assert [message.body for message in stored] == [b"yes", b"and more"]


def test_a_reply_is_pushed_by_one_server(
    store: mq.Broker, server: Server, other: Server, asking: RawClient
) -> None:
    """Not again by those that find it in the store."""
    store.create_topic("orders", 1)
    request_for_reply(asking)
    with RawClient(server) as answering:
        for body in (b"first", b"second"):
            send(answering, reply(), body)
            pushed = asking.asked(PushReplyMessage)
            assert pushed.body == body
            asking.send(answer_to(pushed, ResponseCode.SUCCESS))
            assert answering.receive().code == ResponseCode.SUCCESS
    assert ask(other, reply(), content=b"third").code == ResponseCode.SUCCESS
    assert asking.asked(PushReplyMessage).body == b"third"


def test_replies_are_relayed_again_after_their_topic_was_deleted(
    store: mq.Broker, other: Server, asking: RawClient
) -> None:
    store.create_topic("orders", 1)
    request_for_reply(asking)
    store.delete_topic(REPLY_TOPIC)
    eventually(
        lambda: not store.consumer_groups.members("CID_RMQ_SYS_SERVERS_OF_REPLIES"),
        lambda: store.consumer_groups.members("CID_RMQ_SYS_SERVERS_OF_REPLIES"),
        30.0,
    )
    request_for_reply(asking)
    assert ask(other, reply(), content=b"yes").code == ResponseCode.SUCCESS
    assert asking.asked(PushReplyMessage).body == b"yes"


def test_a_server_that_is_closed_hears_no_replies(store: mq.Broker, other: Server) -> None:
    store.create_topic("orders", 1)
    with serve(store, port=0, namesrv_port=0) as closed, RawClient(closed) as asking:
        request_for_reply(asking)
    answer = ask(other, reply(), content=b"yes")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "channel of <asking> not found" in answer.remark
