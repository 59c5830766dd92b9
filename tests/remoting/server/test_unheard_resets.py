"""A reset of a group's offset while a client has no claim: the client goes on by its own offset, and must not
undo the reset before it has heard of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import mq
from mq.api.group import Claim
from mq.api.results import MessageQueue
from mq.remoting.codec.bodies.consuming import QueueLock
from mq.remoting.codec.bodies.heartbeat import ConsumerGroup, Heartbeat, Subscription
from mq.remoting.codec.fields import decode_fields, encode_fields
from mq.remoting.codec.frame import ONEWAY, Frame
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.consuming import PullAnswer, PullFlag, PullMessage
from mq.remoting.codec.requests.groups import GetAllGroups, HeartBeat, LockQueues, UnlockQueues
from mq.remoting.codec.requests.offsets import OffsetAnswer, QueryConsumerOffset, UpdateConsumerOffset
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.server import Server
from tests.support.eventually import eventually
from tests.support.insides import lost_of, strangers_of
from tests.support.raw_requests import RawClient

GROUP = "billing"
SENT = 10
Interruption = Callable[[Server, RawClient, MessageQueue], RawClient]


@pytest.fixture
def queue(store: mq.Broker) -> MessageQueue:
    queue = store.create_topic("orders", 1).queues[0].message_queue
    for number in range(SENT):
        store.topic("orders").send(b"%d" % number)
    return queue


def joined(server: Server, client_id: str = "one") -> RawClient:
    client = RawClient(server)
    data = ConsumerGroup(GROUP, subscription_data_set=(Subscription("orders", "*"),))
    client.ask(HeartBeat(), to_json(Heartbeat(client_id, consumer_data_set=(data,))))
    return client


def pull(client: RawClient, offset: int, committed: int | None = None) -> Frame:
    flags = PullFlag.COMMIT if committed is not None else 0
    return client.ask(PullMessage(GROUP, "orders", 0, offset, 32, flags, committed or 0, 0, 0, None, None))


def commit(client: RawClient, offset: int) -> None:
    answer = client.ask(UpdateConsumerOffset(GROUP, "orders", 0, offset))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def queried(client: RawClient) -> int:
    return decode_fields(OffsetAnswer, client.ask(QueryConsumerOffset(GROUP, "orders", 0)).fields).offset


def lease_over(server: Server, client: RawClient, queue: MessageQueue) -> RawClient:
    [member] = server.served.members.of_group(GROUP)
    member.unlock(queue)
    return client


def connection_lost(server: Server, client: RawClient, queue: MessageQueue) -> RawClient:
    client.close()
    eventually(lambda: not server.served.members.of_group(GROUP), lambda: "the member stays")
    return joined(server)


INTERRUPTIONS = pytest.mark.parametrize("interrupted", [lease_over, connection_lost])


@pytest.fixture
def client(server: Server, queue: MessageQueue) -> RawClient:
    """A member that has consumed all."""
    client = joined(server)
    assert queried(client) == 0
    assert pull(client, 0).code == ResponseCode.SUCCESS
    commit(client, SENT)
    return client


@INTERRUPTIONS
@pytest.mark.parametrize("is_before", [True, False], ids=["reset-first", "reset-last"])
def test_a_client_hears_of_a_reset_by_its_next_pull(
    store: mq.Broker,
    server: Server,
    client: RawClient,
    queue: MessageQueue,
    interrupted: Interruption,
    is_before: bool,
) -> None:
    group = store.group(GROUP)
    if is_before:
        group.reset("orders", to="first")
    client = interrupted(server, client, queue)
    if not is_before:
        group.reset("orders", to="first")
    commit(client, SENT)
    assert group.offsets("orders") == {queue: 0}
    moved = pull(client, SENT, committed=SENT)
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert decode_fields(PullAnswer, moved.fields).next_begin_offset == 0
    assert group.offsets("orders") == {queue: 0}
    assert pull(client, 0).code == ResponseCode.SUCCESS
    commit(client, 3)
    assert group.offsets("orders") == {queue: 3}
    client.close()


@INTERRUPTIONS
def test_a_client_that_asked_for_the_offset_has_heard(
    store: mq.Broker, server: Server, client: RawClient, queue: MessageQueue, interrupted: Interruption
) -> None:
    client = interrupted(server, client, queue)
    group = store.group(GROUP)
    group.reset("orders", to="first")
    assert queried(client) == 0
    assert pull(client, 0).code == ResponseCode.SUCCESS
    commit(client, 5)
    assert group.offsets("orders") == {queue: 5}
    client.close()


@INTERRUPTIONS
def test_a_client_goes_on_where_nothing_was_reset(
    store: mq.Broker, server: Server, client: RawClient, queue: MessageQueue, interrupted: Interruption
) -> None:
    client = interrupted(server, client, queue)
    commit(client, SENT - 1)
    store.topic("orders").send(b"one more")
    assert pull(client, SENT).code == ResponseCode.SUCCESS
    commit(client, SENT + 1)
    assert store.group(GROUP).offsets("orders") == {queue: SENT + 1}
    client.close()


@INTERRUPTIONS
@pytest.mark.parametrize("has_asked", [True, False], ids=["asked", "not-asked"])
def test_a_client_goes_on_in_a_queue_that_nobody_had_used(
    store: mq.Broker, server: Server, interrupted: Interruption, has_asked: bool
) -> None:
    queue = store.create_topic("orders", 1).queues[0].message_queue
    client = joined(server)
    if has_asked:
        client.ask(QueryConsumerOffset(GROUP, "orders", 0))
    assert pull(client, 0).code == ResponseCode.PULL_NOT_FOUND
    store.topic("orders").send(b"one")
    client = interrupted(server, client, queue)
    assert pull(client, 0).code == ResponseCode.SUCCESS
    client = interrupted(server, client, queue)
    commit(client, 1)
    assert store.group(GROUP).offsets("orders") == {queue: 1}
    store.group(GROUP).reset("orders", to="first")
    assert pull(client, 1).code == ResponseCode.PULL_OFFSET_MOVED
    client.close()


def test_a_client_that_no_server_knows_does_not_undo_a_reset(
    store: mq.Broker, server: Server, client: RawClient, queue: MessageQueue
) -> None:
    """As after a restart of the server."""
    group = store.group(GROUP)
    client.close()
    eventually(lambda: not server.served.members.of_group(GROUP), lambda: "the member stays")
    group.reset("orders", to="first")
    with joined(server, "another") as other:
        commit(other, SENT)
        assert group.offsets("orders") == {queue: 0}
        assert pull(other, SENT).code == ResponseCode.PULL_OFFSET_MOVED


def make_anew(store: mq.Broker) -> None:
    store.create_topic("orders", 1)
    for number in range(SENT + 5):
        store.topic("orders").send(b"new %d" % number)


@pytest.mark.parametrize("commits", ["before", "with its pull", "never"])
def test_a_client_hears_that_its_topic_was_made_anew(
    store: mq.Broker, server: Server, client: RawClient, queue: MessageQueue, commits: str
) -> None:
    store.delete_topic("orders")
    make_anew(store)
    if commits == "before":
        commit(client, SENT)
    moved = pull(client, SENT, committed=SENT if commits == "with its pull" else None)
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert decode_fields(PullAnswer, moved.fields).next_begin_offset == 0
    assert store.group(GROUP).offsets("orders") == {}
    client.close()


@INTERRUPTIONS
def test_a_client_whose_pull_ended_with_its_topic_has_heard_of_no_other_one(
    store: mq.Broker, server: Server, client: RawClient, queue: MessageQueue, interrupted: Interruption
) -> None:
    held = PullMessage(GROUP, "orders", 0, SENT, 32, PullFlag.SUSPEND, 0, 30_000, 0, None, None)
    client.send(Frame(PullMessage.CODE, encode_fields(held)))
    eventually(lambda: any(each.holds for each in list(server.served.connections)), lambda: "no pull")
    store.delete_topic("orders")
    while not (frame := client.receive()).is_response:
        pass
    assert frame.code == ResponseCode.TOPIC_NOT_EXIST
    client = interrupted(server, client, queue)
    make_anew(store)
    assert pull(client, SENT).code == ResponseCode.PULL_OFFSET_MOVED
    client.close()


def lock(client: RawClient, client_id: str, queue: MessageQueue) -> None:
    answer = client.ask(LockQueues(), to_json(QueueLock(GROUP, client_id, (queue,))))
    assert answer.code == ResponseCode.SUCCESS


def unlock(client: RawClient, client_id: str, queue: MessageQueue) -> None:
    client.ask(UnlockQueues(), to_json(QueueLock(GROUP, client_id, (queue,))))


def test_a_client_that_consumes_in_order_is_known_when_it_reconnects(
    store: mq.Broker, server: Server, queue: MessageQueue
) -> None:
    """Its heartbeat does not tell that it does, and its first lock has it join again."""
    first = joined(server, "first")
    lock(first, "first", queue)
    assert queried(first) == 0
    assert pull(first, 0).code == ResponseCode.SUCCESS
    commit(first, SENT)
    unlock(first, "first", queue)  # Else nobody else gets it.
    first.close()
    eventually(lambda: not server.served.members.of_group(GROUP), lambda: "the member stays")
    with joined(server, "second") as second:
        lock(second, "second", queue)
        assert queried(second) == SENT
        store.group(GROUP).reset("orders", to="first")
        assert pull(second, SENT).code == ResponseCode.PULL_OFFSET_MOVED
        unlock(second, "second", queue)
    eventually(lambda: not server.served.members.of_group(GROUP), lambda: "the member stays")
    with joined(server, "first") as first:
        lock(first, "first", queue)
        assert pull(first, SENT, committed=SENT).code == ResponseCode.PULL_OFFSET_MOVED
        assert store.group(GROUP).offsets("orders") == {queue: 0}


def test_a_reset_amid_a_commit_is_heard_of(
    store: mq.Broker,
    server: Server,
    client: RawClient,
    queue: MessageQueue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [member] = server.served.members.of_group(GROUP)
    kept = member.kept(queue)
    assert kept is not None
    kind = type(kept.claim)
    commit_of_it = kind.commit

    def commit_and_reset(claim: Claim, offset: int) -> bool:
        monkeypatch.setattr(kind, "commit", commit_of_it)
        is_committed = claim.commit(offset)
        store.group(GROUP).reset("orders", to="first")
        return is_committed

    monkeypatch.setattr(kind, "commit", commit_and_reset)
    commit(client, SENT)
    assert store.group(GROUP).offsets("orders") == {queue: 0}
    assert pull(client, SENT).code == ResponseCode.PULL_OFFSET_MOVED
    client.close()


@pytest.mark.parametrize("offset", [SENT, SENT - 1], ids=["again", "another"])
def test_what_a_client_sent_before_it_heard_does_not_undo_a_reset(
    store: mq.Broker, server: Server, client: RawClient, queue: MessageQueue, offset: int
) -> None:
    """Java's commits its old offset for ten seconds more, and what is on the wire comes later in any case."""
    store.consumer_groups.reset(GROUP, {queue: 3})
    assert pull(client, SENT).code == ResponseCode.PULL_OFFSET_MOVED
    commit(client, offset)
    assert pull(client, offset, committed=offset).code == ResponseCode.PULL_OFFSET_MOVED
    assert store.group(GROUP).offsets("orders") == {queue: 3}
    assert pull(client, 3, committed=offset).code == ResponseCode.SUCCESS
    commit(client, 5)
    assert store.group(GROUP).offsets("orders") == {queue: 5}
    client.close()


