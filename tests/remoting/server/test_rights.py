"""Requests whose rights the server can only check after it has looked at the store, or at the signature."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.remoting import serve
from mq.remoting.codec.bodies.heartbeat import ConsumerGroup, Heartbeat, ProducerGroup
from mq.remoting.codec.fields import encode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.language import VERSION
from mq.remoting.codec.requests.consuming import PullFlag, PullMessage, QueryMessage
from mq.remoting.codec.requests.groups import HeartBeat, UnregisterClient
from mq.remoting.codec.requests.name_servers import GetRoute
from mq.remoting.codec.requests.offsets import GetMaxOffset, UpdateConsumerOffset
from mq.remoting.codec.requests.sending import EndTransaction, RecallMessage, SendMessage, SendMessageBack
from mq.remoting.codec.requests.topics import DeleteTopicInBroker
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.codec.signature import Credentials, signed
from mq.remoting.server.access import Access, AccessKeys
from mq.remoting.server.server import Server
from tests.support.raw_requests import RawClient, ask

KEYS: AccessKeys = {
    "operator": "operators-secret",
    "mine": ("s", {"mine": "SUB", "orders": "SUB"}),
    "other": ("s", {"other": "SUB", "mine": "SUB"}),
    "any": ("s", {"*": "PUB|SUB", "secret": "DENY"}),
    "writer": ("s", {"*": "PUB"}),
}
OPERATOR = Credentials("operator", "operators-secret")
MINE = Credentials("mine", "s")
OTHER = Credentials("other", "s")
ANY = Credentials("any", "s")
WRITER = Credentials("writer", "s")


@pytest.fixture
def server(store: mq.Broker) -> Iterator[Server]:
    with serve(store, port=0, namesrv_port=0, access_keys=KEYS) as server:
        yield server


def stored(store: mq.Broker, topic: str) -> int:
    """The log offset of a new message."""
    return int(store.create_topic(topic, 1).send(b"body").offset_msg_id[-16:], 16)


def pulled(server: Server, topic: str) -> Frame:
    flags = PullFlag.SUBSCRIPTION | PullFlag.SUSPEND
    return ask(server, PullMessage("mine", topic, 0, 0, 32, flags, 0, 30_000, 0, "*", "TAG"), signer=MINE)


def test_only_a_message_of_a_readable_topic_is_sent_back(store: mq.Broker, server: Server) -> None:
    secret, orders = stored(store, "secret"), stored(store, "orders")
    answer = ask(server, SendMessageBack(secret, "mine", 1, origin_topic="orders"), signer=MINE)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "lacks SUB for 'secret'" in answer.remark
    assert "%RETRY%mine" not in store.topics()
    assert ask(server, SendMessageBack(orders, "mine", 1), signer=MINE).code == ResponseCode.SUCCESS


def test_a_retry_is_sent_back_only_with_the_right_to_its_first_topic(
    store: mq.Broker, server: Server
) -> None:
    orders = stored(store, "orders")
    assert ask(server, SendMessageBack(orders, "mine", 1), signer=MINE).code == ResponseCode.SUCCESS
    assert pulled(server, "%RETRY%mine").code == ResponseCode.SUCCESS
    [retry] = store.topic("%RETRY%mine").queues[0].read(0).messages
    answer = ask(server, SendMessageBack(retry.log_offset, "other", 1), signer=OTHER)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "lacks SUB for 'orders'" in answer.remark
    assert ask(server, SendMessageBack(retry.log_offset, "mine", 1), signer=MINE).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_what_a_group_failed_to_consume_is_written_by_its_members_alone(
    store: mq.Broker, server: Server, prefix: str
) -> None:
    store.create_topic(prefix + "mine", 1)
    request = SendMessage("shop", prefix + "mine", "TBW102", 4, 0, 0, 0, 0, "")
    answer = ask(server, request, content=b"forged", signer=WRITER)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "lacks SUB for 'mine'" in answer.remark
    assert store.topic(prefix + "mine").queues[0].max_offset == 0


def test_a_member_is_unregistered_by_its_own_client_alone(store: mq.Broker, server: Server) -> None:
    store.create_topic("orders", 1)
    joins = to_json(Heartbeat("client", (), (ConsumerGroup("mine"),)))
    with RawClient(server) as member, RawClient(server) as stranger:
        assert member.ask(HeartBeat(), joins, signer=MINE).code == ResponseCode.SUCCESS
        leaves = UnregisterClient("client", consumer_group="mine")
        assert stranger.ask(leaves, signer=OTHER).code == ResponseCode.SUCCESS
        assert [each.client_id for each in store.group("mine").members()] == ["client"]
        assert member.ask(leaves, signer=MINE).code == ResponseCode.SUCCESS
        assert store.group("mine").members() == []


def test_a_half_message_is_not_sent_back(directory: Path) -> None:
    with (
        mq.open(directory) as store,
        serve(store, port=0, namesrv_port=0, access_keys=KEYS) as server,
    ):
        stored(store, "orders")
        queue = store.topic("orders").queues[0].message_queue
        half = store.transactions.preparer(queue, "shop")(mq.Message("orders", b"half"), b"half", 0, None)
        assert half is not None
        offset = int(half.offset_msg_id[-16:], 16)
        answer = ask(server, SendMessageBack(offset, "mine", 1), signer=OPERATOR)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "which is the broker's own" in answer.remark


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"])
def test_a_right_to_any_topic_is_none_to_read_the_brokers_own(server: Server, topic: str) -> None:
    for request in (
        PullMessage("mine", topic, 0, 0, 32, PullFlag.SUBSCRIPTION, 0, 0, 0, "*", "TAG"),
        QueryMessage(topic, "key", 32, 0, 1 << 60),
    ):
        answer = ask(server, request, signer=ANY)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert f"lacks SUB for {topic!r}" in answer.remark
        assert "lacks" not in ask(server, request, signer=OPERATOR).remark


def test_a_half_message_is_shown_only_to_those_who_may_send_it(directory: Path) -> None:
    heartbeat = to_json(Heartbeat("client", (ProducerGroup("shop"),), ()))
    with (
        mq.open(directory, transaction_timeout=1, transaction_check_interval=1) as store,
        serve(store, port=0, namesrv_port=0, access_keys=KEYS) as server,
        RawClient(server) as stranger,
        RawClient(server) as operator,
    ):
        for topic in ("secret", "orders"):
            queue = store.create_topic(topic, 1).queues[0].message_queue
            store.transactions.preparer(queue, "shop")(mq.Message(topic, b"half"), b"half", 0, None)
        assert stranger.ask(HeartBeat(), heartbeat, signer=ANY).code == ResponseCode.SUCCESS
        for _ in range(3):
            assert stranger.receive().fields["topic"] == "orders"
        assert operator.ask(HeartBeat(), heartbeat, signer=OPERATOR).code == ResponseCode.SUCCESS
        while operator.receive().fields["topic"] != "secret":
            pass


@pytest.mark.parametrize("state", [EndTransaction.COMMIT, EndTransaction.ROLLBACK])
def test_a_transaction_is_ended_only_by_those_who_may_send_its_message(directory: Path, state: int) -> None:
    with (
        mq.open(directory) as store,
        serve(store, port=0, namesrv_port=0, access_keys=KEYS) as server,
    ):
        store.create_topic("open", 1).send(b"other")
        for topic, signer, is_allowed in (
            ("secret", ANY, False),
            ("secret", OPERATOR, True),
            ("open", ANY, True),
        ):
            queue = store.create_topic(topic, 1).queues[0].message_queue
            half = store.transactions.preparer(queue, "shop")(mq.Message(topic, b"half"), b"half", 0, None)
            assert half is not None
            log_offset = int(half.offset_msg_id[-16:], 16)
            # RocketMQ 5 goes by the topic that the client names.
            request = EndTransaction("shop", half.queue_offset, log_offset, state, half.msg_id, topic="open")
            answer = ask(server, request, signer=signer)
            if is_allowed:
                assert answer.code == ResponseCode.SUCCESS, answer.remark
            else:
                assert answer.code == ResponseCode.NO_PERMISSION
                assert "lacks PUB for 'secret'" in answer.remark
                assert [each.message.topic for each in store.transactions.undecided()] == ["secret"]
                assert store.topic(topic).queues[0].max_offset == 0


def test_a_recall_needs_the_right_to_the_topic_in_its_handle(directory: Path) -> None:
    with (
        mq.open(directory) as store,
        serve(store, port=0, namesrv_port=0, access_keys=KEYS) as server,
    ):
        sent = store.create_topic("secret", 1).send(b"delayed", delay_ms=3_600_000)
        assert sent.recall_handle is not None
        request = RecallMessage("orders", sent.recall_handle)
        answer = ask(server, request, signer=ANY)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "lacks PUB for 'secret'" in answer.remark
        answer = ask(server, RecallMessage("orders", "no handle"), signer=ANY)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert ask(server, request, signer=OPERATOR).code == ResponseCode.SUCCESS


def test_the_signature_is_checked_before_anything_else(server: Server) -> None:
    with RawClient(server) as client:
        for frame in (
            Frame(9999),
            Frame(GetMaxOffset.CODE, {"topic": "orders", "queueId": "no number"}),
            Frame(GetMaxOffset.CODE, {}),
        ):
            client.send(frame)
            assert client.receive().code == ResponseCode.NO_PERMISSION
        assert client.ask(GetMaxOffset("orders", 0), signer=OPERATOR).code != ResponseCode.NO_PERMISSION


def test_a_recorded_request_is_carried_out_again_and_no_changed_one(store: mq.Broker, server: Server) -> None:
    """RocketMQ's signature has no nonce: docs/security.md says what follows from that."""
    queue = store.create_topic("orders", 1).queues[0]
    request = SendMessage("shop", "orders", "TBW102", 4, 0, 0, 0, 0, "KEYS\x01k\x02")
    fields = signed(encode_fields(request), b"recorded", OPERATOR, VERSION)
    recorded = Frame(SendMessage.CODE, fields, b"recorded")
    codes = []
    for frame in (
        recorded,
        recorded,
        Frame(SendMessage.CODE, fields, b"changed"),
        Frame(SendMessage.CODE, {**fields, "topic": "other"}, b"recorded"),
    ):
        with RawClient(server) as stranger:
            stranger.send(frame)
            codes.append(stranger.receive().code)
    assert codes == [ResponseCode.SUCCESS] * 2 + [ResponseCode.NO_PERMISSION] * 2
    assert [(message.body, message.keys) for message in queue.read(0).messages] == [(b"recorded", ("k",))] * 2
    assert "other" not in store.topics()


