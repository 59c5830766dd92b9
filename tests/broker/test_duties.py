"""One process does the duties, and another goes on the moment when that one dies, at whatever step it does.

Of every delayed message exactly one copy is delivered, none before it is due, whichever process delivers; and
the one that was to deliver it may have been killed before any store into what the processes share, or
anywhere in the append.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.shared.leader_lock import Turn
from tests.broker.deliverer import LEVELS, SIZES
from tests.broker.wait_for_leader import wait_for_duties
from tests.support.insides import leader_pid, schedule_of
from tests.support.processes.fail_build import TREE, fail_points
from tests.support.processes.nursery import Nursery
from tests.support.threads import threads_named

ACTORS = "tests.broker.deliverer"
PATIENCE = 60.0
DELAYS_MS = (50, 150)
POINT = fail_points()


@pytest.fixture(scope="module")
def hired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    report = tmp_path_factory.mktemp("nursery") / "report"
    assert mq.__file__ is not None
    with Nursery(TREE, report, Path(mq.__file__).parents[1], ACTORS) as nursery:
        yield nursery


@pytest.fixture
def nursery(hired: Nursery) -> Iterator[Nursery]:
    yield hired
    assert hired.failures() == ""


class Deliverer:
    """The process of deliverer.py."""

    def __init__(
        self,
        nursery: Nursery,
        store: Path,
        step: int | None = None,
        *,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._nursery = nursery
        self._store = store
        self.process = nursery.start("deliverer", root=store, step=step, environment=environment)

    def has_duties(self) -> None:
        """Wait until it has."""
        wait_for_duties(self._store, self.process)

    def died(self) -> bool:
        """Whether it ends by itself; a process ends only when it is killed."""
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        """Have it close."""
        self.process.stop()
        assert self.process.wait(PATIENCE)

    def __enter__(self) -> Deliverer:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._nursery.forget(self.process)


def open_beside(path: Path) -> LocalBroker:
    return mq.open(path, message_delay_level=LEVELS, **SIZES)


def sent_and_delivered(broker: LocalBroker, count: int) -> list[mq.MessageExt]:
    """Send delayed messages of both levels, and wait until all are delivered."""
    (queue,) = broker.create_topic("orders", 1).queues
    sent = {}
    for number in range(count):
        level = number % 2 + 1
        result = broker.topic("orders").send(b"%d" % number, delay_level=level)
        sent[result.msg_id] = broker.message(result.offset_msg_id).store_time_ms + DELAYS_MS[level - 1]
    found: list[mq.MessageExt] = []
    deadline = time.monotonic() + 60
    while len({message.msg_id for message in found}) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        found += queue.read(len(found), wait=0.2).messages
    # One more of each level comes after all that could come twice.
    for level in (1, 2):
        broker.topic("orders").send(b"last", delay_level=level)
    while [message.body for message in found].count(b"last") < 2:
        assert time.monotonic() < deadline
        found += queue.read(len(found), wait=0.2).messages
    found = [message for message in found if message.body != b"last"]
    assert sorted(message.msg_id for message in found) == sorted(sent)
    for message in found:
        assert message.store_time_ms > sent[message.msg_id]
    return found


STEPS = 22  # Seven stores for each message, so that some deaths are those of its second and third.


@pytest.mark.crash
@pytest.mark.parametrize("step", range(STEPS))
def test_death_before_any_change_of_what_is_shared(directory: Path, nursery: Nursery, step: int) -> None:
    with Deliverer(nursery, directory, step) as first:
        first.has_duties()
        with open_beside(directory) as broker:
            sent_and_delivered(broker, 6)
            assert first.died()


APPEND = ("LOCKED", "ARMED", "HALF_RECORD", "RECORD", "UNIT", "LOG_END", "PUBLISHED", "DISARMED")


@pytest.mark.crash
@pytest.mark.parametrize("passage", [1, 4])
@pytest.mark.parametrize("point", APPEND)
def test_death_inside_the_append_of_a_delivery(
    directory: Path, failing: Nursery, point: str, passage: int
) -> None:
    environment = {"MQ_FAIL": f"{POINT[point]}:{passage}:kill"}
    with Deliverer(failing, directory, environment=environment) as first:
        first.has_duties()
        with open_beside(directory) as broker:
            sent_and_delivered(broker, 6)
            assert first.died()


@pytest.mark.crash
def test_the_leader_is_killed_again_and_again(
    directory: Path, nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two levels of short delays, and several processes that wait to lead; the sender has no part in
    it."""
    monkeypatch.setattr(Turn, "take", lambda _turn: False)
    sent: dict[str, int] = {}
    found: list[mq.MessageExt] = []
    killed = 0
    with open_beside(directory) as broker, ExitStack() as stack:
        (queue,) = broker.create_topic("orders", 1).queues
        crowd = [stack.enter_context(Deliverer(nursery, directory)) for _ in range(6)]
        alive = {deliverer.process.pid: deliverer for deliverer in crowd}
        for number in range(600):
            delay = DELAYS_MS[number % 2]
            result = broker.topic("orders").send(b"%d" % number, delay_level=number % 2 + 1)
            sent[result.msg_id] = broker.message(result.offset_msg_id).store_time_ms + delay
            time.sleep(0.002)
            if number % 90 == 89 and len(alive) > 1:
                deadline = time.monotonic() + 60
                while (pid := leader_pid(broker)) not in alive:
                    assert time.monotonic() < deadline, "no process has taken over"
                    time.sleep(0.001)
                alive.pop(pid).process.kill()
                killed += 1
        deadline = time.monotonic() + 60
        while len({message.msg_id for message in found}) < len(sent):
            assert time.monotonic() < deadline, f"{len(found)} of {len(sent)} came"
            found += queue.read(len(found), count_max=100, wait=0.2).messages
        # One more of each level comes after all that could come twice.
        for level in (1, 2):
            broker.topic("orders").send(b"last", delay_level=level)
        while [message.body for message in found].count(b"last") < 2:
            assert time.monotonic() < deadline
            found += queue.read(len(found), wait=0.2).messages
    assert killed == 5
    found = [message for message in found if message.body != b"last"]
    assert sorted(message.msg_id for message in found) == sorted(sent)
    for message in found:
        assert message.store_time_ms > sent[message.msg_id]


