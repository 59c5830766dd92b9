"""Queues that a client of a server has locked, to consume them in order: it goes by its lock for 30 s,
whatever becomes of its connection and of the server. Nobody else gets the queue meanwhile."""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import pytest

import mq
from mq.api.group import Membership
from mq.api.results import MessageQueue
from mq.broker.local import LocalBroker
from mq.remoting import serve
from mq.remoting.codec.bodies.consuming import LockedQueues, QueueLock
from mq.remoting.codec.bodies.heartbeat import ConsumerGroup, Heartbeat, Subscription
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.groups import HeartBeat, LockQueues, UnlockQueues, UnregisterClient
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.groups import member as remote_member
from mq.remoting.server.server import Server
from tests.support.eventually import eventually
from tests.support.joining import client_ids, join, taken_over
from tests.support.raw_requests import RawClient, body
from tests.support.serving import Serving, serving

GROUP = "billing"
QUEUE = MessageQueue("orders", "mq", 0)


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    """Of a member beside the servers."""
    with mq.open(directory) as broker:
        assert isinstance(broker, LocalBroker)
        broker.create_topic("orders", 1)
        broker.topic("orders").send(b"one")
        yield broker


@pytest.fixture
def servers(directory: Path, broker: LocalBroker) -> Iterator[list[Server]]:
    """Two, of brokers of their own, like two processes."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(serve(stack.enter_context(mq.open(directory)), port=0, namesrv_port=0))
            for _ in range(2)
        ]


@pytest.fixture
def local(broker: LocalBroker) -> Membership:
    return join(broker, ordered=True)


def joined(server: Server | Serving, client_id: str = "one") -> RawClient:
    client = RawClient(server)
    data = ConsumerGroup(GROUP, subscription_data_set=(Subscription("orders", "*"),))
    client.ask(HeartBeat(), to_json(Heartbeat(client_id, consumer_data_set=(data,))))
    return client


def locks(client: RawClient, client_id: str = "one") -> bool:
    wanted = to_json(QueueLock(GROUP, client_id, (QUEUE,)))
    return body(LockedQueues, client.ask(LockQueues(), wanted)).locked == (QUEUE,)


def lose(client: RawClient, broker: mq.Broker) -> None:
    """Close a connection, and wait until the group has no remote member."""
    client.close()
    eventually(lambda: client_ids(broker) == ["here"], lambda: f"{client_ids(broker)}")


def test_a_lost_connection_passes_no_locked_queue_on(
    broker: LocalBroker, servers: list[Server], local: Membership
) -> None:
    client = joined(servers[0])
    assert locks(client)
    lose(client, broker)
    assert local.claim(QUEUE) is None
    other = joined(servers[1], "two")
    assert not locks(other, "two")
    other.close()


def test_the_client_itself_has_it_again_by_another_server(
    broker: LocalBroker, servers: list[Server], local: Membership
) -> None:
    client = joined(servers[0])
    assert locks(client)
    lose(client, broker)
    client = joined(servers[1])
    assert locks(client)
    assert local.claim(QUEUE) is None
    client.close()


def test_a_killed_server_passes_no_locked_queue_on(
    directory: Path, broker: LocalBroker, servers: list[Server], local: Membership
) -> None:
    with serving(directory) as killed:
        client = joined(killed)
        assert locks(client)
        killed.end(signal.SIGKILL)
    lose(client, broker)
    assert local.claim(QUEUE) is None
    client = joined(servers[0])
    assert locks(client)
    client.close()


def test_the_wait_has_an_end_of_which_members_are_told(
    broker: LocalBroker, servers: list[Server], local: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_member, "LOCK_SECONDS", 5.0)
    client = joined(servers[0])
    assert locks(client)
    lose(client, broker)
    assert local.claim(QUEUE) is None
    claim, _ = taken_over(broker, local)
    assert claim.committed() == 0


@pytest.mark.parametrize("knows", [True, False], ids=["same-server", "another-server"])
def test_an_unlocked_queue_is_free_at_once(
    broker: LocalBroker, servers: list[Server], local: Membership, knows: bool
) -> None:
    client = joined(servers[0])
    assert locks(client)
    if not knows:
        lose(client, broker)
        client = joined(servers[1])
    client.ask(UnlockQueues(), to_json(QueueLock(GROUP, "one", (QUEUE,))))
    assert local.claim(QUEUE) is not None
    client.close()


def test_a_client_that_says_good_bye_keeps_nothing(
    broker: LocalBroker, servers: list[Server], local: Membership
) -> None:
    client = joined(servers[0])
    assert locks(client)
    client.ask(UnregisterClient("one", None, GROUP))
    assert local.claim(QUEUE) is not None
    client.close()


def test_a_closed_server_passes_no_locked_queue_on(
    directory: Path, broker: LocalBroker, local: Membership
) -> None:
    with mq.open(directory) as served, serve(served, port=0, namesrv_port=0) as server:
        client = joined(server)
        assert locks(client)
    client.close()
    assert local.claim(QUEUE) is None


def test_the_group_says_why_nobody_has_the_queue(
    broker: LocalBroker, servers: list[Server], local: Membership
) -> None:
    client = joined(servers[0])
    begin = monotonic()
    assert locks(client)
    lose(client, broker)
    [state] = broker.consumer_groups.states(GROUP, "orders")
    passed = monotonic() - begin
    assert state.owner is None
    told = re.search(r"nobody else gets it for (\d+) s", state.reason)
    assert told
    assert remote_member.LOCK_SECONDS - passed - 1 < int(told[1]) <= remote_member.LOCK_SECONDS


def test_a_queue_made_anew_is_reserved_for_nobody(
    broker: LocalBroker, servers: list[Server], local: Membership
) -> None:
    client = joined(servers[0])
    assert locks(client)
    lose(client, broker)
    broker.delete_topic("orders")
    broker.create_topic("orders", 1)
    assert local.claim(QUEUE) is not None


def test_a_queue_that_was_pulled_without_a_lock_is_free_at_once(
    broker: LocalBroker, servers: list[Server], local: Membership
) -> None:
    client = joined(servers[0])
    [member] = servers[0].served.members.of_group(GROUP)
    assert member.have(QUEUE) is not None
    assert local.claim(QUEUE) is None
    lose(client, broker)
    assert local.claim(QUEUE) is not None


def test_an_unlock_of_what_another_member_has_wants_nothing(
    broker: LocalBroker, servers: list[Server], local: Membership
) -> None:
    client = joined(servers[0])
    assert local.claim(QUEUE) is not None
    client.ask(UnlockQueues(), to_json(QueueLock(GROUP, "one", (QUEUE,))))
    [state] = broker.consumer_groups.states(GROUP, "orders")
    assert "waiting" not in state.reason
    client.close()


@pytest.mark.parametrize("queue_id", [-1, 1, 1 << 31, 1 << 40, -(1 << 40)])
def test_a_queue_that_there_is_not_is_not_locked(
    servers: list[Server], caplog: pytest.LogCaptureFixture, queue_id: int
) -> None:
    """The others of the request are."""
    with joined(servers[0]) as client:
        queues = to_json(QueueLock(GROUP, "one", (MessageQueue("orders", "mq", queue_id), QUEUE)))
        assert body(LockedQueues, client.ask(LockQueues(), queues)).locked == (QUEUE,)
        assert client.ask(UnlockQueues(), queues).code == ResponseCode.SUCCESS
        [member] = servers[0].served.members.of_group(GROUP)
        assert member.owned() == []
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
