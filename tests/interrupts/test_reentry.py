"""A signal handler that makes the call that it interrupts: both end, the handler's perhaps with StoreLocked.

A usual run interrupts some instructions of each call; MQ_INTERRUPTS=4 four times as many, and =all each.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from tests.interrupts import calls, consumer_calls
from tests.interrupts.calls import SIZES
from tests.interrupts.consumer_calls import PATIENCE, Call
from tests.support.interrupting import alarms, called_at
from tests.support.store.peer import Peer

TIMES = os.environ.get("MQ_INTERRUPTS", "1")
ROUNDS = 30
ALL = 1 << 30
# asyncio.run(), a second consumer of a group, which waits for the first or subscribes otherwise, and a poll
# of the same one cannot be within another one; the rest takes long, and has other threads do all its work.
APART = {
    *(
        consumer_calls.asynchronous,
        consumer_calls.polled,
        consumer_calls.sought,
        consumer_calls.worked,
        consumer_calls.ran,
        consumer_calls.subscribed_anew,
        consumer_calls.managed,
        consumer_calls.iterated,
        consumer_calls.evicted,
        consumer_calls.asynchronous_batch,
        consumer_calls.asynchronous_loop,
        consumer_calls.asynchronous_run,
        calls.verified,
    ),
    *(calls.served, calls.replicated, calls.keyed_anew),
}

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("dropped_here"),
    pytest.mark.timeout(0 if TIMES == "all" else 300),
]


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with mq.open(directory, **SIZES) as broker:
        broker.create_topic("orders", 2)
        yield broker


@pytest.mark.parametrize(
    "kind", [each for each in calls.CALLS if each not in APART], ids=lambda kind: kind.__name__
)
def test_a_handler_that_makes_the_same_call_does_not_wait_for_itself(
    kind: Callable[[LocalBroker], Call], broker: LocalBroker
) -> None:
    call, numbers = kind(broker), count()
    call(next(numbers))
    size = called_at(lambda: call(next(numbers)), ALL, lambda: None)
    rounds = size if TIMES == "all" else min(size, round(ROUNDS * float(TIMES)))

    def handler() -> None:
        try:
            call(next(numbers))
        except mq.MQError as error:
            refused.append(error)

    refused: list[mq.MQError] = []
    with alarms() as set_alarm:
        for at in range(rounds):
            set_alarm(PATIENCE)  # Raises where the two wait for each other.
            called_at(lambda: call(next(numbers)), at * size // rounds, handler)
            set_alarm(0.0)
    for error in refused:
        if kind is calls.redriven and isinstance(error, mq.NotPermitted):
            continue  # One redrive of a group at a time, whoever makes it.
        assert isinstance(error, mq.StoreLocked), error
        assert error.pid == os.getpid(), error
        assert "signal handler" in str(error), error


def sought_again(broker: LocalBroker) -> tuple[Call, Callable[[], object]]:
    """A handler that polls, seeks and commits by the consumer whose call it interrupts."""
    consumer = mq.PullConsumer(broker, "again")
    queues = [queue.message_queue for queue in broker.topic("orders").queues]
    consumer.assign(queues)

    def seek(number: int) -> None:
        broker.topic("orders").send(b"%d" % number)
        consumer.seek(queues[0], 0)
        consumer.poll(0, count_max=2)
        consumer.commit()
        consumer.poll(0, count_max=3)

    return seek, consumer.close


def iterated_again(broker: LocalBroker) -> tuple[Call, Callable[[], object]]:
    consumer = mq.aio.Consumer(broker, "again")
    queues = [queue.message_queue for queue in broker.topic("orders").queues]
    consumer.assign(queues)

    async def poll() -> None:
        await consumer.poll(0, count_max=2)
        await consumer.poll(0, count_max=3)

    def seek(number: int) -> None:
        broker.topic("orders").send(b"%d" % number)
        polled = poll()
        try:
            asyncio.run(polled)
        except RuntimeError:  # asyncio refuses a loop within a loop.
            polled.close()
        consumer.seek(queues[0], 0)
        consumer.commit()

    return seek, lambda: asyncio.run(consumer.close())


@pytest.mark.parametrize("kind", [sought_again, iterated_again], ids=lambda kind: kind.__name__)
def test_a_handler_that_uses_the_consumer_that_it_interrupts_is_refused(
    kind: Callable[[LocalBroker], tuple[Call, Callable[[], object]]], broker: LocalBroker
) -> None:
    (call, close), numbers = kind(broker), count()
    call(next(numbers))
    size = called_at(lambda: call(next(numbers)), ALL, lambda: None)
    rounds = size if TIMES == "all" else min(size, round(5 * ROUNDS * float(TIMES)))
    refused: list[mq.StoreLocked] = []

    def handler() -> None:
        try:
            call(next(numbers))
        except mq.StoreLocked as error:
            refused.append(error)

    with alarms() as set_alarm:
        for at in range(rounds):
            set_alarm(PATIENCE)
            called_at(lambda: call(next(numbers)), at * size // rounds, handler)
            set_alarm(0.0)
    close()
    assert refused
    for error in refused:
        assert error.pid == os.getpid()
        assert "signal handler" in str(error)


def test_a_refused_poll_has_no_message_come_twice(broker: LocalBroker) -> None:
    """None of those that the poll which it interrupts returns."""
    bodies = [b"%d" % number for number in range(4)]
    at, refused, is_over = 0, 0, False
    while not is_over:
        topic = broker.create_topic(f"again-{at}", 1)
        for body in bodies:
            topic.send(body)
        with mq.PullConsumer(broker, "again") as consumer:
            consumer.subscribe(topic.name)
            seen = consumer.poll(0, count_max=1)

            def poll() -> None:
                seen.extend(consumer.poll(0, count_max=1))  # noqa: B023 - called at once

            def handler() -> None:
                nonlocal refused
                try:
                    poll()
                except mq.StoreLocked:
                    refused += 1

            is_over = called_at(poll, at, handler) < at
            while more := consumer.poll(0):
                seen += more
        assert sorted(message.body for message in seen) == bodies, at
        broker.delete_topic(topic.name)
        at += 1 if TIMES == "all" else 7
    assert refused


def test_an_assignment_listener_may_commit_by_its_consumer(broker: LocalBroker) -> None:
    told: list[str] = []

    def commit(topic: str, *_queues: object) -> None:
        consumer.commit()
        told.append(topic)

    with mq.PullConsumer(broker, "again", assignment_listener=commit) as consumer:
        consumer.subscribe("orders")
        consumer.poll(0)
    assert told[0] == "orders"


def changed_again(broker: LocalBroker) -> tuple[mq.PushConsumer, Callable[[], object]]:
    """A push consumer that is started, and what one changes of it."""
    consumer = mq.PushConsumer(broker, "again", threads=1)
    consumer.subscribe("orders", listener=lambda _message: None)
    consumer.start()

    def change() -> None:
        consumer.suspend()
        consumer.subscribe("more", listener=lambda _message: None)
        assert consumer.assignment() is not None
        consumer.resume()
        consumer.unsubscribe("more")

    return consumer, change


@pytest.mark.parametrize("closes", [False, True], ids=["changes", "closes"])
def test_a_handler_that_changes_the_push_consumer_that_it_interrupts_does_not_wait_for_itself(
    closes: bool, broker: LocalBroker
) -> None:
    first, change = changed_again(broker)
    size = called_at(change, ALL, lambda: None)
    first.close()
    rounds = size if TIMES == "all" else min(size, round(ROUNDS * float(TIMES)))
    with alarms() as set_alarm:
        for at in range(rounds):
            consumer, change = changed_again(broker)
            set_alarm(PATIENCE)
            with suppress(mq.BrokerClosed):
                called_at(change, at * size // rounds, consumer.close if closes else change)
            consumer.close()
            set_alarm(0.0)
    assert not broker.group("again").members()


def test_a_handler_that_polls_while_another_consumer_learns_of_a_member_does_not_wait_for_itself(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.broker.groups.member.LOOK_AGAIN", -1.0)  # Each look is for the dead as well.
    one, other = (mq.PullConsumer(broker, "again") for _ in range(2))
    for each in (one, other):
        each.subscribe("orders")
        each.poll(0)
    coming = "c = mq.PullConsumer(broker, 'again'); c.subscribe('orders'); c.poll(0)"
    with Peer(broker.path, **SIZES) as peer, alarms() as set_alarm:
        peer.do(coming)
        size = called_at(lambda: one.poll(0), ALL, lambda: None)
        rounds = size if TIMES == "all" else min(size, round(2 * ROUNDS * float(TIMES)))
        for at in range(rounds):
            peer.do("c.close()")
            other.poll(0)
            one.poll(0)
            peer.do(coming)
            set_alarm(PATIENCE)
            called_at(lambda: one.poll(0), at * size // rounds, lambda: other.poll(0))
            set_alarm(0.0)
        peer.do("c.close()")
    for each in (one, other):
        each.close()


def test_a_handler_that_delays_a_message_while_its_thread_delays_the_first_does_not_wait_for_itself(
    broker: LocalBroker,
) -> None:
    def delay(sender: mq.LocalBroker) -> None:
        sender.topic("orders").send(b"later", delay_ms=3_600_000)

    refused: list[mq.StoreLocked] = []

    def handler() -> None:
        try:
            delay(sender)
        except mq.StoreLocked as error:
            refused.append(error)

    with mq.open(broker.path, duties=False, **SIZES) as sender:
        size = called_at(lambda: delay(sender), ALL, lambda: None)
    rounds = size if TIMES == "all" else min(size, round(ROUNDS * float(TIMES)))
    with alarms() as set_alarm:
        for at in range(rounds):
            with mq.open(broker.path, duties=False, **SIZES) as sender:
                set_alarm(PATIENCE)
                called_at(lambda: delay(sender), at * size // rounds, handler)
                set_alarm(0.0)
    assert refused
    assert all("signal handler" in str(error) for error in refused)