def test_a_client_that_commits_where_it_was_moved_to_has_heard(
    store: mq.Broker, server: Server, client: RawClient, queue: MessageQueue
) -> None:
    store.group(GROUP).reset("orders", to="first")
    assert pull(client, SENT).code == ResponseCode.PULL_OFFSET_MOVED
    commit(client, 0)
    commit(client, 5)
    assert store.group(GROUP).offsets("orders") == {queue: 5}
    client.close()


def test_a_commit_before_the_first_heartbeat_does_not_undo_a_reset(
    store: mq.Broker, server: Server, client: RawClient, queue: MessageQueue
) -> None:
    client.close()
    eventually(lambda: not server.served.members.of_group(GROUP), lambda: "the member stays")
    store.group(GROUP).reset("orders", to="first")
    with RawClient(server) as again:
        commit(again, SENT)
        assert store.group(GROUP).offsets("orders") == {queue: 0}
        assert queried(again) == 0
        commit(again, 5)
        assert store.group(GROUP).offsets("orders") == {queue: 5}


def test_a_last_commit_of_a_closed_connection_does_not_undo_a_reset(
    store: mq.Broker, server: Server, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is done after the connection is closed, and before what its client knows is forgotten."""
    late = RawClient(server)
    commit(late, SENT)
    assert queried(late) == SENT
    store.group(GROUP).reset("orders", to="first")
    with joined(server) as member:  # which has heard of it
        assert queried(member) == 0
        assert pull(member, 0).code == ResponseCode.SUCCESS
        commit(member, 3)
    eventually(lambda: server.connections == 1, lambda: server.connections)
    [connection] = server.served.connections
    names = store.groups

    def groups() -> list[str]:
        eventually(lambda: connection.is_closed, lambda: "it is open")
        return names()

    monkeypatch.setattr(store, "groups", groups)
    late.send(Frame(GetAllGroups.CODE, flags=ONEWAY))
    request = UpdateConsumerOffset(GROUP, "orders", 0, SENT)
    late.send(Frame(UpdateConsumerOffset.CODE, encode_fields(request), flags=ONEWAY))
    late.close()
    eventually(lambda: not strangers_of(server.served.members), lambda: "it is not forgotten")
    assert store.group(GROUP).offsets("orders") == {queue: 3}


def test_the_groups_whose_offsets_a_connection_asks_for_are_bounded(
    server: Server, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.remoting.server.groups.members.GROUPS_MAX", 3)
    members = server.served.members
    with RawClient(server) as client:
        for number in range(5):
            client.ask(QueryConsumerOffset(f"group-{number}", "orders", 0))
        assert strangers_of(members) == [3]
    eventually(lambda: not strangers_of(members), lambda: f"{strangers_of(members)}")


def test_a_claim_that_is_released_beside_a_pull_moves_its_client_nowhere(
    store: mq.Broker, server: Server, client: RawClient, queue: MessageQueue
) -> None:
    [member] = server.served.members.of_group(GROUP)
    kept = member.kept(queue)
    assert kept is not None
    member.unlock(queue)
    with kept.lock:
        offset = member.move(queue, kept, lambda: store.group(GROUP).offsets("orders").get(queue), 0)
    assert offset == SENT
    client.close()


def test_what_many_lost_members_knew_is_forgotten(
    server: Server, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.remoting.server.groups.members.LOST_MAX", 2)
    members = server.served.members
    for number in range(4):
        with joined(server, f"client {number}"):
            pass
        eventually(lambda: not members.of_group(GROUP), lambda: "the member stays")
    eventually(lambda: len(lost_of(members)) == 2, lambda: f"{lost_of(members)}")
