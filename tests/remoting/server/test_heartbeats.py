"""Clients that come and go: what their heartbeats make of them, and what of a pull is theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

import mq
from mq.remoting import serve
from mq.remoting.codec.bodies.heartbeat import ConsumerGroup, Heartbeat, ProducerGroup, Subscription
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.consuming import PullFlag, PullMessage
from mq.remoting.codec.requests.groups import HeartBeat
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.server import Server
from tests.support.eventually import eventually
from tests.support.raw_requests import RawClient

ALL = Subscription("orders", "*")


def consumers(group: str, subscription: Subscription = ALL) -> ConsumerGroup:
    return ConsumerGroup(group, subscription_data_set=(subscription,))


def beat(
    client: RawClient, client_id: str, *groups: ConsumerGroup, producers: tuple[ProducerGroup, ...] = ()
) -> Frame:
    return client.ask(HeartBeat(), to_json(Heartbeat(client_id, producers, groups)))


@pytest.fixture(autouse=True)
def topic(store: mq.Broker) -> mq.Topic:
    return store.create_topic("orders", 1)


def test_a_connection_has_one_member_of_a_group(store: mq.Broker, server: Server) -> None:
    """A member that no connection led to would stay for ever."""
    with RawClient(server) as client:
        for number in range(5):
            assert beat(client, f"client-{number}", consumers("billing")).code == ResponseCode.SUCCESS
        [member] = server.served.members.all()
        assert member.client_id == "client-4"
        assert [each.client_id for each in store.consumer_groups.members("billing")] == ["client-4"]
    eventually(lambda: not server.served.members.all(), server.served.members.all)


def test_a_client_is_back_at_once(server: Server) -> None:
    """Before, or while, the server hears of the end of the connection that it had."""
    groups = [f"group-{number}" for number in range(6)]
    for round_ in range(50):
        with RawClient(server) as client:
            answer = beat(client, "one", *map(consumers, groups))
            assert answer.code == ResponseCode.SUCCESS, (round_, answer.remark)
            for group in groups:
                found = client.ask(PullMessage(group, "orders", 0, 0, 32, 0, 0, 0, 0, None, None))
                assert found.code == ResponseCode.PULL_NOT_FOUND, (round_, found.remark)


@pytest.mark.parametrize(
    "bad",
    [
        consumers("bad", Subscription("orders", "a > 1", expression_type="XPATH")),
        consumers("bad", Subscription("orders", "a >", expression_type="SQL92")),
        consumers("no group"),
        ProducerGroup("no group"),
    ],
    ids=["kind", "syntax", "name", "producer"],
)
def test_a_bad_part_of_a_heartbeat_keeps_no_other_group_out(
    server: Server, bad: ConsumerGroup | ProducerGroup
) -> None:
    producers = (bad,) if isinstance(bad, ProducerGroup) else ()
    groups = (bad,) if isinstance(bad, ConsumerGroup) else ()
    with RawClient(server) as client:
        answer = beat(client, "one", *groups, consumers("good"), producers=producers)
        assert answer.code not in {ResponseCode.SUCCESS, None}
        assert "good" in {member.group for member in server.served.members.all()}


def test_a_pull_selects_by_its_own_subscription(directory: Path) -> None:
    """Which may come before the heartbeat that says the same: what the former one left out is found."""
    with (
        mq.open(directory, enable_consume_queue_ext=True) as store,
        serve(store, port=0, namesrv_port=0) as server,
    ):
        topic = store.create_topic("numbers", 1)
        few = Subscription("numbers", "a > 5", expression_type="SQL92")
        with RawClient(server) as client:
            assert beat(client, "one", consumers("billing", few)).code == ResponseCode.SUCCESS
            for number in range(10):
                topic.send(b"%d" % number, properties={"a": str(number)})

            def count(expression: str, kind: str) -> int:
                flags = PullFlag.SUBSCRIPTION
                pull = PullMessage("billing", "numbers", 0, 0, 32, flags, 0, 0, 0, expression, kind)
                return client.ask(pull).body.count(b"a\x01")

            assert [count("a > 5", "SQL92"), count("a > 2", "SQL92"), count("*", "TAG")] == [4, 7, 10]
