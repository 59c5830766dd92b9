"""What a thread of the server finds done, that stood still between two of its steps: each client keeps what
it has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import mq
from mq.api.group import Subscription as Wanted
from mq.api.results import MessageQueue
from mq.errors import AddressInUse
from mq.remoting import serve
from mq.remoting.codec.bodies.heartbeat import ConsumerGroup, Heartbeat, Subscription
from mq.remoting.codec.fields import decode_fields
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.consuming import PullFlag, PullMessage
from mq.remoting.codec.requests.groups import GetConsumerList, HeartBeat
from mq.remoting.codec.requests.offsets import OffsetAnswer, QueryConsumerOffset, UpdateConsumerOffset
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.groups.member import RemoteMember
from mq.remoting.server.handlers import pulling
from mq.remoting.server.holding import Held
from mq.remoting.server.server import Server
from mq.remoting.server.transport.listener import listening
from tests.support.eventually import eventually
from tests.support.raw_requests import RawClient

GROUP = "billing"
SENT = 5
PATIENCE = 60.0
A_WHILE = 0.2  # seconds in which another thread does what it must not, if it can


@pytest.fixture
def queue(store: mq.Broker) -> MessageQueue:
    queue = store.create_topic("orders", 1).queues[0].message_queue
    for number in range(SENT):
        store.topic("orders").send(b"%d" % number)
    return queue


def heartbeat(client_id: str = "one") -> Heartbeat:
    data = ConsumerGroup(GROUP, subscription_data_set=(Subscription("orders", "*"),))
    return Heartbeat(client_id, consumer_data_set=(data,))


@pytest.fixture
def joined(server: Server, queue: MessageQueue) -> Iterator[RawClient]:
    with RawClient(server) as client:
        client.ask(HeartBeat(), to_json(heartbeat()))
        yield client


@pytest.fixture
def member(server: Server, joined: RawClient) -> RemoteMember:
    [member] = server.served.members.of_group(GROUP)
    return member


def committed(store: mq.Broker, queue: MessageQueue) -> int | None:
    return store.consumer_groups.offsets(GROUP, "orders").get(queue)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def released_meanwhile(member: RemoteMember, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is released as soon as the next request has found that the client has it."""
    found = member.kept

    def kept(queue: MessageQueue) -> Any:
        monkeypatch.undo()
        was_kept = found(queue)
        member.unlock(queue)
        return was_kept

    kept_of: Any = member
    member.have(queue)
    monkeypatch.setattr(kept_of, "kept", kept)


def test_a_queue_that_is_released_may_be_had_again(
    member: RemoteMember, queue: MessageQueue, store: mq.Broker
) -> None:
    kept = member.have(queue)
    assert kept is not None
    stands, goes_on = threading.Event(), threading.Event()
    claim = kept.claim

    class Slow:
        def release(self) -> None:
            stands.set()
            goes_on.wait(PATIENCE)
            claim.release()

        def __getattr__(self, name: str) -> Any:
            return getattr(claim, name)

    slow: Any = Slow()
    kept.claim = slow
    unlocks = in_thread(lambda: member.unlock(queue))
    assert stands.wait(PATIENCE)
    pulls = in_thread(lambda: member.have(queue))
    pulls.join(A_WHILE)
    goes_on.set()
    unlocks.join(PATIENCE)
    pulls.join(PATIENCE)
    again = member.have(queue)
    assert again is not None
    with again.lock:
        assert again.claim.is_current()
    member.commit(queue, again, 3, may_fall=True)
    assert committed(store, queue) == 3


def test_the_offset_of_a_queue_that_is_released_just_then_is_told(
    member: RemoteMember,
    queue: MessageQueue,
    joined: RawClient,
    store: mq.Broker,
    request: pytest.FixtureRequest,
) -> None:
    assert joined.ask(UpdateConsumerOffset(GROUP, "orders", 0, 4)).code == ResponseCode.SUCCESS
    request.getfixturevalue("released_meanwhile")
    answer = joined.ask(QueryConsumerOffset(GROUP, "orders", 0))
    assert member.owned() == []
    assert decode_fields(OffsetAnswer, answer.fields).offset == 4
    assert committed(store, queue) == 4


def test_what_is_committed_as_the_queue_is_released_is_stored(
    member: RemoteMember,
    queue: MessageQueue,
    joined: RawClient,
    store: mq.Broker,
    request: pytest.FixtureRequest,
) -> None:
    assert joined.ask(QueryConsumerOffset(GROUP, "orders", 0)).code == ResponseCode.SUCCESS
    request.getfixturevalue("released_meanwhile")
    assert joined.ask(UpdateConsumerOffset(GROUP, "orders", 0, 4)).code == ResponseCode.SUCCESS
    assert member.owned() == []
    assert committed(store, queue) == 4


