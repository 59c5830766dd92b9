"""Ctrl-C, or a time limit by SIGALRM, anywhere in any call: nothing stays locked, and nothing is half done.

MQ_INTERRUPT_ROUNDS is how many instructions of each call are interrupted (0: all of them),
MQ_INTERRUPT_SECONDS how long alarms come at random.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from tests.interrupts.interrupting import Interrupted, alarms, interrupted_at
from tests.store.peer import Peer
from tests.store.small_store import SMALL

# What is cut short in the middle of reading a file leaves it to the collector, which says so.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

ROUNDS = int(os.environ.get("MQ_INTERRUPT_ROUNDS", "40"))
SECONDS = float(os.environ.get("MQ_INTERRUPT_SECONDS", "2"))
PATIENCE = 60.0
ALL = 1 << 30


class Beside:
    """Another process with the store open, as long as all tests here run."""

    def __init__(self, path: Path) -> None:
        self._peer = Peer(path, commitlog_file_size=1 << 20, queue_file_units=1000)
        self._peer.do("from tests.interrupts import looking; broker.create_topic('beside', 2)")
        self._numbers = count()

    def looks(self) -> None:
        self._peer.do("looking.look(broker)")

    def sends(self) -> None:
        self._peer.do(f"looking.send_beside(broker, {next(self._numbers)})")

    def close(self) -> None:
        self._peer.close()


SIZES = {**SMALL, "commitlog_file_size": 1 << 20, "queue_file_units": 1000}


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with mq.open(directory, **SIZES) as broker:
        broker.create_topic("orders", 2)
        yield broker


@pytest.fixture
def beside(broker: LocalBroker) -> Iterator[Beside]:
    other = Beside(broker.path)
    yield other
    other.close()


Call = Callable[[int], object]


def plain(broker: LocalBroker) -> Call:
    topic = broker.topic("orders")
    return lambda number: topic.send(b"plain", keys=f"plain-{number}")


def produced(broker: LocalBroker) -> Call:
    producer = mq.Producer(broker)
    message = mq.Message("orders", b"produced")
    return lambda number: producer.send(message, shard_key=number)


def batch(broker: LocalBroker) -> Call:
    producer = mq.Producer(broker)
    return lambda number: producer.send_batch([mq.Message("orders", b"%d" % number)] * 3)


def keyed(broker: LocalBroker) -> Call:
    producer = mq.Producer(broker, dedup_window=600)
    return lambda number: producer.send(mq.Message("orders", b"keyed"), dedup_key=f"keyed-{number}")


def keyed_anew(broker: LocalBroker) -> Call:
    """The first of a broker, which opens the table."""

    def send(number: int) -> None:
        old, broker._dedup._keys = broker._dedup._keys, None
        keyed(broker)(number)
        if old is not None:
            old.close()

    return send


def delayed(broker: LocalBroker) -> Call:
    topic = broker.topic("orders")
    return lambda number: topic.send(b"delayed", delay_ms=3_600_000 + number)


def queried(broker: LocalBroker) -> Call:
    topic = broker.topic("orders")

    def query(number: int) -> None:
        topic.send(b"queried", keys=f"queried-{number}")
        assert broker.query("orders", f"queried-{number}")

    return query


def created(broker: LocalBroker) -> Call:
    return lambda number: broker.create_topic(f"made-{number}", 2)


def changed(broker: LocalBroker) -> Call:
    return lambda number: broker.create_topic("orders", 2, perm="rw", ordered=bool(number % 2))


def sent_anew(broker: LocalBroker) -> Call:
    """To a topic that is made by sending to it."""
    return lambda number: mq.Producer(broker).send(mq.Message(f"new-{number}", b"first"))


def deleted(broker: LocalBroker) -> Call:
    def make_and_delete(number: int) -> None:
        name = f"short-{number}"
        if name not in broker.topics():
            broker.create_topic(name, 1).send(b"short")
        # One that was cut short may have struck the topic out, and told nobody yet.
        with suppress(mq.TopicNotFound):
            broker.delete_topic(name)

    return make_and_delete


def committed(broker: LocalBroker) -> Call:
    queue = broker.topic("orders").queues[0].message_queue
    return lambda number: broker.commit("readers", queue, number)


def reset(broker: LocalBroker) -> Call:
    broker.topic("orders").send(b"reset")
    queue = broker.topic("orders").queues[0].message_queue
    return lambda _number: broker.reset_offsets("readers", {queue: 0})


def read(broker: LocalBroker) -> Call:
    broker.topic("orders").send(b"read")
    return lambda _number: broker.topic("orders").queues[0].read(0)


def flushed(broker: LocalBroker) -> Call:
    topic = broker.topic("orders")

    def flush(_number: int) -> None:
        topic.send(b"flushed")
        broker.flush()
        broker.expire()

    return flush


def handled(broker: LocalBroker) -> Call:
    keys = broker.handled("readers")

    def handle(number: int) -> None:
        if keys.begin(f"handled-{number}", PATIENCE):
            keys.finish(f"handled-{number}")

    return handle


CALLS = [
    *(plain, produced, batch, keyed, keyed_anew, delayed, queried, created, changed, sent_anew, deleted),
    *(committed, reset, read, flushed),
]


def again(call: Callable[[], object]) -> None:
    """Make a call in another thread of this process, which another one would keep waiting."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits for what was left locked"
    for error in errors:
        raise error


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_a_call_that_is_interrupted_at_any_instruction_leaves_nothing_locked(
    kind: Callable[[LocalBroker], Call], broker: LocalBroker, beside: Beside
) -> None:
    call, numbers = kind(broker), count()
    call(next(numbers))
    size = interrupted_at(lambda: call(next(numbers)), ALL)
    assert size is not None
    wanted = list(range(size)) if not ROUNDS or size <= ROUNDS else random.sample(range(size), ROUNDS)
    for at in wanted:
        number = next(numbers)
        interrupted_at(lambda: call(number), at)  # noqa: B023 - called at once
        beside.looks()
        again(lambda: call(number))  # noqa: B023 - called at once
    beside.sends()


