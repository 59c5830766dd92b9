"""What clients leave behind, and what they make a server hold: none of it grows without end."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import mq
from mq.broker.groups import groups
from mq.errors import GroupInvalid
from mq.remoting import serve
from mq.remoting.codec.bodies.heartbeat import ConsumerGroup, Heartbeat, ProducerGroup, Subscription
from mq.remoting.codec.fields import decode_fields, encode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.consuming import PullAnswer, PullFlag, PullMessage
from mq.remoting.codec.requests.groups import HeartBeat
from mq.remoting.codec.requests.offsets import UpdateConsumerOffset
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.groups.members import (
    CLIENT_ID_SIZE_MAX,
    GROUPS_MAX,
    SUBSCRIPTIONS_MAX,
    SUBSCRIPTIONS_SIZE_MAX,
)
from mq.remoting.server.handlers import pulling
from mq.remoting.server.server import Server
from tests.support.eventually import eventually
from tests.support.insides import strangers_of
from tests.support.memory.broker import MemoryBroker
from tests.support.raw_requests import RawClient

GROUP_COUNT = 20


@pytest.fixture
def serving() -> Iterator[Server]:
    with MemoryBroker() as store, serve(store, port=0, namesrv_port=0) as server:
        store.create_topic("orders", 1)
        yield server


def open_group_files(directory: Path) -> list[Path]:
    """What this process has open of the files of groups."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # It was closed just now.
            found.append(each.readlink())
    return [each for each in found if each.parent == directory / "mq" / "groups"]


def beat(client: RawClient, client_id: str, *named: ConsumerGroup, producers: Sequence[str] = ()) -> int:
    made = tuple(map(ProducerGroup, producers))
    return client.ask(HeartBeat(), to_json(Heartbeat(client_id, made, named))).code


def consumers(group: str, *topics: str) -> ConsumerGroup:
    return ConsumerGroup(group, subscription_data_set=tuple(Subscription(topic, "*") for topic in topics))


