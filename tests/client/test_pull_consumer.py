"""The pull consumer: what a poll hands out, what counts as consumed, and whose the queues are."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.api.group import Subscription
from mq.client import pull_consumer
from mq.client.pull_consumer import PullConsumer
from tests.support import assigned
from tests.support.appending import append_one
from tests.support.eventually import eventually
from tests.support.insides import poll_loop_of
from tests.support.memory.broker import MemoryBroker

SOON = 30.0  # for what is to happen at once; a machine under load takes its time

Make = Callable[..., PullConsumer]


class Clock:
    """The consumers' time, which passes when a test says so, and while they wait."""

    def __init__(self) -> None:
        self.passed = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.passed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pull_consumer, "monotonic", clock)
    return clock


@pytest.fixture(params=["memory", "local"])
def broker(request: pytest.FixtureRequest, directory: Path) -> Iterator[mq.Broker]:
    with MemoryBroker() if request.param == "memory" else mq.open(directory) as broker:
        broker.create_topic("orders", 2)
        yield broker


@pytest.fixture
def make(broker: mq.Broker) -> Iterator[Make]:
    """Makes consumers of the group "billing", subscribed to all orders unless `topic` says otherwise."""
    with ExitStack() as stack:

        def made(topic: str | None = "orders", expression: str = "*", **options: Any) -> PullConsumer:
            consumer = stack.enter_context(PullConsumer(broker, "billing", **options))
            if topic is not None:
                consumer.subscribe(topic, expression)
            return consumer

        yield made


def queue_of(broker: mq.Broker, queue_id: int = 0, topic: str = "orders") -> mq.MessageQueue:
    return broker.topic(topic).queues[queue_id].message_queue


def send(
    broker: mq.Broker, *bodies: bytes, queue_id: int = 0, topic: str = "orders", tags: str | None = None
) -> None:
    for body in bodies:
        append_one(broker, topic, queue_id, mq.Message(topic, body, tags=tags), body, 0)


def bodies(messages: list[mq.MessageExt]) -> list[bytes]:
    return [message.body for message in messages]


def drained(consumer: PullConsumer) -> list[bytes]:
    """What polls of no timeout hand out until there is nothing."""
    found: list[bytes] = []
    while batch := consumer.poll(0):
        found += bodies(batch)
    return found


def offsets(broker: mq.Broker) -> list[int | None]:
    return [assigned.committed(broker, "billing", queue_of(broker, queue_id)) for queue_id in (0, 1)]


def test_polls_hand_out_every_message_once_and_a_queue_in_its_order(broker: mq.Broker, make: Make) -> None:
    send(broker, *(b"a%d" % number for number in range(100)), queue_id=0)
    send(broker, *(b"b%d" % number for number in range(100)), queue_id=1)
    found = drained(make())
    assert [body for body in found if body < b"b"] == [b"a%d" % number for number in range(100)]
    assert [body for body in found if body >= b"b"] == [b"b%d" % number for number in range(100)]


