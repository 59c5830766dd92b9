"""The duties are a right that lapses: those of a process that is stopped pass on to another one. When it goes
on, it finds out before it does anything: nothing is delivered twice, or lost, whatever it was at.
"""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mq
from mq.broker.delay import recall
from mq.broker.local import LocalBroker
from mq.errors import StoreLocked
from mq.store.native import check, lib
from mq.store.shared import leader_lock as turns
from mq.store.shared.leader_lock import Turn, is_taken
from mq.store.shared.lease import grace
from mq.store.shared.lock_guards import time_limit
from mq.store.shared.process_state import process_state
from mq.store.shared.renewal import Renewals
from mq.store.store import Store
from tests.broker.deliverer import LEVELS, SIZES
from tests.broker.wait_for_leader import wait_for_duties
from tests.support.insides import flushed_end, log_end, turn_of
from tests.support.processes.fail_build import fail_points
from tests.support.processes.nursery import Nursery, Process
from tests.support.threads import threads_named

pytestmark = pytest.mark.rounds

ACTORS = "tests.broker.deliverer"
PATIENCE = 60.0
LEASE = 1.5
POINT = fail_points()


def wait_until(told: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not told():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


@contextmanager
def leader(failing: Nursery, root: Path, point: str = "", **options: object) -> Iterator[Process]:
    """A process that has the duties, and stops at a point."""
    environment = {"MQ_FAIL": f"{POINT[point]}:1:stop"} if point else {}
    process = failing.start("deliverer", root=root, lease=LEASE, environment=environment, **options)
    try:
        wait_for_duties(root, process)
        yield process
    finally:
        process.stop()
        deadline = time.monotonic() + PATIENCE
        while not process.wait(0.1):  # It may come to the point only now.
            assert time.monotonic() < deadline, "it does not end"
            process.go_on()
        failing.forget(process)


def open_beside(root: Path, *, duties: bool = True) -> LocalBroker:
    return mq.open(root, message_delay_level=LEVELS, duties_lease=LEASE, duties=duties, **SIZES)


def has_duties(broker: LocalBroker) -> bool:
    turn = turn_of(broker)
    return turn.term > 0 and turn.holds()


def delivered(broker: LocalBroker, count: int) -> Counter[bytes]:
    """What lies in the queue of orders once there are so many."""
    (queue,) = broker.topic("orders").queues
    wait_until(lambda: queue.max_offset >= count, "not everything is delivered")
    return Counter(message.body for message in queue.read(0, count_max=1000).messages)


def flushed(broker: LocalBroker, end: int) -> None:
    wait_until(lambda: flushed_end(broker) >= end, "nothing is flushed")


@contextmanager
def stopped_leader(
    failing: Nursery, root: Path, send: Callable[[mq.Topic], object], point: str = "", **options: object
) -> Iterator[tuple[Process, LocalBroker]]:
    """A leader that was stopped by what is sent, and the broker that is to take over from it."""
    with leader(failing, root, point, **options) as first:
        # It is in charge for as long as it comes to that point, whatever else the machine has to do.
        with open_beside(root, duties=False) as sender:
            send(sender.create_topic("orders", 1))
            wait_until(lambda: process_state(first.pid).is_stopped, "it does not come to that point")
        with open_beside(root) as broker:
            yield first, broker


@pytest.mark.crash
@pytest.mark.parametrize("change", range(3))
def test_a_leader_that_is_stopped_between_two_changes_of_what_is_shared(
    directory: Path, failing: Nursery, change: int
) -> None:
    def send(topic: mq.Topic, begin: int = 0) -> None:
        for number in range(begin, begin + 6):
            topic.send(b"%d" % number, delay_level=number % 2 + 1)

    with stopped_leader(failing, directory, send, stops_before=change) as (first, broker):
        assert delivered(broker, 6) == Counter(b"%d" % number for number in range(6))
        assert has_duties(broker)
        first.go_on()
        send(broker.topic("orders"), 6)
        delivered(broker, 12)
        time.sleep(0.1)
        assert delivered(broker, 12) == Counter(b"%d" % number for number in range(12))
        assert has_duties(broker)


@pytest.mark.crash
@pytest.mark.parametrize(
    "point", ["TIMER_UNIT", "TIMER_SLOT", "TIMER_LINKED", "TIMER_STATED", "TIMER_COPIED", "TIMER_MARKED"]
)
def test_a_leader_that_is_stopped_inside_of_the_wheel(
    directory: Path,
    failing: Nursery,
    point: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No process can take the timer wheel from it; all else goes on. The wheel goes on when the process does.
    Others are told which process is stopped."""
    monkeypatch.setattr(recall, "TIMEOUT", 0.2)

    def send(topic: mq.Topic) -> None:
        for number in range(6):
            topic.send(b"timer %d" % number, delay_ms=150 + 10 * number)

    with stopped_leader(failing, directory, send, point) as (first, broker):
        topic = broker.topic("orders")
        topic.send(b"level", delay_level=1)
        wait_until(lambda: b"level" in delivered(broker, 1), "the levels stand still")
        assert has_duties(broker)
        holder = rf"held by process {first.pid} \(.*\), which is stopped"
        wait_until(
            lambda: re.search(f"timer messages have to wait: .*{holder}", caplog.text), "nothing is said"
        )
        later = topic.send(b"recalled", delay_ms=100_000).recall_handle
        assert later is not None
        with pytest.raises(mq.RequestTimeout, match=holder):
            broker.recall(later)
        first.go_on()
        expected = Counter([b"level", *(b"timer %d" % number for number in range(6))])
        wait_until(lambda: delivered(broker, 1).keys() >= expected.keys(), "the wheel stands still")
        topic.send(b"last", delay_ms=300)
        expected[b"last"] += 1
        wait_until(lambda: b"last" in delivered(broker, 1), "the wheel stands still")
        assert delivered(broker, 1) == expected


@pytest.mark.crash
def test_a_leader_that_is_stopped_while_it_flushes(directory: Path, failing: Nursery) -> None:
    def send(topic: mq.Topic) -> None:
        topic.send(b"one")

    with stopped_leader(failing, directory, send, "FLUSHED") as (first, broker):
        for body in (b"two", b"three"):
            broker.topic("orders").send(body)
            flushed(broker, log_end(broker))
            first.go_on()


@pytest.mark.crash
def test_a_leader_that_is_stopped_before_it_deletes(directory: Path, failing: Nursery) -> None:
    """It deletes nothing by what it decided before: another one goes by another retention meanwhile."""

    def send(topic: mq.Topic) -> None:
        for _ in range(40):
            topic.send(os.urandom(100_000))  # Of which nothing is left to compress.

    with stopped_leader(failing, directory, send, "EXPIRING", retention_hours=0.0) as (first, broker):
        broker.retention.change(hours=72)
        wait_until(lambda: has_duties(broker), "no process has the duties")
        first.go_on()
        first.stop()
        wait_until(lambda: first.wait(0.1), "it does not end")
        (queue,) = broker.topic("orders").queues
        assert queue.min_offset == 0
        assert len(queue.read(0, count_max=1).messages) == 1


@pytest.mark.crash
@pytest.mark.parametrize("point", ["INDEX_ENTRY", "INDEX_SLOT", "INDEX_COUNT"])
def test_a_leader_that_is_stopped_inside_of_the_index(directory: Path, failing: Nursery, point: str) -> None:
    """No process can take the index from it; a query fails in time and says so, and everything else goes
    on."""

    def send(topic: mq.Topic) -> None:
        topic.send(b"one", keys="one")

    with stopped_leader(failing, directory, send, point) as (first, broker):
        wait_until(lambda: has_duties(broker), "no process has the duties")
        broker.topic("orders").send(b"two", keys="two")
        flushed(broker, log_end(broker))
        stopped = rf"process {first.pid} \(.*\), which is stopped"
        with time_limit(0.2), pytest.raises(StoreLocked, match=stopped) as caught:
            broker.query("orders", "one")
        assert caught.value.pid == first.pid
        first.go_on()
        for key in ("one", "two"):
            assert [message.body for message in broker.query("orders", key)] == [key.encode()]


@pytest.mark.crash
def test_a_leader_that_is_stopped_inside_an_append(directory: Path, failing: Nursery) -> None:
    """Nothing can be taken from it, and all goes on when it does."""

    def send(topic: mq.Topic) -> None:
        topic.send(b"level", delay_level=1)

    with stopped_leader(failing, directory, send, "ARMED") as (first, broker):
        time.sleep(3 * LEASE)
        assert not has_duties(broker)
        stopped = rf"process {first.pid} \(.*\), which is stopped"
        with (
            mq.Producer(broker, timeout=0.2, retries=0) as producer,
            pytest.raises(mq.MQError, match=stopped),
        ):
            producer.send(mq.Message("orders", b"refused"))
        first.go_on()
        assert delivered(broker, 1) == Counter([b"level"])
        send(broker.topic("orders"))
        assert delivered(broker, 2) == Counter([b"level", b"level"])


# The right itself.


@pytest.fixture
def store(directory: Path) -> Iterator[Store]:
    store = Store(directory, **SIZES)
    yield store
    store.close()


def taken(turn: Turn) -> bool:
    """Whether it is had as soon as it is seen lapsed for long enough."""
    for _ in range(10):  # Where it stands still in between, it has to begin anew.
        if turn.take():
            return True
        time.sleep(grace(turn.lease) + 0.01)
    return False


def test_a_renewed_lease_cannot_be_taken(store: Store) -> None:
    first, second = Turn(store, 1.5), Turn(store, 1.5)
    assert first.take()
    assert is_taken(store.root)
    for _ in range(8):
        assert first.renew()
        assert not second.take()
        time.sleep(0.25)
    assert first.holds()
    first.give_up()
    assert not is_taken(store.root)
    assert second.take()
    assert (first.term, second.term) == (1, 2)
    first.close()
    second.close()


def test_a_writer_of_duties_is_collected_in_a_cycle_with_its_words(tmp_path: Path) -> None:
    """As with a broker that is dropped and not closed. A view that cffi had of the words crashed Python."""
    code = f"""
import gc, mmap
from mq.store.store import Store

class Holder:
    pass

store = Store({str(tmp_path / "store")!r})
mapped = mmap.mmap(-1, mmap.PAGESIZE)
words = memoryview(mapped).cast("q")  # The oldest in the cycle, which Python clears first.
holder = Holder()
holder.words, holder.put, holder.itself = words, store.control.duty_writer(mapped), holder
del mapped, words, holder
gc.collect()
store.close()
print("collected")
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stdout) == (0, "collected\n"), run.stderr


def test_a_lease_that_lapsed_passes_on_and_does_not_come_back(store: Store) -> None:
    first, second = Turn(store, 4.0), Turn(store, 4.0)
    assert first.take()
    mapped = mmap.mmap(-1, mmap.PAGESIZE)
    words = memoryview(mapped).cast("q")
    assert store.control is not None
    put = store.control.duty_writer(mapped)
    put({1: 5})
    assert not turns.has_lapsed(store)
    time.sleep(4.01)
    assert turns.has_lapsed(store)
    assert not second.take()  # A machine that was halted: the owner may be about to renew it.
    assert taken(second)
    until = store.word(lib.MQ_DUTIES_UNTIL)
    assert not first.renew()
    assert not first.holds()
    assert store.word(lib.MQ_DUTIES_UNTIL) == until
    with pytest.raises(StoreLocked, match="has the duties"):
        first.check()
    store.control.duties_term = first.term
    with pytest.raises(StoreLocked, match="has the duties"):
        put({1: 6})
    assert words[1] == 5
    first.give_up()
    assert second.holds()
    assert store.word(lib.MQ_DUTIES_HOLDER) != 0
    assert second.renew()
    first.close()
    second.close()


def test_a_late_member_that_renews_first_keeps_its_lease(store: Store) -> None:
    first, second = Turn(store, 0.1), Turn(store, 0.1)
    assert first.take()
    time.sleep(0.11)
    assert not second.take()
    assert first.renew()
    time.sleep(grace(0.1) + 0.01)
    assert not second.take()
    first.close()
    second.close()


def test_a_lease_that_ends_in_a_distant_future_is_damage(store: Store) -> None:
    first, second = Turn(store, 0.1), Turn(store, 0.1)
    assert first.take()
    assert store.control is not None
    store.control.set(lib.MQ_DUTIES_UNTIL, 1 << 62)
    assert taken(second)
    first.close()
    second.close()


def test_the_dead_leave_it_at_once(store: Store) -> None:
    first, second = Turn(store), Turn(store)
    assert first.take()
    assert not second.take()
    first.close()
    assert second.take()
    second.close()


def test_an_append_of_another_term_is_refused(store: Store) -> None:
    assert store.control is not None
    assert check(lib.mq_duties_take(store.control.handle, 0, 7, 1, 0)) == 1
    assert check(lib.mq_duties_take(store.control.handle, 0, 8, 1, 0)) == 0
    assert lib.mq_duties_check(store.control.handle, 0) == lib.mq_duties_check(store.control.handle, 1) == 0
    assert lib.mq_duties_check(store.control.handle, 2) == lib.MQ_DEPOSED
    assert lib.mq_duties_enter(store.control.handle, 2) == lib.MQ_DEPOSED
    assert lib.mq_duties_enter(store.control.handle, 1) == 0
    lib.mq_duties_exit(store.control.handle)


def test_a_lease_is_an_option_with_limits(directory: Path) -> None:
    with pytest.raises(ValueError, match=r"duties_lease is 0\.01: it must be"):
        mq.open(directory, duties_lease=0.01)


def test_what_is_renewed_is_so_until_it_says_otherwise() -> None:
    before, renewals = threading.enumerate(), Renewals()
    calls: Counter[str] = Counter()

    def renew(name: str, most: int) -> bool:
        calls[name] += 1
        return calls[name] < most

    renewals.add(0.01, lambda: renew("three", 3))
    stop = renewals.add(0.01, lambda: renew("many", 1 << 30))
    wait_until(lambda: calls["many"] > 5 and calls["three"] == 3, "it is not called")
    stop()
    assert calls["three"] == 3
    wait_until(
        lambda: not threads_named("mq-lease", besides=before), "the thread goes on without anything to do"
    )