@pytest.mark.parametrize("kind", ["commits", "heartbeats"])
def test_groups_that_a_connection_named_cost_no_descriptors_for_ever(
    directory: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(groups, "UNUSED_MAX", 5)
    with mq.open(directory) as store, serve(store, port=0, namesrv_port=0) as server:
        store.create_topic("orders", 1).send(b"one")
        names = [f"group-{number}" for number in range(GROUP_COUNT)]
        with RawClient(server) as client:
            for name in names:
                if kind == "commits":
                    answer = client.ask(UpdateConsumerOffset(name, "orders", 0, 1))
                    assert answer.code == ResponseCode.SUCCESS, answer.remark
                else:
                    assert beat(client, "one", consumers(name, "orders")) == ResponseCode.SUCCESS
        eventually(
            lambda: not server.connections and len(open_group_files(directory)) <= 5,
            lambda: f"{open_group_files(directory)}",
        )
        if kind == "commits":
            offsets = [store.consumer_groups.offsets(name, "orders") for name in names]
            assert [list(each.values()) for each in offsets] == [[1]] * GROUP_COUNT
        # A member of one of them sees another that comes later, by whichever mapping of the file.
        with RawClient(server) as client:
            assert beat(client, "two", consumers(names[0], "orders")) == ResponseCode.SUCCESS
            assert [each.client_id for each in store.consumer_groups.members(names[0])] == ["two"]


def test_the_client_ids_that_a_connection_had_are_forgotten(serving: Server) -> None:
    members = serving.served.members
    with RawClient(serving) as client:
        assert beat(client, "one", producers=["shop", "other"]) == ResponseCode.SUCCESS
        assert beat(client, "two", producers=["shop"]) == ResponseCode.SUCCESS
        assert members.producer("one") is not None  # of the other group
        assert beat(client, "two", producers=["other"]) == ResponseCode.SUCCESS
        assert members.producer("one") is None
        [(connection, client_id)] = members.producers("shop")
        assert members.producer("two") is connection
        assert client_id == "two"
    eventually(lambda: members.producer("two") is None, members.producer_groups)


@pytest.mark.parametrize(
    "client_id",
    ["x" * (CLIENT_ID_SIZE_MAX + 1), "one\ngroup billing: two left", "one\0", "one\u2028two"],
    ids=["long", "newline", "nul", "separator"],
)
def test_a_client_id_that_no_client_has_is_refused(serving: Server, client_id: str) -> None:
    members = serving.served.members
    with RawClient(serving) as client:
        code = beat(client, client_id, consumers("billing", "orders"), producers=["shop"])
        assert code not in {ResponseCode.SUCCESS, None}
        assert (members.all(), members.producer_groups()) == ([], [])


@pytest.mark.parametrize(
    "client_id",
    [
        "10.0.0.1@12345#81726354@UNIT@STREAM",
        "[fe80::1%eth0]@DEFAULT",
        "Büro 7@日本",
        "x" * CLIENT_ID_SIZE_MAX,
    ],
)
def test_the_client_ids_of_clients_are_accepted(serving: Server, client_id: str) -> None:
    with RawClient(serving) as client:
        assert beat(client, client_id, consumers("billing", "orders")) == ResponseCode.SUCCESS
        assert [each.client_id for each in serving.served.members.all()] == [client_id]


def test_names_that_are_none_of_a_group_are_not_kept(serving: Server) -> None:
    with RawClient(serving) as client:
        bad = [f"no group {number}" for number in range(GROUPS_MAX + 1)]
        assert beat(client, "one", producers=bad) not in {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
        good = [f"group-{number}" for number in range(GROUPS_MAX)]
        assert beat(client, "one", producers=good) == ResponseCode.SUCCESS


def test_a_heartbeat_that_is_refused_is_let_go_at_once(serving: Server) -> None:
    """It may have megabytes, and the next round of garbage collection be far away."""
    with RawClient(serving) as client:
        assert beat(client, "one", producers=["shop"]) == ResponseCode.SUCCESS
        [connection] = serving.served.connections
        heartbeat = Heartbeat("one", (ProducerGroup("no group"),), ())
        kept = weakref.ref(heartbeat)
        gc.disable()
        try:
            with suppress(GroupInvalid):
                serving.served.members.heard(connection, heartbeat)
            del heartbeat
            assert kept() is None
        finally:
            gc.enable()


def test_the_subscriptions_of_a_group_are_bounded(serving: Server) -> None:
    """Those of retry topics too, of which other members hear nothing."""
    topics = [f"%RETRY%{number}" for number in range(SUBSCRIPTIONS_MAX + 1)]
    long = ["%DLQ%" + f"{number}".rjust(SUBSCRIPTIONS_SIZE_MAX // 100, "x") for number in range(100)]
    with RawClient(serving) as client:
        for refused in (topics, long):
            assert beat(client, "one", consumers("billing", *refused)) == ResponseCode.SYSTEM_BUSY
            assert serving.served.members.all() == []
        assert beat(client, "one", consumers("billing", "orders", *topics[:-2])) == ResponseCode.SUCCESS
        [member] = serving.served.members.all()
        assert len(member.wanted) == SUBSCRIPTIONS_MAX
        assert beat(client, "one", consumers("billing", *topics)) == ResponseCode.SYSTEM_BUSY
        assert len(member.wanted) == SUBSCRIPTIONS_MAX
        assert member.data.subscription_data_set == ()


def test_nothing_is_known_of_a_connection_that_is_lost(serving: Server) -> None:
    """A oneway pull may commit after that."""
    members = serving.served.members
    with RawClient(serving) as client:
        assert beat(client, "one", consumers("billing", "orders")) == ResponseCode.SUCCESS
        [connection] = serving.served.connections
    eventually(lambda: not members.all(), members.all)
    members.known(connection, "reading")
    assert strangers_of(members) == []


def test_a_pull_of_a_rare_tag_looks_at_so_many_messages(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client goes on at once; at the end of the queue it waits."""
    monkeypatch.setattr(pulling, "WAITING_SCAN_COUNT_MAX", 1000)
    flags = PullFlag.SUBSCRIPTION | PullFlag.SUSPEND
    with mq.open(directory) as store, serve(store, port=0, namesrv_port=0) as server:
        topic = store.create_topic("orders", 1)
        for _ in range(1900):
            topic.send(b"one", tags="usual")
        with RawClient(server) as client:

            def send(offset: int) -> None:
                pull = PullMessage("reading", "orders", 0, offset, 32, flags, 0, 30_000, 0, "rare", "TAG")
                client.send(Frame(PullMessage.CODE, encode_fields(pull)))

            send(0)
            answer = client.receive()
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            offset = decode_fields(PullAnswer, answer.fields).next_begin_offset
            assert 1000 <= offset < 1900
            send(offset)
            eventually(lambda: any(each.holds for each in list(server.served.connections)), lambda: None)
            topic.send(b"one", tags="rare")
            answer = client.receive()
            assert answer.code == ResponseCode.SUCCESS
            assert decode_fields(PullAnswer, answer.fields).next_begin_offset == 1901
