"""Calls to a cluster that are cut short by a signal, and broker objects in forked children."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import mq
from tests.support.arrivals import read_all
from tests.support.cluster.shared import SharedCluster, unique_name
from tests.support.eventually import eventually
from tests.support.interrupting import Interrupted, alarms

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(300)]

ROUNDS = 150
PATIENCE = 60.0


@pytest.fixture
def broker(cluster: SharedCluster) -> Iterator[mq.Broker]:
    with mq.open(f"rocketmq://{cluster.name_server}", namespace=unique_name("w"), timeout=30.0) as opened:
        opened.create_topic("orders", 1)
        yield opened


def calls(broker: mq.Broker) -> dict[str, Callable[[int], Any]]:
    producer, queue = mq.Producer(broker, timeout=30.0), broker.topic("orders").queues[0]
    return {
        "send": lambda number: producer.send(mq.Message("orders", b"%d" % number)),
        "batch": lambda number: producer.send_batch([mq.Message("orders", b"%d" % number)] * 2),
        "read": lambda _: queue.read(0),
        "read that waits": lambda _: queue.read(queue.max_offset, wait=0.02),
        "query": lambda _: broker.query("orders", "k"),
        "topics": lambda _: broker.topics(),
        "lag": lambda _: broker.group("billing").lag("orders"),
        "create": lambda number: broker.create_topic(f"made-{number % 3}", 1),
    }


# What the interrupt keeps from the loop is a coroutine that never ran.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_an_interrupted_call_leaves_the_broker_usable(broker: mq.Broker) -> None:
    chance, sent = random.Random(5), set[bytes]()
    by_name = calls(broker)
    names = [*["send"] * 4, *by_name]
    interrupted, threads_before = 0, threading.active_count()
    with alarms() as set_alarm:
        for number in range(ROUNDS):
            name = names[number % len(names)]
            try:
                try:
                    set_alarm(chance.uniform(0.0001, 0.004))
                    by_name[name](number)
                    if name in {"send", "batch"}:
                        sent.add(b"%d" % number)
                finally:
                    set_alarm(0.0)
            except Interrupted:
                interrupted += 1
            except mq.RemotingError as error:  # The connection was closed in the middle of a frame.
                if "interrupted" not in str(error):
                    raise
    assert interrupted > ROUNDS // 20
    # Whatever was cut short, every kind of call works, and what was acknowledged is there.
    for call in by_name.values():
        call(ROUNDS)
    eventually(
        lambda: sent <= stored(broker),
        lambda: f"{sent - stored(broker)} were sent, and are not there",
        PATIENCE,
    )
    assert threading.active_count() < threads_before + 10
    gc.collect()  # so that what is left of the interrupted calls warns here


def stored(broker: mq.Broker) -> set[bytes]:
    return {message.body for queue in broker.topic("orders").queues for message in read_all(queue)}


def test_a_forked_child_has_no_use_of_its_parents_objects(broker: mq.Broker) -> None:
    heard: list[bytes] = []
    with mq.PushConsumer(broker, "billing") as consumer, mq.Producer(broker, timeout=30.0) as producer:
        consumer.subscribe("orders", listener=lambda message: heard.append(message.body))
        consumer.start()
        producer.send(mq.Message("orders", b"before"))
        eventually(lambda: heard == [b"before"], lambda: heard, PATIENCE)
        refused = in_child(
            lambda: producer.send(mq.Message("orders", b"child")),
            broker.topics,
            lambda: broker.topic("orders"),
            lambda: broker.group("billing").members(),
            lambda: mq.Producer(broker).send(mq.Message("orders", b"child")),
        )
        assert refused == "ForkedBroker " * 5
        assert in_child(consumer.close, producer.close, broker.close) in ("ok ok ok ", "ForkedBroker ok ok ")
        producer.send(mq.Message("orders", b"after"))
        eventually(lambda: heard == [b"before", b"after"], lambda: heard, PATIENCE)
        assert len(broker.group("billing").members()) == 1


def in_child(*calls: Callable[[], object]) -> str:
    """What became of each call in a forked child: "ok", or the name of the error."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover - in the child
        told = ""
        for call in calls:
            try:
                call()
                told += "ok "
            except BaseException as error:  # noqa: BLE001 - the child must end here
                told += f"{type(error).__name__} "
        os.write(write, told.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()
