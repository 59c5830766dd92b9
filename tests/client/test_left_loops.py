"""The message at which a loop over messages was left: nobody knows why it was, so it comes again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import mq
import mq.aio
from tests.support import assigned
from tests.support.memory.broker import MemoryBroker

SOON = 30.0  # for what is to happen at once
BODIES = [b"%d" % number for number in range(6)]


@pytest.fixture(params=["memory", "local"])
def broker(request: pytest.FixtureRequest, directory: Path) -> Iterator[mq.Broker]:
    with MemoryBroker() if request.param == "memory" else mq.open(directory) as broker:
        topic = broker.create_topic("orders", 1)
        broker.create_topic("others", 1)
        for body in BODIES:
            topic.send(body)
        yield broker


@pytest.fixture(params=["subscribed", "assigned"])
def consumer(request: pytest.FixtureRequest, broker: mq.Broker) -> Iterator[mq.PullConsumer]:
    with mq.PullConsumer(broker, "billing") as consumer:
        if request.param == "subscribed":
            consumer.subscribe("orders")
            consumer.subscribe("others")
        else:
            consumer.assign(broker.topic("orders").queues)
        yield consumer


def committed(broker: mq.Broker) -> int | None:
    return assigned.committed(broker, "billing", broker.topic("orders").queues[0].message_queue)


def left_at(consumer: mq.PullConsumer, count: int) -> list[bytes]:
    seen = []
    for message in consumer:
        seen.append(message.body)
        if len(seen) == count:
            break
    return seen


def fail_at_the_first(consumer: mq.PullConsumer, first: Callable[[], object] = lambda: None) -> None:
    with suppress(KeyError):
        for message in consumer:
            first()
            raise KeyError(message.body)


def test_a_poll_begins_with_it(broker: mq.Broker, consumer: mq.PullConsumer) -> None:
    assert left_at(consumer, 2) == BODIES[:2]
    assert [message.body for message in consumer.poll(SOON, count_max=2)] == BODIES[1:3]
    assert [message.body for message in consumer.poll(SOON)] == BODIES[3:]
    consumer.close()
    assert committed(broker) == 6


def test_an_error_leaves_a_loop_too(broker: mq.Broker, consumer: mq.PullConsumer) -> None:
    fail_at_the_first(consumer)
    assert [message.body for message in consumer.poll(SOON)] == BODIES
    consumer.close()
    assert committed(broker) == 6


def test_what_was_committed_does_not_come_again(broker: mq.Broker, consumer: mq.PullConsumer) -> None:
    assert left_at(consumer, 2) == BODIES[:2]
    consumer.commit()
    assert [message.body for message in consumer.poll(SOON)] == BODIES[2:]


def test_a_poll_within_the_loop_takes_what_follows(broker: mq.Broker, consumer: mq.PullConsumer) -> None:
    """It asks for the next message, as the loop would."""
    seen = []
    for message in consumer:
        seen.append(message.body)
        seen += [each.body for each in consumer.poll(SOON, count_max=2)]
        if len(seen) == len(BODIES):
            break
    assert seen == BODIES


@pytest.mark.parametrize("is_over", [True, False])
def test_other_queues_consume_nothing(broker: mq.Broker, consumer: mq.PullConsumer, is_over: bool) -> None:
    def change() -> None:
        if consumer.assignment() == {queue.message_queue for queue in broker.topic("orders").queues}:
            consumer.assign([*broker.topic("orders").queues, *broker.topic("others").queues])
        else:
            consumer.unsubscribe("others")

    fail_at_the_first(consumer, (lambda: None) if is_over else change)
    if is_over:
        change()
    assert left_at(consumer, 1) == BODIES[:1]
    consumer.close()
    assert committed(broker) in {None, 0}


@pytest.mark.parametrize("then", ["poll", "run"])
def test_loops_of_asyncio_as_well(broker: mq.Broker, then: str) -> None:
    async def main() -> list[bytes]:
        async with mq.aio.Consumer(broker, "billing") as consumer:
            consumer.subscribe("orders")
            async for _ in consumer:
                break
            if then == "poll":
                return [message.body for message in await consumer.poll(SOON)]
            seen: list[bytes] = []

            async def listener(message: mq.MessageExt) -> None:
                seen.append(message.body)
                if len(seen) == len(BODIES):
                    await consumer.close()

            await consumer.run(listener, concurrency=1)
            return seen

    assert asyncio.run(asyncio.wait_for(main(), SOON)) == BODIES
    assert committed(broker) == 6
