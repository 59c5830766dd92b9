"""The calls of consumers and their groups that are cut short: see calls.py."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import mq
from mq.broker.local import LocalBroker
from tests.support import assigned
from tests.support.appending import append_one
from tests.support.insides import evict

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
            # One that was cut short is a member until it has closed, and may get the message.
            deadline = time.monotonic() + PATIENCE
            topic.send(b"worked")
            while not came.wait(0.1):
                topic.send(b"worked once more")
                assert time.monotonic() < deadline
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
            consumer.close()

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


def subscribed_anew(broker: LocalBroker) -> Call:
    """A push consumer whose topics change while it consumes."""

    def consume(_number: int) -> None:
        # One that was cut short is a member until it has closed, and subscribes to something else.
        deadline = time.monotonic() + PATIENCE
        while GROUP in broker.groups() and broker.group(GROUP).members():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        with mq.PushConsumer(broker, GROUP, threads=1) as consumer:
            consumer.subscribe("orders")(lambda _message: None)
            consumer.start()
            consumer.assignment()
            consumer.subscribe("more", listener=lambda _message: None)
            consumer.unsubscribe("orders")
            assert consumer.client_id

    return consume


def ran(broker: LocalBroker) -> Call:
    """A push consumer that consumes until its listener closes it."""
    topic = broker.topic("orders")

    def consume(_number: int) -> None:
        topic.send(b"the last")
        with mq.PushConsumer(broker, GROUP, threads=1) as consumer:
            consumer.subscribe("orders", listener=lambda _message: consumer.close())
            consumer.run()

    return consume


def managed(broker: LocalBroker) -> Call:
    """All that a pull consumer may be told between two polls."""
    consumer = mq.PullConsumer(broker, GROUP)
    queue = broker.topic("orders").queues[0]
    producer = mq.Producer(broker)

    def manage(number: int) -> None:
        producer.send(mq.Message("orders", b"%d" % number), queue=queue)
        consumer.subscribe("orders")
        consumer.wakeup()
        consumer.poll(0)
        consumer.poll(0)  # The first one was woken.
        assert queue.message_queue in consumer.assignment()
        consumer.pause([queue])
        consumer.resume([queue])
        consumer.seek_to_time(queue, 0)
        assert consumer.position(queue) == 0
        consumer.committed(queue)
        consumer.unsubscribe("orders")

    return manage


def evicted(broker: LocalBroker) -> Call:
    """A consumer that comes back after others took it for gone."""
    consumer = mq.PullConsumer(broker, GROUP)
    consumer.subscribe("orders")
    consumer.poll(0)

    def come_back(_number: int) -> None:
        evict(consumer)
        consumer.poll(0)
        assert len(consumer.assignment()) == 2

    return come_back


def iterated(broker: LocalBroker) -> Call:
    """A pull consumer that is told its queues, and is used in a loop."""
    consumer = mq.PullConsumer(broker, "assigned", auto_commit=False)
    topic = broker.topic("orders")

    def take(_number: int) -> None:
        topic.send(b"for the loop")
        consumer.assign(topic.queues)
        for _ in consumer:
            break
        consumer.commit()

    return take


def once(broker: LocalBroker) -> Call:
    handled = mq.Once(broker, GROUP, size=20)

    def handle(number: int) -> None:
        with suppress(ZeroDivisionError), handled(f"once-{number}"):
            raise ZeroDivisionError
        with handled(f"once-{number}"):
            pass
        assert handled.seen(f"once-{number}")
        assert handled.size == 20

    return handle


def once_cleared(broker: LocalBroker) -> Call:
    handled = mq.Once(broker, GROUP, size=20)
    return lambda _number: handled.clear()


def asynchronous(broker: LocalBroker) -> Call:
    async def use(number: int) -> None:
        async with mq.aio.Producer(broker, "orders") as producer:
            await producer.send(mq.Message(producer.group, b"%d" % number))
        async with mq.aio.Consumer(broker, GROUP) as consumer:
            consumer.subscribe("orders")
            # One that was cut short is a member for as long as it is not collected.
            deadline = time.monotonic() + PATIENCE
            while not await consumer.poll(0.1):
                assert time.monotonic() < deadline
                gc.collect()

    return lambda number: asyncio.run(use(number))


def asynchronous_batch(broker: LocalBroker) -> Call:
    async def use(number: int) -> None:
        async with mq.aio.Producer(broker) as producer:
            await producer.send_batch([mq.Message("orders", b"%d" % number)] * 3)

    return lambda number: asyncio.run(use(number))


def asynchronous_loop(broker: LocalBroker) -> Call:
    consumer = mq.aio.Consumer(broker, "assigned", auto_commit=False)
    topic = broker.topic("orders")

    async def use() -> None:
        topic.send(b"for the loop")
        consumer.assign(topic.queues)
        async for _ in consumer:
            break
        consumer.commit()

    return lambda _number: asyncio.run(use())


def asynchronous_run(broker: LocalBroker) -> Call:
    """A consumer that calls a coroutine, which closes it."""
    topic = broker.topic("orders")

    async def collect() -> None:
        # One that was cut short is a member for as long as it is not collected.
        while True:
            gc.collect()
            await asyncio.sleep(0.1)

    async def use() -> None:
        topic.send(b"the last")
        collecting = asyncio.create_task(collect())
        async with mq.aio.Consumer(broker, GROUP) as consumer:
            consumer.subscribe("orders")

            async def close(_message: mq.MessageExt) -> None:
                await consumer.close()

            await consumer.run(close, concurrency=2)
        collecting.cancel()

    return lambda _number: asyncio.run(use())


def administrated(broker: LocalBroker) -> Call:
    broker.topic("orders").send(b"seen")
    group = broker.group(GROUP)

    def look(number: int) -> None:
        group.reset("orders", to="earliest" if number % 2 else "latest")
        group.members()
        assert "orders" in group.topics()
        assert len(group.offsets("orders")) == 2
        assert group.lag("orders") >= 0
        assert GROUP in broker.groups()

    return look


def begun(broker: LocalBroker) -> Call:
    """A group that begins at the end of a topic, and awaits one that is not there."""
    groups = broker.consumer_groups

    def begin(_number: int) -> None:
        for topic in ("orders", "awaited"):
            assert groups.begin_at_the_end("begun", topic, broker)
        broker.group("begun").delete()

    return begin


def forgotten(broker: LocalBroker) -> Call:
    queue = broker.topic("orders").queues[0]
    message = mq.Message("orders", b"failed")
    append_one(broker, "orders", queue.queue_id, message, message.body, 0)
    (found,) = queue.read(queue.min_offset, count_max=1).messages
    handled = mq.Once(broker, "forgotten", size=20)

    def forget(number: int) -> None:
        assigned.commit(broker, "forgotten", queue.message_queue, 1)
        assigned.send_back(broker, found, "forgotten", max_reconsume_times=number % 2)
        broker.group("forgotten").delete(dead_letters=True)
        assert "forgotten" not in broker.groups()
        assert not handled.seen("anything")

    return forget


def states(broker: LocalBroker) -> Call:
    broker.topic("orders").send(b"waits")
    group = broker.group(GROUP)

    def look(_number: int) -> None:
        assert group.states("orders")
        group.retrying()

    return look