def test_a_recorded_request_can_be_sent_as_another(store: mq.Broker, server: Server) -> None:
    """The signature has neither the code nor where a value ends: docs/security.md warns of that."""
    for name in ("orders", "billing"):
        store.create_topic(name, 1)
    fields = signed(encode_fields(GetRoute("orders")), b"", OPERATOR, VERSION)
    split = signed(encode_fields(GetRoute("billing")), b"", OPERATOR, VERSION)
    split.update(topic="bill", topic0="ing")
    with RawClient(server) as stranger:
        stranger.send(Frame(GetRoute.CODE, split))
        assert stranger.receive().code == ResponseCode.TOPIC_NOT_EXIST  # It has none named "bill".
        stranger.send(Frame(DeleteTopicInBroker.CODE, fields))
        assert stranger.receive().code == ResponseCode.SUCCESS
    assert "orders" not in store.topics()


@pytest.mark.parametrize(
    "given",
    [["s"], 5, ("s", "PUB"), ("s", None), ("s", {"orders": ["PUB"]}), ("s", {"orders": "PUB"}, "more")],
)
def test_a_key_that_is_no_key_is_named(given: Any) -> None:
    with pytest.raises(TypeError, match="access key 'mine'"):
        Access({"mine": given})


def test_an_offset_of_no_queue_is_no_damage(store: mq.Broker, server: Server) -> None:
    store.create_topic("orders", 1)
    answer = ask(server, UpdateConsumerOffset("mine", "orders", -1, 5), signer=MINE)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "has no queue -1" in answer.remark