def test_a_poll_hands_out_at_most_so_many_of_one_queue(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1", b"2", b"3", b"4", b"5", queue_id=0)
    send(broker, b"6", queue_id=1)
    consumer = make(pull_count=3)
    batches = [consumer.poll(0, count_max=2) for _ in range(5)]
    assert all(len({message.queue_id for message in batch}) <= 1 for batch in batches)
    assert max(map(len, batches)) == 2
    assert sorted(body for batch in batches for body in bodies(batch)) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    send(broker, *(b"x" for _ in range(50)))
    assert len(consumer.poll(0, count_max=50)) == 50


def test_a_waiting_poll_returns_with_what_arrives(broker: mq.Broker, make: Make) -> None:
    consumer = make()
    sender = threading.Timer(0.05, send, (broker, b"late"))
    sender.start()
    assert bodies(consumer.poll(SOON)) == [b"late"]
    sender.join()


def test_a_poll_of_nothing_ends_with_its_timeout(make: Make) -> None:
    begin = time.monotonic()
    assert make().poll(0.05) == []
    assert time.monotonic() - begin >= 0.05


def test_what_a_poll_returned_is_consumed_when_the_next_begins(
    broker: mq.Broker, make: Make, clock: Clock
) -> None:
    send(broker, b"1", b"2", b"3")
    interval = 3600.0  # Which does not pass by itself.
    consumer = make(consume_from="first", auto_commit_interval=interval)
    assert len(consumer.poll(0, count_max=1)) == 1
    clock.passed += interval
    assert len(consumer.poll(0, count_max=1)) == 1
    # The first is committed, the second is in the caller's hands.
    assert consumer.committed(queue_of(broker)) == 1
    assert len(consumer.poll(0, count_max=1)) == 1
    assert consumer.committed(queue_of(broker)) == 1
    clock.passed += interval
    assert consumer.poll(0) == []
    assert consumer.committed(queue_of(broker)) == 3


def test_an_idle_poll_commits_when_the_interval_is_over(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1")
    consumer = make(auto_commit_interval=0.02)
    consumer.poll(0)

    def wake_when_committed() -> None:
        deadline = time.monotonic() + SOON
        while offsets(broker)[0] != 1 and time.monotonic() < deadline:
            time.sleep(0.001)
        consumer.wakeup()

    waker = threading.Thread(target=wake_when_committed)
    waker.start()
    begin = time.monotonic()
    assert consumer.poll(2 * SOON) == []
    assert time.monotonic() - begin < SOON
    waker.join()


def test_closing_commits_what_was_handed_out(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1", b"2", b"3")
    consumer = make()
    consumer.poll(0, count_max=2)
    consumer.close()
    consumer.close()
    assert bodies(make().poll(0)) == [b"3"]


def test_an_exception_leaves_the_last_batch_to_be_delivered_again(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1", b"2", b"3")
    with suppress(LookupError), make() as consumer:
        consumer.poll(0, count_max=1)
        consumer.poll(0, count_max=1)
        raise LookupError
    assert bodies(make().poll(0)) == [b"2", b"3"]


def test_closing_in_a_finally_clause_is_leaving_by_an_exception(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1")

    def fails(consumer: PullConsumer) -> None:
        try:
            consumer.poll(0)
            raise LookupError
        finally:
            consumer.close()

    with pytest.raises(LookupError):
        fails(make())
    assert bodies(make().poll(0)) == [b"1"]


def test_without_auto_commit_only_commit_does(broker: mq.Broker, make: Make, clock: Clock) -> None:
    send(broker, b"1", b"2", b"3")
    consumer = make(auto_commit=False)
    for _ in range(2):
        assert len(consumer.poll(0, count_max=1)) == 1
        clock.passed += 60
    consumer.close()
    consumer = make(auto_commit=False)
    assert bodies(consumer.poll(0, count_max=2)) == [b"1", b"2"]
    consumer.commit()
    assert bodies(consumer.poll(0)) == [b"3"]
    consumer.close()
    assert bodies(make().poll(0)) == [b"3"]


def test_a_batch_is_committed_by_commit_though_it_is_in_hand(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1", b"2", b"3")
    consumer = make()
    consumer.poll(0, count_max=2)
    consumer.commit()
    assert consumer.committed(queue_of(broker)) == 2
    assert consumer.position(queue_of(broker)) == 2


def test_a_loop_consumes_a_message_when_it_asks_for_the_next(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1", b"2", b"3", b"4")
    with make() as consumer, suppress(LookupError):
        for message in consumer:
            if message.body == b"2":
                raise LookupError
    seen = []
    with make() as consumer:
        for _ in range(2):
            for message in consumer:
                seen.append(message.body)
                if message.body == b"3":
                    break
        # The message at which a loop is left comes again in the next one.
        assert seen == [b"2", b"3", b"3"]
        consumer.commit()
        assert bodies(consumer.poll(0)) == [b"4"]
    assert make().poll(0) == []


def test_iterating_ends_when_another_thread_closes_the_consumer(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1")
    consumer = make()
    closer = threading.Timer(0.05, consumer.close)
    seen = []
    for message in consumer:
        seen.append(message.body)
        closer.start()  # Not before it has begun.
    assert seen == [b"1"]
    closer.join()


def test_tags_that_do_not_match_are_passed_over_and_are_no_lag(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1", tags="paid")
    send(broker, *(b"x" for _ in range(2000)), tags="refunded")
    consumer = make(expression="paid", auto_commit=False)
    assert bodies(consumer.poll(0)) == [b"1"]
    consumer.commit()
    assert consumer.poll(0) == []
    assert consumer.committed(queue_of(broker)) == 2001
    send(broker, b"2", tags="paid")
    assert drained(consumer) == [b"2"]


def test_a_stretch_without_a_match_is_not_committed_past_what_is_in_hand(
    broker: mq.Broker, make: Make
) -> None:
    send(broker, b"1", tags="paid")
    consumer = make(expression="paid", auto_commit=False)
    assert bodies(consumer.poll(0)) == [b"1"]
    send(broker, *(b"x" for _ in range(2000)), tags="refunded")
    assert consumer.poll(0) == []
    assert consumer.committed(queue_of(broker)) == 0


def test_subscribing_again_changes_the_expression(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1", b"2", tags="paid")
    send(broker, b"3", tags="refunded")
    send(broker, b"4", tags="paid")
    consumer = make(expression="paid")
    assert bodies(consumer.poll(0, count_max=1)) == [b"1"]
    consumer.subscribe("orders", "refunded")
    assert drained(consumer) == [b"3"]


def test_two_topics_and_one_given_up(broker: mq.Broker, make: Make) -> None:
    broker.create_topic("parcels", 1)
    consumer = make()
    consumer.subscribe("parcels")
    assert consumer.poll(0) == []
    assert {queue.topic for queue in consumer.assignment()} == {"orders", "parcels"}
    send(broker, b"p", topic="parcels")
    assert bodies(consumer.poll(0)) == [b"p"]
    consumer.unsubscribe("parcels")
    assert {queue.topic for queue in consumer.assignment()} == {"orders"}
    assert assigned.committed(broker, "billing", queue_of(broker, 0, "parcels")) == 1
    with pytest.raises(ValueError, match="'parcels' is none of"):
        consumer.unsubscribe("parcels")


def test_a_topic_may_come_later(broker: mq.Broker, make: Make) -> None:
    consumer = make("parcels", consume_from="last")
    assert consumer.poll(0) == []
    broker.create_topic("parcels", 1)
    send(broker, b"first", topic="parcels")
    assert bodies(consumer.poll(SOON)) == [b"first"]


def test_queues_may_come_and_go(broker: mq.Broker, make: Make) -> None:
    consumer = make()
    assert consumer.poll(0) == []
    broker.create_topic("orders", 3)
    send(broker, b"new", queue_id=2)
    assert bodies(consumer.poll(SOON)) == [b"new"]
    broker.delete_topic("orders")
    assert consumer.poll(0) == []
    assert consumer.assignment() == set()


def test_a_queue_that_has_gone_since_it_was_listed_is_none(
    broker: mq.Broker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [queue_of(broker, 0), queue_of(broker, 1), mq.MessageQueue("orders", broker.name, 7)]
    consumer = make()
    assert consumer.poll(0) == []
    puller = broker.puller

    def puller_of_what_is_there(queue: mq.MessageQueue) -> Any:
        if queue.queue_id == 7:
            raise ValueError("no such queue")
        return puller(queue)

    monkeypatch.setattr(broker, "puller", puller_of_what_is_there)
    monkeypatch.setattr(broker, "readable", lambda _: listed)
    broker.create_topic("parcels")  # whose the queues are is worked out again
    send(broker, b"1", queue_id=1)
    assert drained(consumer) == [b"1"]
    assert consumer.assignment() >= set(listed[:2])


def test_a_queue_that_cannot_be_read_leaves_the_others_their_turn(
    broker: mq.Broker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise mq.StoreCorrupted("bad bytes")

    consumer = make()
    assert consumer.poll(0) == []
    monkeypatch.setattr(poll_loop_of(consumer).at(queue_of(broker, 0)), "_pull", broken)
    send(broker, b"1", queue_id=1)
    found = []
    for _ in range(3):
        with suppress(mq.StoreCorrupted):
            found += bodies(consumer.poll(0))
    assert found == [b"1"]


def test_a_pull_consumer_filters_by_sql(broker: mq.Broker, make: Make) -> None:
    for price in ("5", "50", "500"):
        message = mq.Message("orders", price.encode(), properties={"price": price})
        append_one(broker, "orders", 0, message, message.body, 0)
    consumer = make(None)
    consumer.subscribe("orders", sql="price > 10 AND price < 100")
    assert drained(consumer) == [b"50"]
    assert consumer.position(queue_of(broker)) == 3
    [member] = broker.group("billing").members()
    assert member.subscriptions == (Subscription("orders", "price > 10 AND price < 100", "SQL92"),)
    with pytest.raises(mq.FilterSyntaxError):
        consumer.subscribe("orders", sql="price >")


def test_members_share_the_queues_and_a_leaver_hands_over_without_a_duplicate(
    broker: mq.Broker, make: Make
) -> None:
    send(broker, b"a0", b"a1", b"a2", queue_id=0)
    send(broker, b"b0", b"b1", b"b2", queue_id=1)
    first = make(pull_count=1)
    found = bodies(first.poll(0, count_max=1)) + bodies(first.poll(0, count_max=1))
    second = make(pull_count=1)
    assert second.poll(0) == []  # the first has them, and is not asked before it polls
    found += bodies(first.poll(0, count_max=1))
    assert len(first.assignment()) == 1
    found += bodies(second.poll(0, count_max=1))
    assert first.assignment() | second.assignment() == {queue_of(broker, 0), queue_of(broker, 1)}
    assert not first.assignment() & second.assignment()
    first.close()
    found += drained(second)
    assert sorted(found) == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]


HOLDING = """
import sys, mq
with mq.open(sys.argv[1]) as broker:
    consumer = mq.PullConsumer(broker, "billing", auto_commit_interval=0)
    consumer.subscribe("orders")
    consumer.poll(10, count_max=1)
    held = consumer.poll(10, count_max=1)
    print(len(consumer.assignment()), flush=True)
    sys.stdin.read()
"""


def test_a_poll_takes_over_from_a_process_that_is_killed_between_two_polls(directory: Path) -> None:
    with mq.open(directory) as broker:
        broker.create_topic("orders", 1)
        send(broker, b"1", b"2", b"3")
        child = subprocess.Popen(
            [sys.executable, "-c", HOLDING, directory],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        with child, PullConsumer(broker, "billing") as consumer:
            consumer.subscribe("orders")
            assert consumer.poll(0) == []
            killer = threading.Timer(0.05, child.kill)
            killer.start()
            # The first was consumed when the second was asked for; that one was in hand.
            assert bodies(consumer.poll(SOON)) == [b"2", b"3"]
            killer.join()


def test_a_poll_that_waits_takes_over_what_is_released(broker: mq.Broker, make: Make) -> None:
    first, second = make(), make()
    assert first.poll(0) == []
    send(broker, b"0", queue_id=0)
    send(broker, b"1", queue_id=1)
    leaver = threading.Timer(0.05, first.close)
    leaver.start()
    found = bodies(second.poll(SOON)) + bodies(second.poll(SOON))
    leaver.join()
    assert sorted(found) == [b"0", b"1"]


def test_the_listener_of_assignments_may_commit_what_is_lost(broker: mq.Broker, make: Make) -> None:
    told: list[tuple[str, int, int]] = []

    def listener(topic: str, queues: Sequence[mq.MessageQueue], mine: Sequence[mq.MessageQueue]) -> None:
        told.append((topic, len(queues), len(mine)))
        if len(mine) < 2:
            first.commit()

    for queue_id in (0, 1):
        send(broker, b"1", queue_id=queue_id)
    first = make(auto_commit=False, assignment_listener=listener)
    assert len(drained(first)) == 2
    assert told == [("orders", 2, 2)]
    second = make()
    second.poll(0)
    assert first.poll(0) == []
    assert told == [("orders", 2, 2), ("orders", 2, 1)]
    assert second.poll(0) == []
    assert offsets(broker) == [1, 1]


def test_a_strategy_that_returns_nonsense_raises_in_its_consumer(broker: mq.Broker, make: Make) -> None:
    def nonsense(*_: Any) -> Any:
        return ["orders/0"]

    consumer = make(allocate=nonsense)
    for _ in range(2):
        with pytest.raises(ValueError, match="'nonsense' returned 'orders/0'"):
            consumer.poll(0)
    with pytest.raises(ValueError, match=r"config\(queues\)"):
        PullConsumer(broker, "billing", allocate="config")  # type: ignore[arg-type]  # the mistake


def test_seeking_goes_anywhere_that_is_kept(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1", b"2", b"3")
    consumer = make()
    queue = queue_of(broker)
    assert drained(consumer) == [b"1", b"2", b"3"]
    consumer.commit()
    consumer.seek(queue, 1)
    assert drained(consumer) == [b"2", b"3"]
    consumer.seek(broker.topic("orders").queues[0], 0)
    assert bodies(consumer.poll(0, count_max=1)) == [b"1"]
    consumer.commit()
    assert consumer.committed(queue) == 1
    consumer.seek(queue, 3)
    assert consumer.poll(0) == []
    for offset in (-1, 4):
        with pytest.raises(ValueError, match=f"has the offsets 0 to 3, not {offset}"):
            consumer.seek(queue, offset)
    with pytest.raises(ValueError, match="not assigned to this consumer now, which has orders/0, orders/1"):
        consumer.seek(mq.MessageQueue("orders", broker.name, 7), 0)


def test_a_seek_counts_after_a_reset_that_came_before_it(broker: mq.Broker, make: Make) -> None:
    send(broker, *(b"%d" % number for number in range(9)))
    consumer = make()
    queue = queue_of(broker)
    for is_paused in (False, True):
        consumer.poll(0, count_max=3)
        consumer.commit()
        if is_paused:
            consumer.pause([queue])
            broker.group("billing").reset("orders", to="earliest")
            assert consumer.poll(0) == []
        else:
            broker.group("billing").reset("orders", to="earliest")
        consumer.seek(queue, 7)
        assert consumer.position(queue) == 7
        consumer.resume([queue])
        assert drained(consumer) == [b"7", b"8"]
        consumer.commit()
        assert consumer.committed(queue) == 9
        broker.group("billing").reset("orders", to="earliest")


def test_a_reset_counts_after_a_seek_that_came_before_it(broker: mq.Broker, make: Make) -> None:
    send(broker, b"0", b"1", b"2")
    consumer = make()
    consumer.poll(0)
    consumer.commit()
    consumer.seek(queue_of(broker), 1)
    broker.group("billing").reset("orders", to="latest")
    assert consumer.poll(0) == []
    assert consumer.committed(queue_of(broker)) == 3


def test_a_topic_that_is_added_later_begins_at_its_end_if_so_told(broker: mq.Broker, make: Make) -> None:
    broker.create_topic("bills", 2)
    send(broker, b"old")
    send(broker, b"old", topic="bills")
    consumer = make(consume_from="last")
    assert drained(consumer) == []
    consumer.subscribe("bills")
    send(broker, b"new", topic="bills")
    assert drained(consumer) == [b"new"]
    consumer.commit()
    consumer.unsubscribe("bills")
    send(broker, b"meanwhile", topic="bills")
    consumer.subscribe("bills")
    assert drained(consumer) == [b"meanwhile"]


def test_seeking_to_a_time(broker: mq.Broker, make: Make) -> None:
    send(broker, b"old")
    time.sleep(0.005)  # store times are of whole milliseconds
    now = time.time_ns() // 1_000_000
    send(broker, b"new")
    consumer = make()
    consumer.seek_to_time(queue_of(broker), now)
    assert bodies(consumer.poll(0)) == [b"new"]
    consumer.seek_to_time(queue_of(broker), now + 60_000)
    assert consumer.poll(0) == []
    consumer.seek_to_time(queue_of(broker), 0)
    assert bodies(consumer.poll(0)) == [b"old", b"new"]


def test_a_paused_queue_keeps_what_it_has_until_it_is_resumed(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1", b"2", queue_id=0)
    send(broker, b"3", queue_id=1)
    consumer = make()
    queue = queue_of(broker)
    if bodies(consumer.poll(0, count_max=1)) == [b"3"]:
        consumer.poll(0, count_max=1)
    consumer.pause([queue])
    assert b"2" not in drained(consumer)
    [state] = [state for state in broker.group("billing").states("orders") if state.queue == queue]
    assert state.reason == "paused by its consumer"
    consumer.resume([queue])
    assert drained(consumer) == [b"2"]


def test_a_loop_leaves_a_queue_alone_that_is_paused_in_it(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1", b"2", queue_id=0)
    send(broker, b"3", queue_id=1)
    consumer = make()
    seen = []
    for message in consumer:
        seen.append(message.body)
        consumer.pause([queue_of(broker, message.queue_id)])
        if len(seen) == 2:
            break
    assert sorted(seen) == [b"1", b"3"]


def test_resuming_wakes_a_poll_that_waits(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1")
    consumer = make()
    consumer.pause([queue_of(broker)])
    waker = threading.Timer(0.05, consumer.resume, ([queue_of(broker)],))
    waker.start()
    assert bodies(consumer.poll(SOON)) == [b"1"]
    waker.join()


def test_wakeup_ends_one_poll_with_nothing(make: Make) -> None:
    consumer = make()
    waker = threading.Timer(0.05, consumer.wakeup)
    waker.start()
    begin = time.monotonic()
    assert consumer.poll(SOON) == []
    assert time.monotonic() - begin < SOON
    waker.join()


@pytest.mark.parametrize(
    ("consume_from", "expected"),
    [
        ("first", [b"1", b"2", b"3"]),
        ("earliest", [b"1", b"2", b"3"]),
        ("last", [b"3"]),
        ("latest", [b"3"]),
    ],
)
def test_where_a_new_group_begins(
    broker: mq.Broker, make: Make, consume_from: str, expected: list[bytes]
) -> None:
    send(broker, b"1", b"2")
    consumer = make(consume_from=consume_from)
    send(broker, b"3")
    assert drained(consumer) == expected


def test_a_topic_made_after_the_subscription_is_consumed_from_its_start(
    broker: mq.Broker, make: Make
) -> None:
    consumer = make("parcels", consume_from="last")
    broker.create_topic("parcels", 1)
    send(broker, b"first", topic="parcels")
    assert drained(consumer) == [b"first"]


def test_members_subscribe_to_several_topics_one_by_one_and_agree(broker: mq.Broker, make: Make) -> None:
    broker.create_topic("parcels", 2)
    first, second = make(), make()
    for consumer in (first, second):
        consumer.subscribe("parcels")
    assert first.poll(0) == second.poll(0) == first.poll(0) == second.poll(0) == []
    assert len(first.assignment()) == len(second.assignment()) == 2


def test_a_subscription_unlike_that_of_a_live_member_is_refused(broker: mq.Broker, make: Make) -> None:
    first = make(expression="paid")
    first.poll(0)
    with pytest.raises(mq.SubscriptionConflict, match=r"'refunded'.*'paid'.*a group of its own") as caught:
        make(expression="refunded")
    assert caught.value.ours == (Subscription("orders", "refunded"),)
    with pytest.raises(mq.SubscriptionConflict):
        make("parcels").poll(0)
    first.close()
    assert make(expression="refunded").poll(0) == []


def test_a_reset_with_the_member_online_is_heeded_at_once(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1", b"2", b"3")
    consumer = make()
    assert drained(consumer) == [b"1", b"2", b"3"]
    broker.group("billing").reset("orders", to="earliest")
    assert bodies(consumer.poll(0, count_max=1)) == [b"1"]
    broker.group("billing").reset("orders", to="latest")
    consumer.commit()  # what is in hand is of no matter any more
    assert consumer.poll(0) == []
    assert offsets(broker) == [3, 0]


def test_an_offset_beyond_the_end_is_corrected(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1", b"2")
    assigned.commit(broker, "billing", queue_of(broker), 99)
    consumer = make()
    assert consumer.poll(0) == []
    assert consumer.committed(queue_of(broker)) == 2
    send(broker, b"3")
    assert bodies(consumer.poll(0)) == [b"3"]


def test_assigned_queues_are_read_past_the_groups_members(broker: mq.Broker, make: Make) -> None:
    send(broker, b"a", queue_id=0)
    send(broker, b"b", queue_id=1)
    consumer = make(None)
    consumer.assign([queue_of(broker, 1)])
    assert broker.group("billing").members() == []
    assert drained(consumer) == [b"b"]
    consumer.close()
    assert offsets(broker) == [None, 1]


def test_an_assignment_may_change(broker: mq.Broker, make: Make) -> None:
    send(broker, b"a0", b"a1", queue_id=0, tags="x")
    send(broker, b"b0", queue_id=1, tags="y")
    consumer = make(None)
    consumer.assign(broker.topic("orders").queues[:1])
    assert bodies(consumer.poll(0, count_max=1)) == [b"a0"]
    consumer.assign(broker.topic("orders").queues)
    assert sorted(drained(consumer)) == [b"a1", b"b0"]
    consumer.assign([queue_of(broker, 1)], "y")
    assert offsets(broker)[0] == 2
    consumer.seek(queue_of(broker, 1), 0)
    assert drained(consumer) == [b"b0"]
    consumer.assign([])
    assert consumer.poll(0.01) == []


def test_an_assigned_poll_waits_for_all_its_queues(broker: mq.Broker, make: Make) -> None:
    consumer = make(None)
    consumer.assign(broker.topic("orders").queues)
    for queue_id in (0, 1):
        sender = threading.Timer(0.02, send, (broker, b"late"), {"queue_id": queue_id})
        sender.start()
        assert bodies(consumer.poll(SOON)) == [b"late"]
        sender.join()


@pytest.mark.parametrize(
    ("consume_from", "expected"), [("first", [b"1", b"2"]), ("last", []), (0, [b"1", b"2"])]
)
def test_where_an_assigned_queue_without_an_offset_begins(
    broker: mq.Broker, make: Make, consume_from: str | int, expected: list[bytes]
) -> None:
    send(broker, b"1", b"2")
    consumer = make(None, consume_from=consume_from)
    consumer.assign([queue_of(broker)])
    assert drained(consumer) == expected


def test_subscribing_and_assigning_exclude_each_other(broker: mq.Broker, make: Make) -> None:
    with pytest.raises(ValueError, match="subscribe to a topic, or assign queues"):
        make(None).poll(0)
    with pytest.raises(ValueError, match="nothing to consume"):
        next(iter(make(None)))
    with pytest.raises(ValueError, match="has subscribed"):
        make().assign([])
    assigned = make(None)
    assigned.assign([])
    with pytest.raises(ValueError, match="was assigned"):
        assigned.subscribe("orders")
    with pytest.raises(ValueError, match=r"queue_id=7.* is not there"):
        assigned.assign([mq.MessageQueue("orders", broker.name, 7)])


def test_a_malformed_expression_changes_nothing(make: Make) -> None:
    consumer = make()
    with pytest.raises(mq.FilterSyntaxError):
        consumer.subscribe("orders", "||")
    assert consumer.poll(0) == []
    assert len(consumer.assignment()) == 2


def test_a_closed_consumer_says_so(broker: mq.Broker, make: Make) -> None:
    consumer = make()
    consumer.poll(0)
    consumer.close()
    assert broker.group("billing").members() == []
    for call in (
        consumer.poll,
        consumer.commit,
        lambda: consumer.subscribe("orders"),
        lambda: consumer.pause([]),
    ):
        with pytest.raises(mq.BrokerClosed, match="make another"):
            call()


def test_a_consumer_outlives_its_broker_without_a_fuss(broker: mq.Broker, make: Make) -> None:
    consumer = make()
    consumer.poll(0)
    broker.close()
    with pytest.raises(mq.BrokerClosed):
        consumer.poll(0)
    consumer.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pull_count": 0}, "pull_count is 0"),
        ({"consume_from": "middle"}, "consume_from is 'middle'"),
        ({"consume_from": -1}, "consume_from is -1"),
        ({"auto_commit_interval": -1}, "auto_commit_interval is -1"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    broker: mq.Broker, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        PullConsumer(broker, "billing", **options)


def test_arguments_that_make_no_sense_are_refused(make: Make) -> None:
    consumer = make()
    with pytest.raises(ValueError, match="timeout is -1"):
        consumer.poll(-1)
    with pytest.raises(ValueError, match="timeout is nan"):
        consumer.poll(float("nan"))
    with pytest.raises(ValueError, match="count_max is 0"):
        consumer.poll(count_max=0)
    with pytest.raises(TypeError, match="not str"):
        consumer.pause(["orders"])  # type: ignore[list-item]  # the mistake


def test_it_says_when_it_polled_last_while_it_does_not(broker: mq.Broker, make: Make, clock: Clock) -> None:
    send(broker, b"1", b"2")
    consumer = make()

    def reason() -> str:
        states = broker.group("billing").states("orders")
        [state] = [state for state in states if state.queue == queue_of(broker)]
        return state.reason

    consumer.poll(0, count_max=1)
    assert reason().startswith("its consumer asked for messages last at ")
    drained(consumer)
    clock.passed += 1
    # Where the time of one is over before it has looked twice, it has said nothing.
    eventually(lambda: consumer.poll(0.01) == [] and reason() == "", reason)


@pytest.mark.parametrize("timeout", [0, SOON])
@pytest.mark.parametrize("is_assigned", [True, False])
def test_of_a_topic_made_anew_every_message_is_consumed(
    broker: mq.Broker, make: Make, is_assigned: bool, timeout: float
) -> None:
    send(broker, b"old1", b"old2", b"old3")
    consumer = make(None if is_assigned else "orders")
    if is_assigned:
        consumer.assign(broker.topic("orders").queues)
    assert len(consumer.poll(SOON)) == 3
    consumer.commit()
    broker.delete_topic("orders")
    broker.create_topic("orders", 2)
    send(broker, b"new1", b"new2", b"new3", b"new4")
    assert bodies(consumer.poll(timeout)) == [b"new1", b"new2", b"new3", b"new4"]
    consumer.close()
    assert assigned.committed(broker, "billing", queue_of(broker)) == 4


def test_of_a_topic_made_anew_in_a_loop_every_message_is_consumed(broker: mq.Broker, make: Make) -> None:
    send(broker, b"old1", b"old2", b"old3")
    consumer = make(None)
    consumer.assign(broker.topic("orders").queues)
    seen = []
    for message in consumer:
        seen.append(message.body)
        if seen == [b"old1"]:
            broker.delete_topic("orders")
            broker.create_topic("orders", 2)
            send(broker, b"new1", b"new2")
        if len(seen) == 3:
            consumer.commit()
            break
    assert seen == [b"old1", b"new1", b"new2"]
    assert assigned.committed(broker, "billing", queue_of(broker)) == 2


def test_a_waiting_poll_of_assigned_queues_sees_a_topic_made_anew(broker: mq.Broker, make: Make) -> None:
    send(broker, b"old1", b"old2")
    consumer = make(None)
    consumer.assign(broker.topic("orders").queues)
    assert len(consumer.poll(SOON)) == 2

    def replace() -> None:
        broker.delete_topic("orders")
        broker.create_topic("orders", 2)
        send(broker, b"new1")

    other = threading.Timer(0.1, replace)
    other.start()
    found: list[mq.MessageExt] = []
    while not found:
        with suppress(mq.TopicNotFound):  # It looked in between.
            found = consumer.poll(SOON)
    other.join()
    assert bodies(found) == [b"new1"]


def test_assigned_queues_heed_a_reset(broker: mq.Broker, make: Make) -> None:
    send(broker, b"1", b"2", b"3")
    consumer = make(None)
    consumer.assign(broker.topic("orders").queues)
    assert bodies(consumer.poll(SOON)) == [b"1", b"2", b"3"]
    broker.group("billing").reset("orders", to="earliest")
    assert bodies(consumer.poll(0)) == [b"1", b"2", b"3"]
    resetting = threading.Timer(0.1, lambda: broker.group("billing").reset("orders", to="earliest"))
    resetting.start()
    assert bodies(consumer.poll(SOON)) == [b"1", b"2", b"3"]
    resetting.join()


def test_a_seek_of_one_consumer_leaves_another_with_the_same_queue_where_it_is(
    broker: mq.Broker, make: Make
) -> None:
    send(broker, b"1", b"2", b"3")
    first, second = make(None), make(None)
    for consumer in (first, second):
        consumer.assign([queue_of(broker)])
        assert bodies(consumer.poll(SOON)) == [b"1", b"2", b"3"]
    first.commit()
    second.commit()
    first.seek(queue_of(broker), 1)
    first.commit()
    assert assigned.committed(broker, "billing", queue_of(broker)) == 1
    assert bodies(first.poll(SOON)) == [b"2", b"3"]
    assert second.poll(0) == []
    assert second.position(queue_of(broker)) == 3


def test_the_listener_of_assignments_may_close_its_consumer(broker: mq.Broker, make: Make) -> None:
    consumers: list[PullConsumer] = []
    consumers.append(make(assignment_listener=lambda *_: consumers[0].close()))
    assert consumers[0].poll(SOON) == []
    assert broker.group("billing").members() == []


def test_a_forked_child_may_leave_the_block_of_a_consumer(directory: Path) -> None:
    """Which is the parent's."""
    with mq.open(directory) as broker:
        broker.create_topic("orders", 1).send(b"1")
        with PullConsumer(broker, "billing") as consumer:
            consumer.subscribe("orders")
            assert len(consumer.poll(SOON)) == 1
            pid = os.fork()
            if not pid:
                status = 1
                with suppress(BaseException):
                    consumer.close()
                    status = 0
                os._exit(status)
            assert os.waitpid(pid, 0)[1] == 0
            assert len(broker.group("billing").members()) == 1
        assert assigned.committed(broker, "billing", queue_of(broker)) == 1
