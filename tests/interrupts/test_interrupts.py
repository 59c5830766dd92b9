"""Ctrl-C, or a time limit by SIGALRM, anywhere in any call: nothing stays locked, and nothing is half done.

A usual run interrupts some instructions of each call, spread over all that it has. MQ_INTERRUPTS=all
interrupts each of them, MQ_INTERRUPTS=4 four times as many as usual. MQ_INTERRUPT_SECONDS is how long alarms
come at random into keyed sends.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

import pytest

import mq
from mq.broker.local import LocalBroker
from tests.interrupts.calls import CALLS, SIZES
from tests.interrupts.consumer_calls import GROUP, PATIENCE, Call
from tests.support.insides import dedup_append
from tests.support.interrupting import Interrupted, alarms, interrupted_after, interrupted_at
from tests.support.store.peer import Peer

TIMES = os.environ.get("MQ_INTERRUPTS", "1")
SECONDS = float(os.environ.get("MQ_INTERRUPT_SECONDS", "2"))
ALL = 1 << 30

pytestmark = [
    pytest.mark.rounds,
    # What is cut short in the middle of reading a file leaves it to the collector, which says so.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("dropped_here"),
    pytest.mark.timeout(0 if TIMES == "all" else 300),  # some calls have 25,000 instructions
]


class Beside:
    """Another process with the store open, as long as all tests here run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._peer = Peer(path, commitlog_file_size=1 << 20, queue_file_units=1000, duties=False)
        self._peer.do("from tests.interrupts import looking; broker.create_topic('beside', 2)")
        self._numbers = count()

    def looks(self) -> None:
        self._peer.do("looking.look(broker)")

    def members(self) -> list[str]:
        found = self._peer.ask("looking.members(broker)")
        assert isinstance(found, list)
        return found

    def sends(self) -> None:
        self._peer.do(f"looking.send_beside(broker, {next(self._numbers)})")

    def close(self) -> None:
        self._peer.close()


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with mq.open(directory, **SIZES) as broker:
        broker.create_topic("orders", 2)
        yield broker


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt may come in a destructor, of what is collected in the middle of a call. pytest would keep
    it until the test ends, and with it the frames of the call and what they have open."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _unraisable: None)


@pytest.fixture
def beside(broker: LocalBroker) -> Iterator[Beside]:
    other = Beside(broker.path)
    yield other
    other.close()


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return condition()


def descriptors() -> Counter[str]:
    """What is open, but for files of messages, which the store opens as it grows, and for what asyncio.run()
    itself loses where an alarm cuts it short: its selector and its pair of sockets."""
    found: Counter[str] = Counter()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            name = path.readlink()
            if str(name).startswith(("anon_inode:[eventpoll]", "socket:")):
                continue
            if not name.is_absolute() or name.parent.name in ("mq", "config", "groups", "producers", "once"):
                found[str(name)] += 1
    return found


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
    assert not thread.is_alive(), f"it waits for what was left locked\n{stacks()}"
    for error in errors:
        raise error


def stacks() -> str:
    """Where the other threads stand."""
    frames = sys._current_frames()
    others = [each for each in threading.enumerate() if each is not threading.current_thread()]
    return "\n".join(
        f"{each.name}:\n{''.join(traceback.format_stack(frames.get(each.ident or 0)))}" for each in others
    )


