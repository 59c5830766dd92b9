"""Waiting for a lock that a stopped process holds ends in time, with an error that names the holder."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.broker.once.handled_keys import WRITING_BYTE
from mq.store.native import lib
from mq.store.shared.group_file import CHANGING_BYTE
from mq.store.shared.lock_guards import append_lock, control_lock, file_lock, time_limit
from mq.store.shared.process_state import ProcessKind, process_state
from mq.store.transactions.table import Entry
from tests.support.insides import control_of, store_of
from tests.support.interrupting import Interrupted, alarms
from tests.support.store.peer import Peer
from tests.support.store.small_store import SMALL

SHORT, USUAL = 0.2, 10.0  # seconds: of a call here, and of one that names no limit
PATIENCE = 60.0


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with mq.open(directory, **SMALL) as broker:
        broker.create_topic("orders", 1).send(b"first", keys="first")
        yield broker


@contextmanager
def stopped(path: Path, lock: str, unlock: str) -> Iterator[int]:
    """The pid of a process that is stopped with a lock in hand."""
    with Peer(path) as peer:
        peer.do("from mq.store.shared.lock_guards import *")
        peer.do(lock)
        os.kill(peer.pid, signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE
        while process_state(peer.pid).kind is not ProcessKind.STOPPED:
            assert time.monotonic() < deadline
        try:
            yield peer.pid
        finally:
            os.kill(peer.pid, signal.SIGCONT)
            peer.do(unlock)


def with_mutex(which: str) -> tuple[str, str]:
    handle = "control_of(broker).handle"
    return (
        f"assert lib.mq_control_lock({handle}, lib.{which}, 10000) >= 0",
        f"lib.mq_control_unlock({handle}, lib.{which})",
    )


def refused(call: Callable[[], object], pid: int) -> None:
    """Raises StoreLocked, which names a stopped process, and does so in time."""
    begin = time.monotonic()
    with pytest.raises(mq.StoreLocked) as caught:
        call()
    assert time.monotonic() - begin < USUAL
    assert caught.value.pid == pid
    assert f"process {pid}" in str(caught.value)
    assert f"kill -CONT {pid}" in str(caught.value)


def test_a_send_waits_no_longer_than_its_producer_says(broker: LocalBroker) -> None:
    producer = mq.Producer(broker, timeout=SHORT, dedup_window=600)
    plain = mq.Producer(broker, timeout=SHORT)
    message = mq.Message("orders", b"late")
    plain.send(message)
    with stopped(broker.path, *with_mutex("MQ_LOCK_APPEND")) as pid:
        refused(lambda: plain.send(message), pid)
        refused(lambda: plain.send(message, timeout=SHORT / 2), pid)
        refused(lambda: plain.send(message, shard_key=1), pid)
        refused(lambda: plain.send_batch([message, message]), pid)
        refused(lambda: plain.send_oneway(message), pid)
        # Its time runs before the producer's thread begins with it.
        refused(lambda: plain.send_async(message, timeout=10 * SHORT).result(), pid)
        refused(lambda: producer.send(message, dedup_key="key"), pid)
    assert broker.topic("orders").queues[0].max_offset == 2
    producer.send(message, dedup_key="key")
    plain.send(message)
    assert broker.topic("orders").queues[0].max_offset == 4


def test_a_call_without_a_limit_waits_as_long_as_it_is_told(broker: LocalBroker) -> None:
    with stopped(broker.path, *with_mutex("MQ_LOCK_APPEND")) as pid:

        def late() -> None:
            with time_limit(SHORT):
                broker.topic("orders").send(b"late")

        refused(late, pid)
    with stopped(broker.path, *with_mutex("MQ_LOCK_INDEX")) as pid:

        def query() -> None:
            broker.topic("orders").send(b"more", keys="more")
            with time_limit(SHORT):
                broker.query("orders", "more")

        refused(query, pid)


def test_a_file_that_a_stopped_process_has_locked_is_not_waited_for_either(broker: LocalBroker) -> None:
    lock = "held = file_lock(broker.path / 'mq' / 'topics.lock', 0, 'testing')"
    with stopped(broker.path, lock, "del held") as pid:

        def create() -> None:
            with time_limit(SHORT):
                broker.create_topic("other", 1)

        refused(create, pid)
    broker.create_topic("other", 1)


def with_byte(file: str, byte: str) -> tuple[str, str]:
    return f"held = file_lock(broker.path / 'mq' / {file!r}, {byte}, 'testing')", "del held"


def test_a_poll_that_joins_a_group_waits_no_longer_than_it_says(broker: LocalBroker) -> None:
    with mq.PullConsumer(broker, "readers") as first:  # There is a file of the group.
        first.subscribe("orders")
        assert first.poll(PATIENCE)
    with stopped(broker.path, *with_byte("groups/readers", str(CHANGING_BYTE))) as pid:
        second = mq.PullConsumer(broker, "readers")
        second.subscribe("orders")
        refused(lambda: second.poll(SHORT), pid)

        async def poll() -> None:
            third = mq.aio.Consumer(broker, "readers")
            third.subscribe("orders")
            try:
                await third.poll(SHORT)
            finally:
                await third.close()

        refused(lambda: asyncio.run(poll()), pid)
    second.close()


def test_once_waits_no_longer_than_it_says(broker: LocalBroker) -> None:
    """Each of several threads, though one waits for the lock with which another one waits."""
    once = mq.Once(broker, "readers", wait=SHORT)
    with once("before"):
        pass

    def handle(key: str) -> None:
        with once(key):
            pass

    with (
        stopped(broker.path, *with_byte("once/readers", str(WRITING_BYTE))) as pid,
        ThreadPoolExecutor(3) as threads,
    ):
        begin = time.monotonic()
        for future in [threads.submit(handle, str(number)) for number in range(3)]:
            with pytest.raises(mq.StoreLocked) as caught:
                future.result(PATIENCE)
            assert caught.value.pid in (pid, os.getpid())
        assert time.monotonic() - begin < USUAL


def test_a_key_that_a_stopped_process_handles_is_reported_with_the_process(broker: LocalBroker) -> None:
    once = mq.Once(broker, "readers", wait=SHORT)
    lock = "handling = mq.Once(broker, 'readers')('key'); assert handling.__enter__()"
    with stopped(broker.path, "import mq; " + lock, "handling.__exit__(None, None, None)") as pid:
        begin = time.monotonic()
        with pytest.raises(mq.Retry) as caught, once("key"):
            pass
        assert time.monotonic() - begin < USUAL
        text = str(caught.value.__cause__)
        assert "'key'" in text
        assert f"kill -CONT {pid}" in text
        assert "most likely" not in text
    assert once.seen("key")


def test_a_transaction_that_a_stopped_process_ends_is_reported_with_the_process(broker: LocalBroker) -> None:
    """By the token of its entry: others that are stopped as well are not named."""
    unknown = mq.TransactionState.UNKNOWN
    with mq.TransactionProducer(broker, "bank", lambda _message: unknown) as producer:
        sent = producer.send(mq.Message("orders", b"open"), lambda _message, _arg: unknown)
        name = sent.queue_offset
        claim = f"table = broker.transactions.table(); assert table.claim({name}) is None"
        free = f"table.settle({name}, {Entry.PENDING})"
        with stopped(broker.path, "pass", "pass"), stopped(broker.path, claim, free) as pid:
            end = broker.transactions.ender("bank")
            place = int(sent.offset_msg_id[-16:], 16), sent.queue_offset

            def commit() -> None:
                with time_limit(SHORT):
                    end(*place, mq.TransactionState.COMMIT, True)

            refused(commit, pid)


def test_a_store_that_a_stopped_process_is_opening_says_so_at_once(directory: Path) -> None:
    mq.open(directory, **SMALL).close()
    lock = "held = store_of(broker).open_lock.opening(); store_of(broker).open_lock.opened_by()"
    with stopped(directory, lock, "del held") as pid:
        refused(lambda: mq.open(directory, **SMALL), pid)


def test_a_thread_that_left_a_lock_behind_gives_it_back(broker: LocalBroker) -> None:
    handle = control_of(broker).handle
    assert lib.mq_control_lock(handle, lib.MQ_LOCK_APPEND, 1000) == 0
    with time_limit(SHORT):
        broker.topic("orders").send(b"more")
    with Peer(broker.path) as peer:
        peer.send("orders", 0, b"beside")


def test_a_signal_handler_that_wants_the_lock_of_its_thread_is_refused(broker: LocalBroker) -> None:
    topic = broker.topic("orders")
    with append_lock(store_of(broker).live(), broker.path), pytest.raises(mq.StoreLocked) as caught:
        topic.send(b"of a handler")
    assert caught.value.pid == os.getpid()
    path = broker.path / "mq" / "topics.lock"
    with file_lock(path, 0, "testing"), pytest.raises(mq.StoreLocked, match="signal handler") as caught:
        file_lock(path, 0, "testing")
    assert caught.value.pid == os.getpid()
    topic.send(b"later")
    broker.create_topic("other", 1)


def test_what_is_let_go_of_without_a_with_statement_is_unlocked(broker: LocalBroker) -> None:
    with Peer(broker.path) as peer:
        for _ in range(3):
            append_lock(store_of(broker).live(), broker.path)
            control_lock(control_of(broker), lib.MQ_LOCK_INDEX, broker.path)
            file_lock(broker.path / "mq" / "topics.lock", 0, "testing")
        peer.send("orders", 0, b"beside")
        peer.do("broker.create_topic('beside', 1)")


def test_an_alarm_ends_the_wait_for_a_lock(broker: LocalBroker) -> None:
    path = broker.path / "mq" / "topics.lock"

    def ends_by_alarm(call: Callable[[], object]) -> None:
        set_alarm(SHORT)
        call()

    held = stopped(broker.path, *with_mutex("MQ_LOCK_INDEX"))
    with held, alarms() as set_alarm, pytest.raises(Interrupted):
        ends_by_alarm(lambda: control_lock(control_of(broker), lib.MQ_LOCK_INDEX, broker.path, PATIENCE))
    lock = "held = file_lock(broker.path / 'mq' / 'topics.lock', 0, 'testing')"
    with stopped(broker.path, lock, "del held"), alarms() as set_alarm, pytest.raises(Interrupted):
        ends_by_alarm(lambda: file_lock(path, 0, "testing", PATIENCE))
