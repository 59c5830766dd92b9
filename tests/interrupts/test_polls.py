"""A consumer that asks for messages is interrupted at any instruction of a call, and goes on: no message is
passed over, and no queue stays behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from tests.interrupts.calls import SIZES
from tests.support.eventually import eventually
from tests.support.interrupting import Interrupted, interrupted_at, swallowed

pytestmark = [
    pytest.mark.rounds,
    # A coroutine that an interrupt keeps from being awaited says so.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("dropped_here"),
]
TIMES = os.environ.get("MQ_INTERRUPTS", "1")  # see test_interrupts.py
SENT = 8
BODIES = [b"%d" % number for number in range(SENT)]
GROUP = "readers"
Asked = list[mq.MessageExt]


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with mq.open(directory, **SIZES, duties=False) as broker, swallowed():
        yield broker


def bodies(messages: Asked) -> list[bytes]:
    """Each once, whether or not it came twice."""
    return sorted({message.body for message in messages})


def consumer_of(broker: LocalBroker, topic: str) -> mq.PullConsumer:
    consumer = mq.PullConsumer(broker, GROUP, pull_count=4)
    consumer.subscribe(topic)
    return consumer


def polls(consumer: mq.PullConsumer, seen: Asked) -> None:
    seen += consumer.poll(0, count_max=2)


def polls_all(consumer: mq.PullConsumer, seen: Asked) -> None:
    seen += consumer.poll(0)


def loops(consumer: mq.PullConsumer, seen: Asked) -> None:
    with closing(iter(consumer)) as messages:  # type: ignore[type-var]  # It is a generator.
        seen.append(next(messages))
        seen.append(next(messages))


def commits(consumer: mq.PullConsumer, _seen: Asked) -> None:
    consumer.commit()


def pauses(consumer: mq.PullConsumer, _seen: Asked) -> None:
    consumer.pause(consumer.assignment())
    consumer.resume(consumer.assignment())


def is_not_cut(call: Callable[[], object], at: int) -> bool:
    """Interrupt a call; whether it was over before."""
    return interrupted_at(call, at, at_returns=False) is not None


CALLS = pytest.mark.parametrize("call", [polls, polls_all, loops, commits, pauses])


def sent(broker: LocalBroker, at: int) -> str:
    """A topic of one queue with eight messages, of which a filter leaves out none."""
    topic = broker.create_topic(f"orders-{at}", 1)
    for body in BODIES:
        topic.send(body)
    return topic.name


@CALLS
def test_all_messages_come_where_the_consumer_goes_on(
    broker: LocalBroker, call: Callable[[mq.PullConsumer, Asked], None]
) -> None:
    at, is_through = 0, False
    while not is_through:
        topic, seen = sent(broker, at), Asked()
        with consumer_of(broker, topic) as consumer:
            seen += consumer.poll(0, count_max=2)
            is_through = is_not_cut(lambda: call(consumer, seen), at)  # noqa: B023 - at once
            consumer.resume(consumer.assignment())
            while more := consumer.poll(0):
                seen += more
        assert bodies(seen) == BODIES, at
        assert broker.group(GROUP).lag(topic) == 0, at
        broker.delete_topic(topic)
        at += 1
    assert at > 50


@CALLS
def test_all_messages_come_where_another_goes_on(
    broker: LocalBroker, call: Callable[[mq.PullConsumer, Asked], None]
) -> None:
    """What was not handed out, or not consumed, comes to the next one."""

    class Through(Exception):
        """It was not interrupted."""

    def leave(topic: str, seen: Asked) -> None:
        with consumer_of(broker, topic) as consumer:
            seen += consumer.poll(0, count_max=2)
            seen += consumer.poll(0, count_max=2)
            if is_not_cut(lambda: call(consumer, seen), at):
                raise Through
            raise Interrupted

    at, is_through = 0, False
    while not is_through:
        topic, seen = sent(broker, at), Asked()
        is_through = True
        with suppress(Through):
            try:
                leave(topic, seen)
            except Interrupted:
                is_through = False
        with consumer_of(broker, topic) as consumer:
            while more := consumer.poll(0):
                seen += more
        assert bodies(seen) == BODIES, at
        broker.delete_topic(topic)
        at += 1 if TIMES == "all" else 5
    assert at > 50


async def polls_once(consumer: mq.aio.Consumer, seen: Asked) -> None:
    seen += await consumer.poll(0, count_max=2)


async def loops_twice(consumer: mq.aio.Consumer, seen: Asked) -> None:
    messages = aiter(consumer)
    for _ in range(2):
        seen.append(await anext(messages))


@pytest.mark.parametrize("call", [polls_once, loops_twice])
def test_all_messages_come_where_a_task_goes_on(
    broker: LocalBroker, call: Callable[[mq.aio.Consumer, Asked], Coroutine[None, None, None]]
) -> None:
    async def goes_on(consumer: mq.aio.Consumer, seen: Asked) -> None:
        while more := await consumer.poll(0):
            seen += more
        await consumer.close()

    at, is_through = 0, False
    while not is_through:
        topic, seen = sent(broker, at), Asked()
        consumer = mq.aio.Consumer(broker, GROUP, pull_count=4)
        consumer.subscribe(topic)
        asyncio.run(polls_once(consumer, seen))
        is_through = is_not_cut(lambda: asyncio.run(call(consumer, seen)), at)  # noqa: B023 - at once
        asyncio.run(goes_on(consumer, seen))
        assert bodies(seen) == BODIES, at
        assert broker.group(GROUP).lag(topic) == 0, at
        broker.delete_topic(topic)
        at += 1 if TIMES == "all" else 3
    assert at > 50


def test_a_queue_goes_to_its_next_owner_wherever_a_rebalance_is_interrupted(broker: LocalBroker) -> None:
    broker.create_topic("orders", 2)
    at, is_through = 0, False
    modules = "mq.client.engine.claimed_queues", "mq.broker.groups.claim", "mq.broker.groups.member"
    while not is_through:
        with consumer_of(broker, "orders") as one, consumer_of(broker, "orders") as two:
            one.poll(0)
            assert len(one.assignment()) == 2
            two.poll(0)  # Joins, and gets none yet.
            is_through = interrupted_at(lambda: one.poll(0), at, modules) is not None

            def shared() -> bool:
                one.poll(0)
                two.poll(0)
                return [len(each.assignment()) for each in (one, two)] == [1, 1]

            eventually(shared, lambda: f"interrupted at {at}")  # noqa: B023 - called at once
        at += 1
    assert at > 50