@contextmanager
def nothing_left(beside: Beside) -> Iterator[None]:
    """At the end there are as many descriptors and threads as before, and no member of a group."""
    gc.collect()
    # This process alone has duties: what they open, and their threads, are there once it leads.
    assert until(lambda: {f"{beside.path}/mq/{name}" for name in ("delay", "timer")} <= descriptors().keys())
    # Broker and duties open this one when they first need it.
    files = descriptors() | Counter({f"{beside.path}/mq/groups/CID_RMQ_SYS_TRANS": 1})
    threads = set(threading.enumerate())
    members = beside.members()
    yield
    assert until(lambda: beside.members() == members), (beside.members(), stacks())
    assert until(lambda: descriptors() <= files), (descriptors() - files, stacks())
    assert until(lambda: set(threading.enumerate()) <= threads), stacks()


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_a_call_that_is_interrupted_at_any_instruction_leaves_nothing_locked(
    kind: Callable[[LocalBroker], Call], broker: LocalBroker, beside: Beside
) -> None:
    call, numbers = kind(broker), count()
    call(next(numbers))
    size = interrupted_at(lambda: call(next(numbers)), ALL)
    assert size is not None
    rounds = size if TIMES == "all" else min(size, round(CALLS[kind] * float(TIMES)))
    with nothing_left(beside):
        for at in range(rounds):
            number = next(numbers)
            interrupted_at(lambda: call(number), at * size // rounds)  # noqa: B023 - called at once
            beside.looks()
            again(lambda: call(number))  # noqa: B023 - called at once
    beside.sends()


def test_a_member_stays_one_wherever_its_change_of_subscriptions_is_interrupted(broker: LocalBroker) -> None:
    broker.create_topic("more", 1)
    with mq.PullConsumer(broker, GROUP) as consumer:
        consumer.subscribe("orders")
        consumer.poll(0)
        at = 0
        while interrupted_at(lambda: consumer.subscribe("more"), at, ("mq.broker.groups.",)) is None:
            assert until(lambda: len(broker.group(GROUP).members()) == 1), at
            consumer.subscribe("more")
            consumer.unsubscribe("more")
            at += 1
    assert at > 10


def test_a_task_asks_again_wherever_another_one_was_interrupted_asking(broker: LocalBroker) -> None:
    consumer = mq.aio.Consumer(broker, GROUP)
    consumer.assign(broker.topic("orders").queues)

    async def poll() -> None:
        assert await consumer.poll(0.0) == []

    at = 0
    while interrupted_at(lambda: asyncio.run(poll()), at, ("mq.aio.",)) is None:
        asyncio.run(poll())
        at += 1
    asyncio.run(consumer.close())
    assert at > 50


# An exception between two steps of asyncio's own loop loses the later one: asyncio.run() then waits for ever
# for a task that nobody continues.
WITHOUT_LOOP = [kind for kind in CALLS if not kind.__name__.startswith("asynchronous")]


@pytest.mark.parametrize("kind", WITHOUT_LOOP, ids=lambda kind: kind.__name__)
def test_a_call_that_an_alarm_cuts_short_leaves_nothing_locked(
    kind: Callable[[LocalBroker], Call], broker: LocalBroker, beside: Beside
) -> None:
    call, numbers = kind(broker), count()
    call(next(numbers))
    begin = time.monotonic()
    call(next(numbers))
    whole = time.monotonic() - begin
    rounds = 500 if TIMES == "all" else round(4 * float(TIMES))
    with nothing_left(beside):
        for _ in range(rounds):
            number = next(numbers)
            moment = random.uniform(1e-6, whole * 1.2)
            interrupted_after(lambda: call(number), moment)  # noqa: B023 - called at once
            beside.looks()
            again(lambda: call(number))  # noqa: B023 - called at once
    beside.sends()


Kind = Literal["clustering", "broadcasting", "transactions"]


def begun(broker: LocalBroker, kind: Kind, number: int) -> mq.PushConsumer | mq.TransactionProducer:
    """An object with threads that is a member of the group until it is closed."""
    if kind == "transactions":
        return mq.TransactionProducer(broker, GROUP, lambda _message: mq.TransactionState.UNKNOWN)
    # Of a broadcasting one the name is not free before it has closed.
    consumer = mq.PushConsumer(broker, GROUP, threads=1, model=kind, client_id=str(number))
    consumer.subscribe("orders", listener=lambda _message: None)
    consumer.start()
    return consumer


@pytest.mark.parametrize("kind", ["clustering", "broadcasting", "transactions"])
@pytest.mark.parametrize("how", ["close", "exit"])
def test_a_close_that_is_interrupted_at_any_instruction_closes(
    kind: Kind, how: str, broker: LocalBroker
) -> None:
    """Though the caller keeps what it closes, and has no other time to close it."""
    kept = []
    size, at = 1, 0
    while at < size:
        closed = begun(broker, kind, at)
        kept.append(closed)
        size = interrupted_at(partial(end, closed, how), at) or at + 2
        at += 1
    assert at > 20
    assert until(lambda: not broker.group(GROUP).members())
    names = "mq-consumer", "mq-checks", "mq-uninterrupted"
    assert until(lambda: not any(each.name.startswith(names) for each in threading.enumerate())), stacks()


def end(what: mq.PushConsumer | mq.TransactionProducer, how: str) -> None:
    if how == "close":
        what.close()
    else:
        what.__exit__(None, None, None)


def test_keyed_sends_that_are_interrupted_and_made_again_are_stored_once(
    broker: LocalBroker, beside: Beside
) -> None:
    with mq.Producer(broker, dedup_window=600) as producer, alarms() as set_alarm:
        end, numbers = time.monotonic() + SECONDS, count()
        cuts, number = 0, 0
        while time.monotonic() < end or cuts < 20:
            number = next(numbers)
            for attempt in count():  # The caller tries until it knows, and has more patience each time.
                try:
                    set_alarm(random.uniform(2e-5, 4e-4) * (1 + attempt / 20))
                    producer.send(mq.Message("orders", b"%d" % number), dedup_key=f"key-{number}")
                    broker.query("orders", f"key-{number}", count_max=1)
                    set_alarm(0.0)
                    break
                except Interrupted:
                    cuts += 1
        set_alarm(0.0)
    beside.looks()
    beside.sends()
    assert stored(broker) == Counter({b"%d" % each: 1 for each in range(number + 1)})
    gc.collect()
    assert max(opened(broker.path / "index").values()) == 1


def opened(below: Path) -> Counter[str]:
    """The files that this process has open there: how often."""
    found: Counter[str] = Counter()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found[str(each.readlink())] += 1
    return Counter({path: times for path, times in found.items() if Path(path).parent == below})


def test_plain_sends_that_are_interrupted_are_stored_once_or_not_at_all(
    broker: LocalBroker, beside: Beside
) -> None:
    """And once for sure where the result was returned; in a batch all of them, or none."""
    acknowledged: set[bytes] = set()
    cut: set[bytes] = set()
    with mq.Producer(broker) as producer, alarms() as set_alarm:
        end, numbers = time.monotonic() + SECONDS / 2, count()
        while time.monotonic() < end or len(cut) < 20:
            number = next(numbers)
            body = b"%d" % number
            message = mq.Message("orders", body)
            try:
                set_alarm(random.uniform(2e-6, 1e-4))
                if number % 3:
                    producer.send(message, shard_key=number)
                else:
                    producer.send_batch([message] * 3)
                acknowledged.add(body)
                set_alarm(0.0)
            except Interrupted:
                cut.add(body)
        set_alarm(0.0)
    beside.looks()
    beside.sends()
    found = stored(broker)
    whole = {body: 1 if int(body) % 3 else 3 for body in acknowledged | cut}
    assert found.keys() <= whole.keys()
    assert {body: found[body] for body in acknowledged} == {body: whole[body] for body in acknowledged}
    assert {body for body in cut if found[body] not in (0, whole[body])} == set()


def stored(broker: LocalBroker) -> Counter[bytes]:
    """How often there is which message."""
    found: Counter[bytes] = Counter()
    for queue in broker.topic("orders").queues:
        at = 0
        while messages := queue.read(at, count_max=1000).messages:
            found.update(message.body for message in messages)
            at += len(messages)
    return found


def test_a_handler_that_sends_under_a_key_is_refused_and_does_not_wait_for_itself(
    broker: LocalBroker,
) -> None:
    producer = mq.Producer(broker, timeout=PATIENCE, dedup_window=600)
    refused: list[mq.MQError] = []

    def interrupted(append: Callable[..., mq.SendResult], *arguments: object) -> mq.SendResult:
        try:
            producer.send(mq.Message("orders", b"of a handler"), dedup_key="key")
        except mq.MQError as error:
            refused.append(error)
        return append(*arguments)

    begin = time.monotonic()
    with dedup_append(broker, interrupted):
        producer.send(mq.Message("orders", b"one"), dedup_key="key")
    assert time.monotonic() - begin < PATIENCE
    (error,) = refused
    assert isinstance(error, mq.StoreLocked)
    assert error.pid == os.getpid()
    assert "signal handler" in str(error)
    assert sum(queue.max_offset for queue in broker.topic("orders").queues) == 1
