"""The calls of consumers and their groups that are cut short: see calls.py."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from itertools import count

import mq
from mq.broker.local import LocalBroker

PATIENCE = 60.0
GROUP = "readers"

Call = Callable[[int], object]


def pushed(broker: LocalBroker) -> Call:
    def consume(_number: int) -> None:
        with mq.PushConsumer(broker, GROUP, threads=1) as consumer:
            consumer.subscribe("orders", listener=lambda _message: None)
            consumer.start()

    return consume


def worked(broker: LocalBroker) -> Call:
    """A push consumer that consumes, and is suspended."""
    topic = broker.topic("orders")

    def consume(number: int) -> None:
        came = threading.Event()
        with mq.PushConsumer(broker, GROUP, threads=1, ordered=bool(number % 2)) as consumer:
            consumer.subscribe("orders", listener=lambda _message: came.set())
            consumer.start()
            topic.send(b"worked")
            came.wait(PATIENCE)
            consumer.suspend()
            consumer.resume()

    return consume


def polled(broker: LocalBroker) -> Call:
    topic = broker.topic("orders")

    def consume(number: int) -> None:
        topic.send(b"%d" % number)
        with mq.PullConsumer(broker, GROUP, auto_commit=False) as consumer:
            consumer.subscribe("orders")
            # One that was cut short is a member until it has closed.
            deadline = time.monotonic() + PATIENCE
            while not consumer.poll(0.1):
                assert time.monotonic() < deadline
            consumer.commit()

    return consume


def sought(broker: LocalBroker) -> Call:
    consumer = mq.PullConsumer(broker, GROUP, auto_commit=False)
    consumer.subscribe("orders")
    consumer.poll(0)
    queue = broker.topic("orders").queues[0]

    def seek(number: int) -> None:
        broker.topic("orders").send(b"%d" % number)
        consumer.seek(queue, 0)
        consumer.poll(0)
        consumer.commit()

    return seek


def broadcast(broker: LocalBroker) -> Call:
    names = count()  # One that was cut short keeps its name until it has closed.

    def consume(_number: int) -> None:
        name = str(next(names))
        with mq.PushConsumer(broker, "all", model="broadcasting", client_id=name, threads=1) as consumer:
            consumer.subscribe("orders", listener=lambda _message: None)
            consumer.start()

    return consume


def once(broker: LocalBroker) -> Call:
    handled = mq.Once(broker, GROUP, size=20)

    def handle(number: int) -> None:
        with handled(f"once-{number}"):
            pass
        assert handled.seen(f"once-{number}")

    return handle


def once_cleared(broker: LocalBroker) -> Call:
    handled = mq.Once(broker, GROUP, size=20)
    return lambda _number: handled.clear()


def asynchronous(broker: LocalBroker) -> Call:
    async def use(number: int) -> None:
        async with mq.aio.Producer(broker) as producer:
            await producer.send(mq.Message("orders", b"%d" % number))
        async with mq.aio.Consumer(broker, GROUP) as consumer:
            consumer.subscribe("orders")
            # One that was cut short is a member for as long as it is not collected.
            deadline = time.monotonic() + PATIENCE
            while not await consumer.poll(0.1):
                assert time.monotonic() < deadline
                gc.collect()

    return lambda number: asyncio.run(use(number))


def administrated(broker: LocalBroker) -> Call:
    broker.topic("orders").send(b"seen")
    group = broker.group(GROUP)

    def look(number: int) -> None:
        group.reset("orders", to="earliest" if number % 2 else "latest")
        group.members()
        assert "orders" in group.topics()
        assert group.lag("orders") >= 0
        assert GROUP in broker.groups()

    return look


def states(broker: LocalBroker) -> Call:
    broker.topic("orders").send(b"waits")
    group = broker.group(GROUP)

    def look(_number: int) -> None:
        assert group.states("orders")
        group.retrying()

    return look
