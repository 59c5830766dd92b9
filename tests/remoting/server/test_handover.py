"""Queues that change their owner while pulls are held, and what a slave is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.api.results import MessageQueue
from mq.remoting import serve
from mq.remoting.codec.bodies.heartbeat import ConsumerGroup, Heartbeat, Subscription
from mq.remoting.codec.fields import decode_fields, encode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.consuming import PullFlag, PullMessage
from mq.remoting.codec.requests.groups import HeartBeat
from mq.remoting.codec.requests.name_servers import RegisterBroker, RegisterBrokerAnswer
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.groups.member import RemoteMember
from mq.remoting.server.options import CLUSTER
from mq.remoting.server.server import Server
from tests.support.eventually import eventually
from tests.support.raw_requests import RawClient, ask

GROUP = ConsumerGroup("billing", subscription_data_set=(Subscription("orders", "*"),))


@pytest.fixture
def queue(store: mq.Broker) -> MessageQueue:
    return store.create_topic("orders", 1).queues[0].message_queue


@pytest.fixture
def client(server: Server, queue: MessageQueue) -> Iterator[RawClient]:
    """A member that holds a pull of the queue."""
    with RawClient(server) as client:
        client.ask(HeartBeat(), to_json(Heartbeat("one", consumer_data_set=(GROUP,))))
        pull = PullMessage("billing", "orders", 0, 0, 32, PullFlag.SUSPEND, 0, 30_000, 0, None, None)
        client.send(Frame(PullMessage.CODE, encode_fields(pull)))
        eventually(lambda: any(each.holds for each in list(server.served.connections)), lambda: "no pull")
        yield client


def member_of(server: Server) -> RemoteMember:
    [member] = server.served.members.of_group("billing")
    return member


def answer(client: RawClient) -> Frame:
    while not (frame := client.receive()).is_response:
        pass
    return frame


def test_the_answer_to_a_held_pull_is_no_use_of_its_queue(
    store: mq.Broker, server: Server, client: RawClient, queue: MessageQueue
) -> None:
    kept = member_of(server).kept(queue)
    assert kept is not None
    used_at = kept.used_at
    store.topic("orders").send(b"one")
    assert answer(client).code == ResponseCode.SUCCESS
    assert kept.used_at == used_at


def test_a_held_pull_does_not_claim_its_queue_again(
    store: mq.Broker, server: Server, client: RawClient, queue: MessageQueue
) -> None:
    member = member_of(server)
    member.unlock(queue)
    store.topic("orders").send(b"one")
    assert answer(client).code == ResponseCode.PULL_NOT_FOUND
    assert member.owned() == []


def test_the_share_of_a_member_that_pulls_is_not_computed(
    server: Server, client: RawClient, queue: MessageQueue
) -> None:
    member, asked = member_of(server), list[str]()

    def readable(topic: str) -> tuple[MessageQueue, ...]:
        asked.append(topic)
        return ()

    member.expire(readable)
    assert (asked, member.owned()) == ([], [queue])


def test_a_slave_is_given_addresses_that_it_can_reach(directory: Path) -> None:
    with mq.open(directory) as store, serve(store, "0.0.0.0", 0, 0, ha_port=0) as server:
        register = RegisterBroker(
            broker_name=store.name,
            broker_addr="10.0.0.9:1",
            cluster_name=CLUSTER,
            ha_server_addr="10.0.0.9:2",
            broker_id=1,
        )
        told = decode_fields(RegisterBrokerAnswer, ask(server, register).fields)
        assert server.ha_address is not None
        assert told.ha_server_addr == server.ha_address.replace("0.0.0.0", "127.0.0.1")
        assert told.master_addr == server.address.replace("0.0.0.0", "127.0.0.1")
