"""Processes around timer messages: leaders, senders, consumers."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import mq
from mq.broker.local import LocalBroker
from tests.support.processes.halts import until_done
from tests.support.processes.nursery import stopping

SIZES: dict[str, Any] = {
    "commitlog_file_size": 4 << 20,
    "queue_file_units": 1000,
    "index_slot_count": 1009,
    "index_unit_count": 40_000,
}


def deliverer(root: str) -> None:
    """Has the duties as soon as it is its turn."""
    with LocalBroker(root, **SIZES):
        while not stopping:
            time.sleep(0.01)


def sender(root: str, count: int, least_ms: int, most_ms: int, pause: float, seed: int) -> None:
    """Sends messages with random delays; each says when it is due. A send that an alarm ends is repeated
    under its key."""
    chosen = random.Random(seed)
    with (
        LocalBroker(root, duties=False, **SIZES) as broker,
        mq.Producer(broker, dedup_window=600) as producer,
    ):
        for number in range(count):
            message = mq.Message("orders", b"%d" % number, delay_ms=chosen.randint(least_ms, most_ms))
            until_done(partial(producer.send, message, dedup_key=f"timer-{number}"), chosen)
            if number % 10 == 9:
                time.sleep(pause)


def consumer(root: str, trace: str) -> None:
    """Writes down what it gets, and how many ms after it was due."""
    with LocalBroker(root, duties=False, **SIZES) as broker, Path(trace).open("w", buffering=1) as file:
        consumer = mq.PushConsumer(broker, "billing")

        @consumer.subscribe("orders")
        def take(message: mq.MessageExt) -> None:
            error_ms = time.time_ns() / 1e6 - int(message.properties["TIMER_DELIVER_MS"])
            file.write(f"{message.body.decode()} {error_ms:.3f}\n")

        consumer.start()
        while not stopping:
            time.sleep(0.01)
        consumer.close()