@pytest.mark.crash
def test_another_goes_on_at_once(directory: Path, nursery: Nursery) -> None:
    """Killed just before a message is due; and, the next one, closed."""

    def is_in_time(round_: int) -> bool:
        time.sleep(1.3 * round_)
        # The promise is 250 ms; 50 of them are the message's own delay.
        return delay_of_a_take_over(directory, nursery) <= 0.05 + 0.25

    # In one of a few rounds, over a minute: a machine may have more to do than this test.
    assert any(is_in_time(round_) for round_ in range(10))


def delay_of_a_take_over(directory: Path, nursery: Nursery) -> float:
    """In s, in the middle of six."""
    delays = []
    for is_killed in (True, False) * 3:
        with Deliverer(nursery, directory) as first:
            first.has_duties()
            with open_beside(directory) as broker:
                topic = broker.create_topic("orders", 1)
                (queue,) = topic.queues
                offset = queue.max_offset
                topic.send(b"x", delay_level=1)
                before = time.monotonic()
                if is_killed:
                    first.process.kill()
                else:
                    first.end()
                    before = time.monotonic()
                assert queue.read(offset, wait=30).messages
                delays.append(time.monotonic() - before)
    return sorted(delays)[len(delays) // 2]


def switches(thread: int) -> int:
    """How often a thread of this process went to sleep."""
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches"))
    return int(line.split()[1])


def test_a_process_that_waits_for_the_lead_sleeps(directory: Path, nursery: Nursery) -> None:
    with Deliverer(nursery, directory) as first:
        first.has_duties()
        before_it = threading.enumerate()
        with open_beside(directory) as broker:
            [duties] = threads_named("mq-duties", besides=before_it)
            thread = duties.native_id
            assert thread is not None
            time.sleep(0.2)

            def woken() -> int:
                """Delayed messages wake the leader, and no other process."""
                before = switches(thread)
                for _ in range(20):
                    broker.create_topic("orders", 1).send(b"x", delay_level=1)
                    time.sleep(0.05)
                return switches(thread) - before

            # A thread that waits for the interpreter lock sleeps as well, so one of a few rounds must pass.
            assert any(woken() < 10 for _ in range(10))


def test_a_stop_wakes_the_delivering_leader(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes between the leader's check of the stop flag and its sleep."""
    monkeypatch.setattr(Turn, "take", lambda _turn: False)
    monkeypatch.setattr("mq.broker.delay.schedule.IDLE", 3600.0)
    with mq.open(directory, **SIZES) as broker:
        looks: list[int] = []

        def stopping() -> bool:
            looks.append(1)
            if len(looks) == 1:
                schedule_of(broker).wake()
            return len(looks) > 1

        delivery = threading.Thread(target=schedule_of(broker).run, args=(stopping,), daemon=True)
        delivery.start()
        delivery.join(60)
        assert not delivery.is_alive()
