"""Delivering what is due all at once: a million messages of 100 B whose time comes in the same second.

They are put aside first, and in the wheel by the time when they are due; what counts is from then until the
last of them can be read. Beside it stands what plain sends of the same messages reach.
"""

from __future__ import annotations

import os
import time
from contextlib import closing

import mq
from tests.speed import ours
from tests.speed.cases.case import Bench, Case
from tests.speed.goal import at_least
from tests.speed.pairing import Measurement, Turn, alone
from tests.speed.workspace import fresh, settle

BODY_SIZE = 100
SENT_A_SECOND = 60_000  # at least; a slower sender gets more time
LEAD_SECONDS_MAX = 600
PLAIN_PART = 4  # of as many messages, for the plain sends


def turn(bench: Bench, lead_seconds: int) -> Turn:
    """With more time for the sends where a slow machine, or one that halts, did not end them in time."""
    while (taken := _taken(bench, lead_seconds)) is None:
        lead_seconds = 4 * lead_seconds + 1
        assert lead_seconds < LEAD_SECONDS_MAX, "messages are not put aside in time: this machine is too slow"
    return taken


def _taken(bench: Bench, lead_seconds: int) -> Turn | None:
    """None where they were due before all were sent."""
    count = bench.plan.stored_count
    body = os.urandom(BODY_SIZE)
    with fresh(bench.data) as parent:
        directory = parent / "queue"
        directory.mkdir()
        with closing(mq.open(directory)) as broker, mq.Producer(broker) as producer:
            settle(bench.plan.memory_size)
            plain = _plain_rate(broker, producer, body, count // PLAIN_PART)
            (queue,) = broker.create_topic(ours.TOPIC, 1).queues
            due_ms = (time.time_ns() // 1_000_000_000 + lead_seconds) * 1000
            for _ in range(count):
                producer.send(mq.Message(ours.TOPIC, body, deliver_at_ms=due_ms))
            if time.time_ns() // 1_000_000 >= due_ms:
                return None
            while queue.max_offset < count:
                time.sleep(0.001)
            (last,) = queue.read(count - 1, count_max=1).messages
            return Turn(count / max(last.store_time_ms - due_ms, 1) * 1000, {"plain sends": plain})


def _plain_rate(broker: mq.LocalBroker, producer: mq.Producer, body: bytes, count: int) -> float:
    broker.create_topic("plain", 1)
    begin = time.perf_counter()
    for _ in range(count):
        producer.send(mq.Message("plain", body))
    return count / (time.perf_counter() - begin)


def _measure(bench: Bench) -> Measurement:
    lead_seconds = 2 + bench.plan.stored_count // SENT_A_SECOND
    return alone("msg/s", lambda: turn(bench, lead_seconds), bench.plan.rounds, bench.say)


CASES = (
    Case(
        "due/at-once",
        "delivery of 1 M timers due in one second, 100 B",
        "a fixed limit",
        at_least(100_000, "msg/s"),
        _measure,
    ),
)
