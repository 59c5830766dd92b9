"""One thread that waits for several consumers: what wakes it, and that it sleeps while there is nothing."""

from __future__ import annotations

import asyncio
import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mq
import mq.aio
from mq.api.group import Membership, Subscription
from mq.api.waiter import SWEEP_MAX
from mq.filter.tags import tag_hash
from mq.store.shared.waiting import Futex
from tests.support.appending import append_one
from tests.support.eventually import eventually
from tests.support.memory.broker import MemoryBroker
from tests.support.store.sleeping import AT_ONCE, Waiting, asleep
from tests.support.threads import threads_named

LONG = 60.0


@pytest.fixture(params=["memory", "local"])
def broker(request: pytest.FixtureRequest, directory: Path) -> Iterator[mq.Broker]:
    with MemoryBroker() if request.param == "memory" else mq.open(directory) as broker:
        broker.create_topic("orders", 2)
        yield broker


@pytest.fixture
def local(directory: Path) -> Iterator[mq.LocalBroker]:
    with mq.open(directory) as broker:
        broker.create_topic("orders", 2)
        yield broker


def join(broker: mq.Broker, group: str, name: str) -> Membership:
    return broker.consumer_groups.join(
        group,
        client_id=name,
        model="clustering",
        consume_type="pull",
        ordered=False,
        subscriptions=[Subscription("orders")],
    )


def seen(*members: Membership) -> list[tuple[Membership, int]]:
    return [(member, member.version()) for member in members]


