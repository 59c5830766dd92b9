"""Delayed messages, as every broker has them: put aside by level, and there when they are due, as they were
sent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import mq
from tests.contract.conftest import Open
from tests.support.arrivals import wait_for
from tests.support.memory.broker import DELAYS_MS


@pytest.fixture
def delays_ms(kind: str) -> tuple[int, int]:
    """The first two levels, which pass quickly; those of a cluster are in whole seconds."""
    return (1000, 2000) if kind.startswith("cluster") else (200, 700)


@pytest.fixture
def broker(kind: str, opened: Open, delays_ms: tuple[int, int]) -> Iterator[mq.Broker]:
    options: dict[str, Any] = {}
    usual = DELAYS_MS.copy()
    if kind == "memory":
        DELAYS_MS[: len(delays_ms)] = delays_ms
    else:
        options["message_delay_level"] = " ".join(f"{delay}ms" for delay in delays_ms)
    broker = opened(**options)
    broker.create_topic("orders", 1)
    yield broker
    DELAYS_MS[:] = usual


@pytest.fixture
def queue(broker: mq.Broker) -> mq.Queue:
    return broker.topic("orders").queues[0]


def test_a_delayed_message_comes_as_it_was_sent(
    broker: mq.Broker, queue: mq.Queue, delays_ms: tuple[int, int]
) -> None:
    message = mq.Message(
        "orders", b"x", tags="t", keys=["k", "l"], properties={"p": "v"}, flag=3, delay_level=2
    )
    with mq.Producer(broker) as producer:
        before = time.time()
        result = producer.send(message)
    assert (result.status, result.queue) == (mq.SendStatus.SEND_OK, queue.message_queue)
    (found,) = wait_for(queue, 1)
    assert time.time() - before >= (delays_ms[1] - 1) / 1000  # store times are whole ms
    assert (found.topic, found.queue_id, found.queue_offset) == ("orders", 0, 0)
    assert (found.body, found.tags, found.keys, found.flag) == (b"x", "t", ("k", "l"), 3)
    assert found.properties["p"] == "v"
    assert (found.msg_id, found.reconsume_times) == (result.msg_id, 0)
    assert found.store_time_ms - found.born_time_ms >= delays_ms[1]
    assert queue.read(0, expression="t").messages
    assert [each.queue_offset for each in broker.query("orders", "k")] == [0]


def test_each_comes_when_it_is_due(broker: mq.Broker, delays_ms: tuple[int, int]) -> None:
    for attempt in range(20):
        topic = broker.create_topic(f"orders-{attempt}", 1)
        begin = time.monotonic()
        topic.send(b"last", delay_level=2)
        topic.send(b"middle", delay_level=1)
        topic.send(b"first")
        if time.monotonic() - begin < delays_ms[0] / 1000:
            break  # Else the machine was so slow that they are due in another order.
    assert [message.body for message in wait_for(topic.queues[0], 3)] == [b"first", b"middle", b"last"]


def test_those_of_one_level_keep_their_order(broker: mq.Broker, queue: mq.Queue) -> None:
    topic = broker.topic("orders")
    for number in range(50):
        topic.send(b"%d" % number, delay_level=1)
    assert [message.body for message in wait_for(queue, 50)] == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("level", [-1, 19])
def test_a_level_that_there_is_not_is_refused(broker: mq.Broker, level: int) -> None:
    with pytest.raises(mq.MessageInvalid, match=str(level)):
        broker.topic("orders").send(b"x", delay_level=level)
