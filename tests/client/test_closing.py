"""Brokers, consumers and producers that are closed in any order, dropped, or interrupted while they open.

Nothing stays open, no member stays in a group, no key stays taken, and the log has no warning.
"""

from __future__ import annotations

import gc
import itertools
import logging
import math
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest

import mq
from tests.support.insides import consume_loop_of, store_of

# pytest-timeout's own signal would be the one that interrupts.
pytestmark = pytest.mark.timeout(300, method="thread")
PULLED = 32  # messages at a time, of one queue
ROUNDS = 40


class Late(Exception):
    """Raised by the handler of SIGALRM."""


@contextmanager
def alarms() -> Iterator[Callable[[float], None]]:
    """A function that has Late raised in the main thread after so many seconds."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise Late

    def unraisable(ignored: sys.UnraisableHookArgs) -> None:
        if ignored.exc_type is not Late:  # It may come in a weak reference's callback, where Python goes on.
            report(ignored)

    report, sys.unraisablehook = sys.unraisablehook, unraisable
    before = signal.signal(signal.SIGALRM, late)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = report


def interrupted(after: float, work: Callable[[], object]) -> None:
    """Do something, interrupted after so many seconds."""
    with alarms() as alarm, suppress(Late):
        try:
            alarm(after)
            work()
        finally:
            # An alarm may come here as well.
            with suppress(Late):
                alarm(0)
            alarm(0)


def descriptors() -> list[str]:
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(path.readlink()))
    return sorted(found)


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return condition()


@contextmanager
def nothing_left() -> Iterator[None]:
    """No descriptor and no thread is added. What an earlier test left may still go meanwhile."""
    gc.collect()
    files, threads = Counter(descriptors()), set(threading.enumerate())
    yield
    assert until(lambda: not Counter(descriptors()) - files), Counter(descriptors()) - files
    assert until(lambda: set(threading.enumerate()) <= threads), threading.enumerate()


def joined(broker: mq.LocalBroker) -> list[str]:
    return [member.client_id for member in broker.group("g").members()]


def moments(whole: float) -> Iterator[float]:
    """When to interrupt what takes so long: moments spread over it, and a bit beyond."""
    return (1e-6 + whole * 1.2 * number / ROUNDS for number in range(ROUNDS))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.usefixtures("dropped_here")
def test_an_interrupted_open_leaves_nothing_open(directory: Path) -> None:
    started = time.monotonic()
    mq.open(directory).close()
    whole = time.monotonic() - started
    with nothing_left():
        for moment in moments(whole):
            interrupted(moment, lambda: mq.open(directory).close())
    mq.open(directory).close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.usefixtures("dropped_here")
@pytest.mark.parametrize("kind", ["push", "pull"])
def test_an_interrupted_consumer_leaves_its_group(directory: Path, kind: str) -> None:
    # Without duties, whose threads may still be starting while the others are counted.
    with mq.open(directory, duties=False) as broker, mq.open(directory, duties=False) as other:
        broker.create_topic("t", 1)

        def consume() -> None:
            if kind == "push":
                with mq.PushConsumer(broker, "g") as consumer:
                    consumer.subscribe("t", listener=lambda _message: None)
                    consumer.start()
            else:
                with mq.PullConsumer(broker, "g") as consumer:
                    consumer.subscribe("t")
                    consumer.poll(0)

        started = time.monotonic()
        consume()
        whole = time.monotonic() - started
        threads = set(threading.enumerate())
        for moment in itertools.islice(moments(whole), 0, None, 2):
            interrupted(moment, consume)
        assert until(lambda: joined(other) == []), joined(other)
        assert until(lambda: set(threading.enumerate()) <= threads)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.usefixtures("dropped_here")
def test_an_interrupted_body_gives_its_key_up(directory: Path) -> None:
    with mq.open(directory) as broker, mq.open(directory) as other:
        mine, theirs = mq.Once(broker, "g", wait=0), mq.Once(other, "g", wait=0)

        def handle() -> None:
            for number in range(40):
                with mine(f"key-{number}"):
                    pass

        handle()
        for moment in moments(0.002):
            mine.clear()
            interrupted(moment, handle)
        for number in range(40):
            with theirs(f"key-{number}"):  # Raises mq.Retry if another thread handles it.
                pass


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.usefixtures("dropped_here")
def test_an_interrupted_transaction_producer_leaves_its_group(directory: Path) -> None:
    with mq.open(directory, duties=False) as broker:  # See above.

        def commits(_message: mq.MessageExt) -> mq.TransactionState:
            return mq.TransactionState.COMMIT

        def produce() -> None:
            mq.TransactionProducer(broker, "g", commits).close()

        started = time.monotonic()
        produce()
        whole = time.monotonic() - started
        with nothing_left():
            for moment in moments(whole):
                interrupted(moment, produce)


def test_a_dropped_broker_is_told_of_and_closed(directory: Path) -> None:
    with nothing_left():
        for _ in range(3):
            with pytest.warns(ResourceWarning, match="was dropped and not closed"):
                mq.open(directory)
    assert not (directory / "abort").exists()


def test_a_dropped_pull_consumer_is_told_of_and_leaves(directory: Path) -> None:
    with mq.open(directory) as broker:
        broker.create_topic("t", 1).send(b"x")
        consumer = mq.PullConsumer(broker, "g")
        consumer.subscribe("t")
        assert len(consumer.poll(30)) == 1
        held = [consumer]
        del consumer
        with pytest.warns(ResourceWarning, match="was dropped and not closed"):
            held.clear()
        assert until(lambda: joined(broker) == [])
        assert broker.group("g").lag("t") == 1  # It was not committed.


def test_a_failed_open_leaves_nothing_open(directory: Path) -> None:
    mq.open(directory).close()
    with nothing_left():
        for _ in range(3):
            with pytest.raises(ValueError, match="nonsense"):
                mq.open(directory, message_delay_level="nonsense")


def test_a_closed_broker_keeps_no_file_until_it_is_collected(tmp_path: Path) -> None:
    gc.collect()  # What goes by itself does so now.
    before = Counter(descriptors())
    gc.disable()
    try:
        for number in range(5):
            with mq.open(tmp_path / str(number)) as broker:
                broker.create_topic("t", 1).send(b"x", delay_level=1)
        del broker
        assert not Counter(descriptors()) - before
    finally:
        gc.enable()


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_broker_closed_before_its_consumers_ends_them_quietly(
    directory: Path, caplog: pytest.LogCaptureFixture, is_busy: bool
) -> None:
    caplog.set_level(logging.WARNING)
    seen: list[bytes] = []
    broker = mq.open(directory)
    topic = broker.create_topic("t", 4)
    push, pull = mq.PushConsumer(broker, "push"), mq.PullConsumer(broker, "pull")
    push.subscribe("t", listener=lambda message: seen.append(message.body))
    push.start()
    pull.subscribe("t")
    assert pull.poll(0) == []
    count = 400 if is_busy else 1
    for _ in range(count):
        topic.send(b"x")
    assert until(lambda: bool(seen))
    ended = threading.Event()
    consume_loop_of(push).when_closed(ended.set)
    broker.close()
    assert ended.wait(30)
    push.close()
    pull.close()
    with pytest.raises(mq.BrokerClosed):
        pull.poll(0)
    assert caplog.records == []
    with mq.open(directory) as again:
        # What comes again is at most what was pulled last from each queue, and was being handed out.
        assert again.group("push").lag("t") in range(count - len(seen), count - len(seen) + 4 * PULLED + 1)


@pytest.mark.parametrize(
    "make",
    [
        mq.Producer,
        lambda broker: mq.Once(broker, "g"),
        lambda broker: mq.PullConsumer(broker, "g"),
        lambda broker: mq.PushConsumer(broker, "g"),
        lambda broker: broker.create_topic("t"),
        lambda broker: broker.create_topic("t").queues[0],
        lambda broker: broker.group("g"),
    ],
)
def test_what_is_made_of_a_broker_keeps_it_open(
    directory: Path, make: Callable[[mq.LocalBroker], object], recwarn: pytest.WarningsRecorder
) -> None:
    opened = [mq.open(directory)]
    store = store_of(opened[0])
    made = make(opened.pop())
    gc.collect()
    store.live()  # Raises BrokerClosed if it is closed.
    assert not recwarn.list
    store.close()
    del made
    gc.collect()
    recwarn.clear()


def test_a_close_may_wait_for_ever(directory: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(_: mq.MessageExt) -> None:
        begun.set()
        assert goes_on.wait(60)

    with mq.open(directory) as broker:
        broker.create_topic("orders", 1).send(b"one")
        consumer = mq.PushConsumer(broker, "billing")
        consumer.subscribe("orders", listener=slow)
        consumer.start()
        assert begun.wait(60)
        threading.Timer(0.1, goes_on.set).start()
        consumer.close(math.inf)
        assert broker.group("billing").lag("orders") == 0
        producer = mq.TransactionProducer(broker, "g", lambda _: mq.TransactionState.COMMIT)
        producer.close(math.inf)
        with mq.PullConsumer(broker, "billing") as polled:
            polled.subscribe("orders")
            with pytest.raises(ValueError, match="timeout is nan s"):
                polled.poll(math.nan)