def took(call: Any) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def switches(thread: int) -> int:
    """How often a thread of this process slept."""
    text = Path(f"/proc/self/task/{thread}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("voluntary"))


def test_a_message_of_any_queue_wakes_it(broker: mq.Broker) -> None:
    waiter = broker.waiter()
    for queue_id in (0, 1):
        queues = [queue.message_queue for queue in broker.topic("orders").queues]
        positions = [(queue, broker.max_offset(queue), None) for queue in queues]
        message = mq.Message("orders", b"late")
        sender = threading.Timer(0.05, append_one, (broker, "orders", queue_id, message, b"late"))
        sender.start()
        assert took(partial(waiter.wait, positions, (), LONG)) < LONG / 2
        sender.join()


@pytest.mark.parametrize("queue_count", [SWEEP_MAX, SWEEP_MAX + 1])
def test_it_names_the_queue_that_has_a_message_unless_there_are_many(
    local: mq.LocalBroker, queue_count: int
) -> None:
    local.create_topic("many", queue_count)
    offsets = {queue.message_queue: 0 for queue in local.topic("many").queues}
    waiter = local.waiter()
    # The first message of a queue is told to all that wait, a later one to those that wait for the queue.
    for _ in range(3):
        for queue in list(offsets)[1:4]:
            append_one(local, "many", queue.queue_id, mq.Message("many", b"new"), b"new")
            found = waiter.wait([(each, offset, None) for each, offset in offsets.items()], (), LONG)
            assert found == (queue if queue_count == SWEEP_MAX else None)
            offsets[queue] += 1


def test_a_change_of_any_members_group_wakes_it(broker: mq.Broker) -> None:
    members = [join(broker, f"group{number}", "first") for number in range(3)]
    waiter = broker.waiter()
    for number in range(3):
        versions = seen(*members)
        comer = threading.Timer(0.05, join, (broker, f"group{number}", "second"))
        comer.start()
        assert took(partial(waiter.wait, [], versions, LONG)) < LONG / 2
        comer.join()
    versions = [(member, version - 1) for member, version in seen(*members)]
    assert took(partial(waiter.wait, [], versions, LONG)) < AT_ONCE


def test_a_wakeup_wakes_it_once_also_before_it_waits(broker: mq.Broker) -> None:
    waiter = broker.waiter()
    waiter.wakeup()
    waiter.wakeup()
    assert took(partial(waiter.wait, [], (), LONG)) < AT_ONCE
    assert took(partial(waiter.wait, [], (), 0.05)) >= 0.05
    waker = threading.Timer(0.05, waiter.wakeup)
    waker.start()
    assert took(partial(waiter.wait, [], (), LONG)) < LONG / 2
    waker.join()


def test_each_wait_is_for_what_it_is_asked_then(broker: mq.Broker) -> None:
    """A waiter keeps what it made for the wait before: other offsets, tags, queues and topics count."""
    waiter = broker.waiter()
    first, second = (queue.message_queue for queue in broker.topic("orders").queues)
    message = mq.Message("orders", b"news", tags="paid")

    def finds(*positions: tuple[mq.MessageQueue, int, frozenset[int] | None]) -> None:
        assert took(partial(waiter.wait, positions, (), LONG)) < AT_ONCE

    def sleeps(*positions: tuple[mq.MessageQueue, int, frozenset[int] | None]) -> None:
        assert took(partial(waiter.wait, positions, (), 0.05)) >= 0.05

    sleeps((first, 0, None))
    append_one(broker, "orders", 0, message, b"news")
    finds((first, 0, None))
    sleeps((first, 1, None))
    finds((first, 0, None))
    sleeps((second, 0, None))
    finds((second, 0, None), (first, 0, None))
    sleeps((second, 0, None), (first, 1, None))
    sleeps((first, 0, frozenset({tag_hash("late")})))
    finds((first, 0, frozenset({tag_hash("paid")})))
    broker.delete_topic("orders")
    broker.create_topic("orders", 2)
    sleeps((first, 0, None))
    append_one(broker, "orders", 0, message, b"news")
    finds((first, 0, None))


class MappedMember:
    """A member with one word, in a map of its own."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def version(self) -> int:
        return 0

    def words(self) -> list[tuple[Futex, int]]:
        return [(Futex(self._memory), 0)]

    def mark_seen(self) -> None:
        pass


def test_a_wait_that_the_broker_ended_keeps_no_memory_of_members(directory: Path) -> None:
    """A map cannot be closed while anything looks into it."""
    broker, memory = mq.open(directory), mmap.mmap(-1, mmap.PAGESIZE)
    waiter, member = broker.waiter(), MappedMember(memory)

    def wait() -> None:
        with suppress(mq.BrokerClosed):
            waiter.wait([], [(member, 0)], LONG)

    waiting = Waiting(wait)
    broker.close()
    waiting.end()
    memory.close()


def test_more_members_than_one_call_waits_for_are_looked_for(local: mq.LocalBroker) -> None:
    members = [join(local, f"group{number}", "first") for number in range(40)]
    versions = seen(*members)
    comer = threading.Timer(0.2, join, (local, "group39", "second"))
    comer.start()
    waiter = local.waiter()
    deadline = time.monotonic() + LONG
    while all(member.version() == version for member, version in versions) and time.monotonic() < deadline:
        waiter.wait([], versions, LONG)
    assert members[39].version() != versions[39][1]
    comer.join()


def test_a_consumer_with_assigned_queues_sleeps(local: mq.LocalBroker) -> None:
    with mq.PullConsumer(local, "billing") as consumer:
        consumer.assign(local.topic("orders").queues)
        waiting = Waiting(partial(consumer.poll, LONG))
        for _ in range(10):  # Until what beginning left behind is done.
            before = switches(waiting.thread)
            time.sleep(1.0)
            if switches(waiting.thread) - before <= 2:
                break
        else:
            pytest.fail("it does not sleep")
        append_one(local, "orders", 1, mq.Message("orders", b"news"), b"news", 0)
        assert [message.body for message in waiting.end()] == [b"news"]


def test_the_consumers_of_a_loop_sleep_together(local: mq.LocalBroker) -> None:
    async def main() -> None:
        async with (
            mq.aio.Consumer(local, "one") as one,
            mq.aio.Consumer(local, "two") as two,
            mq.aio.Consumer(local, "three") as three,
        ):
            one.subscribe("orders")
            two.subscribe("orders")
            three.assign(local.topic("orders").queues[1:])
            polls = [asyncio.create_task(each.poll(LONG)) for each in (one, two, three)]
            await asyncio.to_thread(
                eventually, lambda: bool(threads_named("mq-aio-waiter")), lambda: "no thread waits"
            )
            [thread] = threads_named("mq-aio-waiter")
            assert thread.native_id is not None
            asleep(os.getpid(), thread.native_id)
            for _ in range(10):  # Until what beginning left behind is done.
                before = switches(thread.native_id)
                await asyncio.sleep(1.0)
                if switches(thread.native_id) - before <= 2:
                    break
            else:
                pytest.fail("it does not sleep")
            append_one(local, "orders", 1, mq.Message("orders", b"news"), b"news", 0)
            for poll in polls:
                assert [message.body for message in await asyncio.wait_for(poll, LONG / 2)] == [b"news"]

    asyncio.run(main())
