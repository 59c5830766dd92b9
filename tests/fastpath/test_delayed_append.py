"""Delayed messages through the bound functions: closed under way, in many threads, forked; their memory."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

import mq
from tests.fastpath.calling import run_all
from tests.fastpath.refcounts import keeps_nothing

ROOT = Path(__file__).resolve().parents[2]
HOUR = 3_600_000
DELAYS: list[dict[str, Any]] = [
    {"delay_level": 18},
    {"delay_ms": HOUR},
    {"deliver_at_ms": int(time.time() * 1000) + 24 * HOUR},
    {"delay_ms": 0},
]


def delayed(delay: dict[str, Any]) -> mq.Message:
    return mq.Message("orders", b"x" * 100, tags="paid", keys="k", **delay)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_broker_closes_while_delayed_messages_are_sent(directory: Path, flush: Any) -> None:
    for _ in range(5):
        broker = mq.open(directory, flush=flush)
        broker.create_topic("orders", 2)
        producer, enough = mq.Producer(broker), threading.Semaphore(0)

        def sending(message: mq.Message) -> Any:
            def send() -> None:
                producer.send(message)  # noqa: B023 - over before the next round
                enough.release()  # noqa: B023 - the same

            return send

        def close() -> None:
            # With a limit: a thread that ended with an error is reported below.
            all(enough.acquire(timeout=60) for _ in range(50))  # noqa: B023 - the same
            broker.close()  # noqa: B023 - the same

        assert run_all([sending(delayed(delay)) for delay in DELAYS], close) == []


def test_topics_come_and_go_while_delayed_messages_are_sent(directory: Path) -> None:
    broker = mq.open(directory)
    broker.create_topic("orders", 1)
    producer, ended = mq.Producer(broker), threading.Event()

    def sending(message: mq.Message) -> Any:
        def send() -> None:
            if ended.is_set():
                raise mq.BrokerClosed("ended")
            assert producer.send(message).queue.topic == "orders"

        return send

    def change() -> None:
        for number in range(60):
            broker.create_topic(f"other{number}", 1)
            if number % 10 == 0:
                broker.delete_topic("orders")
                broker.create_topic("orders", 1)
        ended.set()

    assert run_all([sending(delayed(delay)) for delay in DELAYS[:3]], change) == []
    broker.close()


def test_delayed_messages_give_their_memory_back(directory: Path) -> None:
    with mq.open(directory) as broker, mq.Producer(broker) as producer:
        broker.create_topic("orders", 1)
        long = mq.Message("orders", b"x", properties={"long": "v" * 600}, delay_ms=HOUR)

        def each() -> None:
            for delay in DELAYS[:2]:
                handle = producer.send(delayed(delay)).recall_handle
                assert (handle is None) == ("delay_level" in delay)
            producer.send(long)
            for wrong in ({"delay_level": 19}, {"delay_ms": -1}, {"delay_ms": 1 << 70}, {"delay_ms": "1"}):
                try:
                    delayed(wrong)
                except (TypeError, ValueError):
                    continue
                raise AssertionError(wrong)

        shared = (mq.Message, mq.SendResult, long, mq.SendStatus.SEND_OK)
        assert keeps_nothing(each, shared, 1000)


def test_what_is_known_of_alarms_does_not_keep_a_broker_alive(directory: Path) -> None:
    broker = mq.open(directory)
    broker.create_topic("orders", 1)
    producer = mq.Producer(broker)
    for delay in DELAYS:
        for _ in range(2):
            producer.send(delayed(delay))
    broker.kept = producer  # type: ignore[attr-defined]  # a cycle
    broker.close()
    gone = weakref.ref(broker)
    del broker, producer
    gc.collect()
    assert gone() is None


FORKED = """
import os, sys, mq
broker = mq.open(sys.argv[1])
broker.create_topic("orders", 1)
producer = mq.Producer(broker)
messages = [mq.Message("orders", b"x", delay_ms=9999999), mq.Message("orders", b"x", delay_level=18)]
results = [producer.send(message) for message in messages * 2]
child = os.fork()
if child == 0:
    calls = [lambda message=message: producer.send(message) for message in messages]
    for call in (*calls, lambda: broker.recall(results[0].recall_handle), lambda: list(broker.delayed())):
        try:
            call()
        except mq.ForkedBroker:
            continue
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert broker.recall(results[0].recall_handle) == results[0].msg_id
assert len(list(broker.delayed())) == 3
broker.close()
"""


def test_a_forked_child_sends_and_recalls_nothing(directory: Path) -> None:
    done = subprocess.run(
        # Newer interpreters warn of any fork beside threads.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, directory],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert (done.returncode, done.stderr) == (0, "")
