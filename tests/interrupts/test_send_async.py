"""A send_async or a close that is cut short: what is sent later is sent, and no thread stays."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from itertools import count
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from tests.support.interrupting import Interrupted, alarms, interrupted_at
from tests.support.store.small_store import SMALL

PATIENCE = 60.0
SECONDS = float(os.environ.get("MQ_INTERRUPT_SECONDS", "2"))
FEW = 3


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with mq.open(directory, **{**SMALL, "commitlog_file_size": 1 << 20}) as broker:
        broker.create_topic("orders", 1)
        yield broker


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.client.producer.ASYNC_COUNT_MAX", FEW)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("body", [b"small", b"large" * 1000], ids=["small", "large"])
def test_a_send_async_that_is_interrupted_at_any_instruction_holds_up_no_other(
    body: bytes, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost wake-up, or a count that is too high, would keep later ones waiting."""
    monkeypatch.setattr("mq.client.producer.ASYNC_SIZE_MAX", 2 * 5000)
    message = mq.Message("orders", body)
    with mq.Producer(broker, timeout=PATIENCE) as producer:
        for at in count():
            size = interrupted_at(partial(producer.send_async, message), at)
            for _ in range(FEW):
                assert producer.send_async(message).result(PATIENCE).status is mq.SendStatus.SEND_OK
            if size is not None:
                break
        assert at > 50


def test_a_first_send_async_that_is_interrupted_starts_one_thread_at_most(broker: LocalBroker) -> None:
    message = mq.Message("orders", b"first")
    for at in count():
        with mq.Producer(broker, f"first-{at}", timeout=PATIENCE) as producer:
            size = interrupted_at(partial(producer.send_async, message), at)
            producer.send_async(message).result(PATIENCE)
            named = [each for each in threading.enumerate() if each.name == f"mq-producer-first-{at}"]
            assert len(named) == 1
        if size is not None:
            break
    assert at > 50


def test_sends_async_that_alarms_cut_short_hold_up_no_other(broker: LocalBroker) -> None:
    message = mq.Message("orders", b"cut by an alarm")
    cuts = 0
    with mq.Producer(broker, timeout=PATIENCE) as producer, alarms() as set_alarm:
        producer.send_async(message).result(PATIENCE)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or cuts < 20:
            for _ in range(10):
                try:
                    set_alarm(random.uniform(2e-6, 3e-5))
                    producer.send_async(message)
                    set_alarm(0.0)
                except Interrupted:
                    cuts += 1
            set_alarm(0.0)
            producer.send_async(message).result(PATIENCE)


@pytest.mark.parametrize("how", ["close", "exit"])
def test_a_close_of_a_producer_that_is_interrupted_at_any_instruction_ends_its_thread(
    how: str, broker: LocalBroker
) -> None:
    def end(producer: mq.Producer) -> None:
        if how == "close":
            producer.close()
        else:
            producer.__exit__(None, None, None)

    kept = []
    for at in count():
        producer = mq.Producer(broker, "closed", timeout=PATIENCE)
        producer.send_async(mq.Message("orders", b"one")).result(PATIENCE)
        kept.append(producer)
        if interrupted_at(partial(end, producer), at) is not None:
            break
    deadline = time.monotonic() + PATIENCE
    while any(each.name == "mq-producer-closed" for each in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("few")
def test_a_message_that_comes_while_the_producer_closes_is_sent_or_refused(broker: LocalBroker) -> None:
    """By another thread: no future stays without a result."""
    message = mq.Message("orders", b"late")
    for number in range(20):
        producer = mq.Producer(broker, f"late-{number}", timeout=PATIENCE)
        futures: list[Future[mq.SendResult]] = []

        def send(to: mq.Producer, into: list[Future[mq.SendResult]]) -> None:
            while True:
                try:
                    into.append(to.send_async(message))
                except mq.BrokerClosed:
                    return

        thread = threading.Thread(target=send, args=(producer, futures))
        thread.start()
        while len(futures) < 3:
            time.sleep(0.0001)
        producer.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        for future in futures:
            future.result(PATIENCE)
