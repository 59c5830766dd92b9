"""Groups: members, owners of queues, offsets, and what wakes waiting members."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import mq
from mq.api.group import Claim, Membership, Subscription
from mq.errors import SubscriptionConflict
from mq.filter.tags import tag_hash
from tests.support import assigned
from tests.support.appending import append_one

ORDERS = Subscription("orders")
SOON = 30.0  # for what is to happen at once; a machine under load takes its time

Join = Callable[..., Membership]


@pytest.fixture(params=["memory", "local", "local-sync"])
def kind(request: pytest.FixtureRequest) -> str:
    """Those that have groups."""
    return str(request.param)


@pytest.fixture
def broker(brokers: tuple[mq.Broker, mq.Broker]) -> mq.Broker:
    return brokers[0]


@pytest.fixture
def other(brokers: tuple[mq.Broker, mq.Broker]) -> mq.Broker:
    return brokers[1]


@pytest.fixture
def join(broker: mq.Broker) -> Iterator[Join]:
    """Joins "billing" as a push consumer of all orders, unless told otherwise; leaves at the end."""
    members = []

    def joined(client_id: str, *, of: mq.Broker = broker, group: str = "billing", **given: Any) -> Membership:
        usual: dict[str, Any] = {
            "model": "clustering",
            "consume_type": "push",
            "ordered": False,
            "subscriptions": [ORDERS],
        }
        membership = of.consumer_groups.join(group, client_id=client_id, **{**usual, **given})
        members.append(membership)
        return membership

    yield joined
    for membership in members:
        membership.leave()


def queue_of(broker: mq.Broker, queue_id: int = 0, topic: str = "orders") -> mq.MessageQueue:
    return broker.topic(topic).queues[queue_id].message_queue


def send(broker: mq.Broker, queue_id: int = 0, count: int = 1, tags: str | None = None) -> None:
    for number in range(count):
        message = mq.Message("orders", b"%d" % number, tags=tags)
        append_one(broker, "orders", queue_id, message, message.body, 0)


def claimed(membership: Membership, queue: mq.MessageQueue) -> Claim:
    claim = membership.claim(queue)
    assert claim is not None
    return claim


class Waiting(threading.Thread):
    """Waits in a thread of its own, as a consumer does, until something is there for it."""

    def __init__(
        self, broker: mq.Broker, membership: Membership, positions: Any, version: int | None = None
    ) -> None:
        super().__init__()
        self._members = [(membership, membership.version() if version is None else version)]
        self._positions = positions
        self.waiter = broker.waiter()
        self.took = -1.0
        self.start()

    def run(self) -> None:
        begin = time.monotonic()
        self.waiter.wait(self._positions, self._members, SOON)
        self.took = time.monotonic() - begin

    def woken(self) -> bool:
        self.join()
        return 0 <= self.took < SOON


def test_an_unused_group_is_empty(broker: mq.Broker) -> None:
    group = broker.group("billing")
    assert (group.name, group.members(), group.topics(), group.offsets("orders")) == ("billing", [], [], {})
    assert broker.groups() == []


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 121])
def test_a_bad_name_of_a_group_is_refused(broker: mq.Broker, join: Join, name: str) -> None:
    with pytest.raises(mq.GroupInvalid):
        broker.group(name)
    with pytest.raises(mq.GroupInvalid):
        join("a", group=name)


def test_a_member_is_seen_as_it_joined(broker: mq.Broker, other: mq.Broker, join: Join) -> None:
    before = time.time_ns() // 1_000_000
    wanted = [Subscription("orders", "paid || refunded"), Subscription("events", "a > 1", "SQL92")]
    join("a", consume_type="pull", subscriptions=wanted)
    for one in (broker, other):
        (member,) = one.group("billing").members()
        assert (member.client_id, member.pid, member.host) == ("a", os.getpid(), socket.gethostname())
        assert before <= member.since_ms <= time.time_ns() // 1_000_000
        assert (member.model, member.consume_type, member.ordered) == ("clustering", "pull", False)
        assert sorted(member.subscriptions) == sorted(wanted)
        assert one.groups() == ["billing"]
        assert one.group("billing").topics() == ["events", "orders"]


def test_members_are_listed_by_client_id(broker: mq.Broker, other: mq.Broker, join: Join) -> None:
    memberships = [join("b"), join("c", of=other), join("a")]
    for membership in memberships:
        assert [member.client_id for member in membership.members()] == ["a", "b", "c"]
    assert [member.client_id for member in other.group("billing").members()] == ["a", "b", "c"]


def test_a_member_that_left_is_no_longer_listed(other: mq.Broker, join: Join) -> None:
    first, second = join("a"), join("b", of=other)
    first.leave()
    first.leave()
    assert [member.client_id for member in second.members()] == ["b"]
    second.leave()
    assert other.group("billing").members() == []


def test_a_client_id_can_be_used_again_after_it_left(join: Join) -> None:
    join("a").leave()
    assert [member.client_id for member in join("a").members()] == ["a"]


def test_a_client_id_in_use_is_refused(other: mq.Broker, join: Join) -> None:
    join("a")
    with pytest.raises(mq.GroupInvalid, match="a"):
        join("a", of=other)
    assert [member.client_id for member in other.group("billing").members()] == ["a"]


def test_groups_do_not_know_each_other(broker: mq.Broker, join: Join) -> None:
    queue = queue_of(broker)
    one, two = claimed(join("a"), queue), claimed(join("a", group="audit"), queue)
    one.commit(3)
    assert (one.committed(), two.committed()) == (3, 0)
    assert broker.groups() == ["audit", "billing"]


def test_rocketmqs_own_groups_are_not_listed(broker: mq.Broker) -> None:
    assigned.commit(broker, "CID_RMQ_SYS_TRANS", queue_of(broker), 0)
    assert assigned.committed(broker, "CID_RMQ_SYS_TRANS", queue_of(broker)) == 0
    assert broker.groups() == []


ANOTHER: dict[str, dict[str, Any]] = {
    "expression": {"subscriptions": [Subscription("orders", "paid")]},
    "kind": {"subscriptions": [Subscription("orders", "*", "SQL92")]},
    "one topic more": {"subscriptions": [ORDERS, Subscription("events")]},
    "other topic": {"subscriptions": [Subscription("events")]},
    "model": {"model": "broadcasting"},
    "ordered": {"ordered": True},
}


@pytest.mark.parametrize("differs", ANOTHER)
def test_members_that_would_differ_are_refused(
    broker: mq.Broker, other: mq.Broker, join: Join, differs: str
) -> None:
    join("a")
    with pytest.raises(SubscriptionConflict) as refused:
        join("b", of=other, **ANOTHER[differs])
    assert refused.value.group == "billing"
    assert str(os.getpid()) in str(refused.value)
    assert [member.client_id for member in broker.group("billing").members()] == ["a"]


def test_a_conflict_shows_both_subscriptions(join: Join) -> None:
    join("a", subscriptions=[Subscription("orders", "paid")])
    with pytest.raises(SubscriptionConflict, match=r"refunded.*paid|paid.*refunded"):
        join("b", subscriptions=[Subscription("orders", "refunded")])


def test_a_conflict_ends_with_the_member_that_was_in_the_way(join: Join) -> None:
    first = join("a")
    paid = {"subscriptions": [Subscription("orders", "paid")]}
    with pytest.raises(SubscriptionConflict):
        join("b", **paid)
    first.leave()
    join("b", **paid)


def test_the_order_of_subscriptions_does_not_matter(join: Join) -> None:
    both = [ORDERS, Subscription("events", "a")]
    join("a", subscriptions=both)
    assert len(join("b", subscriptions=both[::-1]).members()) == 2


def test_a_lonely_member_may_subscribe_to_something_else(broker: mq.Broker, join: Join) -> None:
    membership = join("a")
    membership.subscribe([Subscription("events", "x")])
    (member,) = broker.group("billing").members()
    assert member.subscriptions == (Subscription("events", "x"),)
    second = join("b", subscriptions=[Subscription("events", "x")])
    with pytest.raises(SubscriptionConflict):
        second.subscribe([ORDERS])
    assert {member.subscriptions for member in second.members()} == {(Subscription("events", "x"),)}


CHANGES: dict[str, Callable[[mq.Broker, Join], object]] = {
    "a member joins": lambda _, join: join("z"),
    "a queue is claimed and released": lambda broker, join: claimed(join("z"), queue_of(broker)).release(),
    "an offset is reset": lambda broker, _: broker.group("billing").reset("orders", to="latest"),
    "a topic is made": lambda broker, _: broker.create_topic("events"),
    "a topic is deleted": lambda broker, _: broker.delete_topic("orders"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_makes_the_version_grow(other: mq.Broker, join: Join, change: str) -> None:
    membership = join("a")
    before = membership.version()
    assert membership.version() == before
    CHANGES[change](other, lambda *args: join(*args, of=other))
    assert membership.version() > before


def test_leaving_and_releasing_make_the_version_grow(broker: mq.Broker, other: mq.Broker, join: Join) -> None:
    membership, second = join("a"), join("b", of=other)
    claim = claimed(second, queue_of(other))
    versions = [membership.version()]
    claim.release()
    versions.append(membership.version())
    second.leave()
    versions.append(membership.version())
    membership.subscribe([Subscription("events")])
    versions.append(membership.version())
    assert versions == sorted(set(versions))


def test_a_queue_has_one_owner(broker: mq.Broker, other: mq.Broker, join: Join) -> None:
    first, second, third = join("a"), join("b"), join("c", of=other)
    claim = claimed(first, queue_of(broker, 0))
    assert claim.queue == queue_of(broker, 0)
    assert first.claim(queue_of(broker, 0)) is claim
    assert second.claim(queue_of(broker, 0)) is None
    assert third.claim(queue_of(broker, 0)) is None
    claimed(third, queue_of(broker, 1))
    assert first.claim(queue_of(broker, 1)) is None
    claim.release()
    claim.release()
    claimed(second, queue_of(broker, 0))
    assert first.claim(queue_of(broker, 0)) is None


def test_a_leaving_member_releases_all_queues(broker: mq.Broker, other: mq.Broker, join: Join) -> None:
    first, second = join("a"), join("b", of=other)
    for queue_id in range(2):
        claimed(first, queue_of(broker, queue_id)).commit(queue_id)
    first.leave()
    assert [claimed(second, queue_of(broker, queue_id)).committed() for queue_id in range(2)] == [0, 1]


def test_a_commit_is_seen_everywhere(broker: mq.Broker, other: mq.Broker, join: Join) -> None:
    send(broker, 1, count=9)
    first = join("a")
    queue = queue_of(broker, 1)
    claim = claimed(first, queue)
    assert claim.commit(7)
    assert [claim.committed(), assigned.committed(broker, "billing", queue)] == [7, 7]
    assert assigned.committed(other, "billing", queue) == 7
    assert other.group("billing").offsets("orders") == {queue_of(broker, 0): 0, queue: 7}
    assert other.group("billing").lag("orders") == 2


def test_an_offset_only_grows_unless_it_is_corrected(broker: mq.Broker, join: Join) -> None:
    claim = claimed(join("a"), queue_of(broker))
    for offset in (5, 3, 5):
        assert claim.commit(offset)
        assert claim.committed() == 5
    claim.correct(2)
    assert claim.committed() == 2
    assert claim.commit(4)
    assert claim.committed() == 4


def test_offsets_stay_when_all_have_left(broker: mq.Broker, other: mq.Broker, join: Join) -> None:
    first = join("a")
    claimed(first, queue_of(broker)).commit(6)
    first.leave()
    assert broker.groups() == ["billing"]
    assert claimed(join("b", of=other), queue_of(broker)).committed() == 6


def test_a_reset_refuses_commits_until_it_is_seen(broker: mq.Broker, other: mq.Broker, join: Join) -> None:
    send(broker, 0, count=9)
    claim = claimed(join("a"), queue_of(broker))
    untouched = claimed(join("b", of=other), queue_of(broker, 1))
    claim.commit(8)
    other.consumer_groups.reset("billing", {queue_of(broker): 3})
    assert not claim.commit(9)
    assert not claim.commit(9)
    assert assigned.committed(broker, "billing", queue_of(broker)) == 3
    assert claim.committed() == 3
    assert claim.commit(4)
    assert claim.committed() == 4
    assert untouched.commit(1)


def test_a_claim_after_a_reset_starts_there(broker: mq.Broker, join: Join) -> None:
    send(broker, 0, count=9)
    claimed(join("a"), queue_of(broker)).release()
    broker.consumer_groups.reset("billing", {queue_of(broker): 3})
    claim = claimed(join("b"), queue_of(broker))
    assert claim.committed() == 3
    assert claim.commit(4)


def test_a_group_is_reset_by_name_or_time(broker: mq.Broker, other: mq.Broker, join: Join) -> None:
    send(broker, 0, count=3)
    send(broker, 1, count=2)
    group = other.group("billing")
    offsets = []
    end = 1 + max(
        message.store_time_ms for queue in broker.topic("orders").queues for message in queue.read(0).messages
    )
    wheres: list[dict[str, Any]] = [{"to": "latest"}, {"to": "earliest"}, {"to": "last"}, {"to": "first"}]
    for where in (*wheres, {"to_ms": end}, {"to_ms": 0}):
        group.reset("orders", **where)
        offsets.append([offset for _, offset in sorted(group.offsets("orders").items())])
    assert offsets == [[3, 2], [0, 0]] * 3
    assert group.lag("orders") == 5
    for wrong in ({}, {"to": "earliest", "to_ms": 0}, {"to": "middle"}):
        with pytest.raises(ValueError, match="to"):
            group.reset("orders", **wrong)
    with pytest.raises(mq.TopicNotFound):
        group.reset("events", to="latest")


def test_a_consumer_with_assigned_queues_commits_without_joining(broker: mq.Broker, other: mq.Broker) -> None:
    queue = queue_of(broker)
    assert assigned.committed(broker, "billing", queue) is None
    for offset in (4, 2):
        assigned.commit(broker, "billing", queue, offset)
        assert assigned.committed(other, "billing", queue) == 4
    assert other.groups() == ["billing"]
    assert other.group("billing").topics() == ["orders"]


STARTS: dict[str, tuple[str | int, list[int]]] = {
    "first": ("first", [0, 0]),
    "last": ("last", [3, 1]),
    "from the beginning of time": (0, [0, 0]),
    "a time to come": (1 << 45, [3, 1]),
}


@pytest.mark.parametrize("start", STARTS)
def test_a_new_group_starts_where_it_wants_to(broker: mq.Broker, join: Join, start: str) -> None:
    consume_from, expected = STARTS[start]
    send(broker, 0, count=3)
    send(broker, 1, count=1)
    join("a", consume_from=consume_from)
    assert [
        assigned.committed(broker, "billing", queue_of(broker, queue_id)) for queue_id in range(2)
    ] == expected
    send(broker, 0)
    assert broker.group("billing").lag("orders") == 5 - sum(expected)


def test_a_group_starts_once(broker: mq.Broker, other: mq.Broker, join: Join) -> None:
    send(broker, 0, count=3)
    join("a", consume_from="last").leave()
    send(broker, 0, count=3)
    join("b", of=other, consume_from="last")
    assert assigned.committed(broker, "billing", queue_of(broker, 0)) == 3


def test_a_queue_made_later_is_consumed_from_its_first_message(broker: mq.Broker, join: Join) -> None:
    join("a", consume_from="last").leave()
    broker.create_topic("orders", 3)
    send(broker, 2, count=2)
    membership = join("b", consume_from="last")
    assert assigned.committed(broker, "billing", queue_of(broker, 2)) is None
    assert claimed(membership, queue_of(broker, 2)).committed() is None
    assert broker.group("billing").lag("orders") == 2


def test_a_topic_subscribed_to_later_starts_where_the_group_wants_to(broker: mq.Broker, join: Join) -> None:
    broker.create_topic("events", 1)
    membership = join("a", consume_from="last")
    message = mq.Message("events", b"x")
    append_one(broker, "events", 0, message, message.body, 0)
    membership.subscribe([ORDERS, Subscription("events")])
    assert assigned.committed(broker, "billing", queue_of(broker, 0, "events")) == 1


def test_a_topic_that_is_not_there_yet_is_no_error(broker: mq.Broker, join: Join) -> None:
    membership = join("a", subscriptions=[Subscription("events")], consume_from="last")
    before = membership.version()
    broker.create_topic("events", 1)
    assert membership.version() > before
    assert assigned.committed(broker, "billing", queue_of(broker, 0, "events")) is None


def test_a_deleted_topic_takes_its_offsets_with_it(broker: mq.Broker, other: mq.Broker, join: Join) -> None:
    send(broker, 0, count=3)
    join("a", consume_from="last").leave()
    other.delete_topic("orders")
    broker.create_topic("orders", 2)
    assert broker.group("billing").offsets("orders") == {}


def test_a_queue_says_why_it_does_not_move(broker: mq.Broker, other: mq.Broker, join: Join) -> None:
    send(broker, 0, count=3)
    group = other.group("billing")
    unowned = group.states("orders")[0]
    assert (unowned.owner, unowned.committed, unowned.end, unowned.lag) == (None, None, 3, 3)
    assert "subscribes" in unowned.reason
    claim = claimed(join("a"), queue_of(broker))
    claim.commit(1)
    claim.set_status("paused")
    state, second = group.states("orders")
    assert state.owner == group.members()[0]
    assert (state.queue, state.committed, state.end, state.lag) == (queue_of(broker), 1, 3, 2)
    assert state.oldest_unconsumed_ms == broker.topic("orders").queues[0].read(1).messages[0].store_time_ms
    assert state.reason == "paused"
    assert (second.queue, second.owner, second.lag) == (queue_of(broker, 1), None, 0)
    claim.set_status("")
    claim.commit(3)
    (moving, _) = group.states("orders")
    assert (moving.lag, moving.oldest_unconsumed_ms, moving.reason) == (0, None, "")


def test_waiting_ends_at_once_when_a_message_is_there(broker: mq.Broker, join: Join) -> None:
    send(broker, 1, count=2)
    membership = join("a")
    assert Waiting(
        broker, membership, [(queue_of(broker, 0), 0, None), (queue_of(broker, 1), 1, None)]
    ).woken()


def test_waiting_ends_at_its_time(broker: mq.Broker, join: Join) -> None:
    send(broker, 1, count=2)
    membership = join("a")
    begin = time.monotonic()
    waiter, seen = broker.waiter(), [(membership, membership.version())]
    waiter.wait([(queue_of(broker, 1), 2, None)], seen, 0.02)
    waiter.wait([], seen, 0.02)
    assert time.monotonic() - begin < SOON


@pytest.mark.parametrize("wanted", [None, frozenset({tag_hash("paid")})])
def test_a_message_wakes_its_waiter(
    broker: mq.Broker, other: mq.Broker, join: Join, wanted: frozenset[int] | None
) -> None:
    waiting = Waiting(broker, join("a"), [(queue_of(broker, queue_id), 0, wanted) for queue_id in range(2)])
    send(other, 1, tags="paid")
    assert waiting.woken()


def test_messages_of_other_tags_wake_no_waiter(broker: mq.Broker, other: mq.Broker, join: Join) -> None:
    membership = join("a")
    send(broker, 0, count=40, tags="refunded")
    waiting = Waiting(
        broker, membership, [(queue_of(broker), 0, frozenset({tag_hash("paid"), tag_hash("x")}))]
    )
    send(other, 0, count=40, tags="refunded")
    send(other, 0, count=40)
    waiting.join(0.1)
    assert waiting.is_alive()
    send(other, 0, tags="paid")
    assert waiting.woken()


def test_a_wakeup_ends_the_wait(broker: mq.Broker, join: Join) -> None:
    waiting = Waiting(broker, join("a"), [])
    waiting.waiter.wakeup()
    assert waiting.woken()


def test_a_wakeup_before_the_wait_counts_for_it(broker: mq.Broker, join: Join) -> None:
    membership, waiter = join("a"), broker.waiter()
    waiter.wakeup()
    begin = time.monotonic()
    waiter.wait([(queue_of(broker), 0, None)], [(membership, membership.version())], SOON)
    assert time.monotonic() - begin < SOON


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_wakes_the_waiter(broker: mq.Broker, other: mq.Broker, join: Join, change: str) -> None:
    membership = join("a")
    waiting = Waiting(broker, membership, [(queue_of(broker), 0, None)])
    CHANGES[change](other, lambda *args: join(*args, of=other))
    assert waiting.woken()


def test_a_change_before_the_wait_counts_for_it(broker: mq.Broker, other: mq.Broker, join: Join) -> None:
    membership = join("a")
    version = membership.version()
    join("b", of=other).leave()
    assert Waiting(broker, membership, [(queue_of(broker), 0, None)], version).woken()