def test_a_queue_that_is_used_just_then_is_not_released(
    member: RemoteMember, queue: MessageQueue, store: mq.Broker
) -> None:
    kept = member.have(queue)
    assert kept is not None
    now = monotonic()
    kept.used_at, member.listed_at, member.members_changed_at = now - 30, now - 20, now - 40
    member.members_seen = ()  # so nothing is its share

    def readable(topic: str) -> tuple[MessageQueue, ...]:
        assert member.have(queue) is kept
        return tuple(store.readable(topic))

    member.expire(readable)
    assert member.have(queue) is kept
    assert kept.claim.is_current()
    kept.used_at = now - 30
    member.expire(lambda topic: tuple(store.readable(topic)))
    assert member.owned() == []


def test_a_list_is_as_old_as_its_request(
    member: RemoteMember, joined: RawClient, store: mq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[float] = []
    groups: Any = store.consumer_groups
    members = groups.members

    def listing(group: str) -> Any:
        listed.append(monotonic())
        return members(group)

    monkeypatch.setattr(groups, "members", listing)
    assert joined.ask(GetConsumerList(GROUP)).code == ResponseCode.SUCCESS
    assert member.listed_at <= listed[-1]  # The server itself may have listed them just before.


def test_a_late_heartbeat_of_a_lost_connection_takes_nothing_back(
    server: Server, member: RemoteMember, joined: RawClient
) -> None:
    before = member.connection
    with RawClient(server) as again:
        assert again.ask(HeartBeat(), to_json(heartbeat())).code == ResponseCode.SUCCESS
        after = member.connection
        assert after is not before
        joined.close()
        eventually(lambda: before.is_closed, lambda: "it is open")
        server.served.members.heard(before, heartbeat())
        assert server.served.members.of(after, GROUP) is member
        assert member.connection is after


@pytest.mark.parametrize("flush", ["sync"])
def test_a_pull_hears_of_a_queue_that_is_released_before_it_waits(
    directory: Path, flush: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a thread of the pool, as where sends wait for the disk: the loop may look just before."""
    stands, goes_on = threading.Event(), threading.Event()

    def held(*arguments: Any) -> Held:
        if not stands.is_set():
            stands.set()
            goes_on.wait(PATIENCE)
        return Held(*arguments)

    monkeypatch.setattr(pulling, "Held", held)
    with mq.open(directory, flush=flush) as store, serve(store, port=0, namesrv_port=0) as server:
        queue = store.create_topic("orders", 1).queues[0].message_queue
        store.topic("orders").send(b"x")
        others = store.consumer_groups.join(
            GROUP, client_id="other", model="clustering", consume_type="push", ordered=False,
            subscriptions=[Wanted("orders")],
        )  # fmt: skip
        claim = others.claim(queue)
        assert claim is not None
        with RawClient(server) as client:
            assert client.ask(HeartBeat(), to_json(heartbeat())).code == ResponseCode.SUCCESS
            [member] = server.served.members.all()
            eventually(lambda: member.version_seen == member.membership.version(), lambda: "not seen")
            flags = PullFlag.SUSPEND | PullFlag.SUBSCRIPTION
            pull = PullMessage(GROUP, "orders", 0, 0, 32, flags, 0, int(PATIENCE) * 1000, 0, "*", None)
            answers: list[int] = []
            asks = in_thread(lambda: answers.append(client.ask(pull).code))
            assert stands.wait(PATIENCE)
            claim.release()
            eventually(lambda: member.version_seen == member.membership.version(), lambda: "not seen")
            goes_on.set()
            asks.join(15)  # of the 30 s that a pull is held
            assert answers == [ResponseCode.SUCCESS]


def test_a_server_closes_after_its_broker(directory: Path) -> None:
    store = mq.open(directory)
    server = serve(store, port=0, namesrv_port=0, ha_port=0)
    port = int(server.address.rpartition(":")[2])
    store.close()
    server.close()
    with mq.open(directory) as store, serve(store, port=port, namesrv_port=0) as again:
        assert again.address == server.address


def test_a_port_is_taken_before_anybody_accepts() -> None:
    with listening("127.0.0.1", 0, False) as first:
        port = first.getsockname()[1]
        with pytest.raises(AddressInUse, match=str(port)):
            listening("127.0.0.1", port, False)
