"""Held pulls: each is answered when there is a message or its time is over, by few wakes of one thread."""

from __future__ import annotations

import math
import queue
import random
import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

import mq
from mq.remoting.event_loop import EventLoop
from mq.remoting.server import holding
from mq.remoting.server.holding import ENDS_SECONDS, Held, Holding
from tests.support.eventually import eventually
from tests.support.insides import is_awaited, put_in_place_of_held

HANG_SECONDS = 60.0
LONG = 3600.0  # longer than a test waits: what the thread misses is not found by chance


class Pulls:
    """Holding with its loop. The answers come into a queue: which pull, and whether its time is over."""

    def __init__(self, store: mq.Broker) -> None:
        self.events = EventLoop("loop of a test")
        self.holding = Holding(store, self.events, list, 10_000)
        self.answers: queue.Queue[tuple[object, bool]] = queue.Queue()
        self.looks = 0
        self.holding.changed.append(self._count)
        self.holding.start()

    def _count(self) -> None:
        self.looks += 1

    def hold(self, name: object, at: mq.MessageQueue, offset: int, deadline: float = math.inf) -> Held:
        held = Held((at, offset, None), deadline, lambda is_over: self.answers.put((name, is_over)), set())
        self.events.post(self.holding.hold, held)
        return held

    def is_awaited(self, at: mq.MessageQueue, offset: int) -> bool:
        """Whether the thread waits for this position."""
        return is_awaited(self.holding, (at, offset, None))

    def answer(self) -> tuple[object, bool]:
        return self.answers.get(timeout=HANG_SECONDS)

    def close(self) -> None:
        self.holding.close()
        self.events.close()


@pytest.fixture
def pulls(store: mq.Broker) -> Iterator[Pulls]:
    made = Pulls(store)
    yield made
    made.close()


def test_a_message_answers_every_pull_of_its_position(store: mq.Broker, pulls: Pulls) -> None:
    topic, other = store.create_topic("orders", 1), store.create_topic("others", 1)
    (first,), (second,) = store.readable("orders"), store.readable("others")
    for name in range(20):
        pulls.hold(name, first, 0)
    pulls.hold("other", second, 0)
    topic.send(b"x")
    assert {pulls.answer() for _ in range(20)} == {(name, False) for name in range(20)}
    other.send(b"x")
    assert pulls.answer() == ("other", False)


def test_pulls_end_at_their_deadline(store: mq.Broker, pulls: Pulls) -> None:
    store.create_topic("orders", 1)
    (at,) = store.readable("orders")
    begin = monotonic()
    for name, seconds in (("soon", 0.1), ("late", 1.5), ("never", math.inf)):
        pulls.hold(name, at, 0, begin + seconds)
    assert pulls.answer() == ("soon", True)
    assert monotonic() >= begin + 0.1
    assert pulls.answer() == ("late", True)
    assert monotonic() >= begin + 1.5


def test_a_pull_that_ends_before_all_others_wakes_the_thread(
    store: mq.Broker, pulls: Pulls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "SLEEP_SECONDS", LONG)
    store.create_topic("orders", 1)
    (at,) = store.readable("orders")
    pulls.hold("late", at, 0, monotonic() + LONG)
    eventually(lambda: pulls.is_awaited(at, 0), lambda: pulls.looks, HANG_SECONDS)
    pulls.hold("soon", at, 0, monotonic() + 0.1)
    assert pulls.answer() == ("soon", True)


def test_a_pull_that_comes_again_while_the_thread_collects_is_not_missed(
    store: mq.Broker, pulls: Pulls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was waited for before, and the thread has just noted all others."""
    monkeypatch.setattr(holding, "SLEEP_SECONDS", LONG)
    topic, _ = store.create_topic("orders", 1), store.create_topic("others", 1)
    (at,), (other,) = store.readable("orders"), store.readable("others")
    pulls.hold("late", other, 0, monotonic() + LONG)
    held = pulls.hold("first", at, 0)
    eventually(lambda: pulls.is_awaited(at, 0), lambda: pulls.looks, HANG_SECONDS)
    collected, again = threading.Event(), threading.Event()

    class Watched(dict[Any, Any]):
        def __iter__(self) -> Iterator[Any]:
            found = list(super().__iter__())
            if not collected.is_set() and threading.current_thread().name == "mq serve waiting":
                collected.set()
                assert again.wait(HANG_SECONDS)
            return iter(found)

    def drop() -> None:
        pulls.holding.drop(held)
        put_in_place_of_held(pulls.holding, Watched)
        pulls.holding.wake()

    pulls.events.post(drop)
    assert collected.wait(HANG_SECONDS)
    pulls.hold("again", at, 0)
    pulls.events.post(again.set)
    topic.send(b"x")
    assert pulls.answer() == ("again", False)


def test_a_dropped_pull_is_not_answered(store: mq.Broker, pulls: Pulls) -> None:
    topic = store.create_topic("orders", 1)
    (at,) = store.readable("orders")
    held = pulls.hold("dropped", at, 0, monotonic() + 30.0)
    pulls.events.post(pulls.holding.drop_all, held.holds)
    pulls.events.post(lambda: pulls.answers.put((pulls.holding.drop(held), held in held.holds)))
    assert pulls.answer() == (False, False)
    pulls.hold("kept", at, 0)
    topic.send(b"x")
    assert pulls.answer() == ("kept", False)
    assert pulls.answers.empty()


def test_pulls_that_end_and_come_again_wake_the_thread_for_all_together(
    store: mq.Broker, pulls: Pulls
) -> None:
    """300 pulls that come again at once, 3,000 times in all: not 3,000 wakes."""
    store.create_topic("orders", 1)
    (at,) = store.readable("orders")
    done = threading.Event()
    left = 300 * 10

    def hold(wait: float) -> None:
        def again(is_over: bool) -> None:
            nonlocal left
            assert is_over
            left -= 1
            if not left:
                done.set()
            hold(0.2)

        pulls.holding.hold(Held((at, 0, None), monotonic() + wait, again, set()))

    begin = monotonic()
    for number in range(300):
        pulls.events.post(hold, 0.2 * number / 300)
    assert done.wait(HANG_SECONDS)
    # The first pulls come while the thread finds out what it waits for.
    assert pulls.looks <= 50 + 2 * (monotonic() - begin) / ENDS_SECONDS


def test_no_message_is_missed_by_a_pull_that_is_held_just_now(store: mq.Broker, pulls: Pulls) -> None:
    """Sends, holds, and the ends of other pulls at once. A missed message would answer a minute late."""
    topic = store.create_topic("orders", 1)
    (at,) = store.readable("orders")
    chance = random.Random(1)
    for _ in range(10):
        pulls.hold("noise", at, 1 << 40, 0.0)  # wakes at once: beyond the end
    for number in range(500):
        pulls.hold(number, at, number)
        if chance.random() < 0.5:
            pulls.hold("noise", at, number + 1_000_000, monotonic() + chance.uniform(0.0, 0.01))
        for _ in range(chance.choice((0, 1, 50, 2000))):
            pass
        topic.send(b"x")
        while (answer := pulls.answer())[0] == "noise":
            continue
        assert answer == (number, False)