def test_keyed_sends_that_are_interrupted_and_made_again_are_stored_once(
    broker: LocalBroker, beside: Beside
) -> None:
    with mq.Producer(broker, dedup_window=600) as producer, alarms() as set_alarm:
        end, numbers = time.monotonic() + SECONDS, count()
        cuts, number = 0, 0
        while time.monotonic() < end or cuts < 20:
            number = next(numbers)
            while True:  # The caller tries until it knows.
                try:
                    set_alarm(random.uniform(2e-5, 4e-4))
                    producer.send(mq.Message("orders", b"%d" % number), dedup_key=f"key-{number}")
                    broker.query("orders", f"key-{number}", count_max=1)
                    set_alarm(0.0)
                    break
                except Interrupted:
                    cuts += 1
        set_alarm(0.0)
    beside.looks()
    beside.sends()
    stored: Counter[bytes] = Counter()
    for queue in broker.topic("orders").queues:
        at = 0
        while found := queue.read(at, count_max=1000).messages:
            stored.update(message.body for message in found)
            at += len(found)
    assert stored == Counter({b"%d" % each: 1 for each in range(number + 1)})


def test_a_handler_that_sends_under_a_key_is_refused_and_does_not_wait_for_itself(
    broker: LocalBroker,
) -> None:
    producer = mq.Producer(broker, timeout=PATIENCE, dedup_window=600)
    append = broker._dedup._append
    refused: list[mq.MQError] = []

    def interrupted(*arguments: object) -> mq.SendResult:
        try:
            producer.send(mq.Message("orders", b"of a handler"), dedup_key="key")
        except mq.MQError as error:
            refused.append(error)
        return append(*arguments)

    broker._dedup._append = interrupted
    begin = time.monotonic()
    producer.send(mq.Message("orders", b"one"), dedup_key="key")
    broker._dedup._append = append
    assert time.monotonic() - begin < PATIENCE
    (error,) = refused
    assert isinstance(error, mq.StoreLocked)
    assert error.pid == os.getpid()
    assert "signal handler" in str(error)
    assert sum(queue.max_offset for queue in broker.topic("orders").queues) == 1
