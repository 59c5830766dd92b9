"""A recall and a delivery race, in several processes of which some are killed: what `recall` said holds.

What it said was recalled is never delivered, what it said was delivered is there once, and so is every
message that was not recalled, whichever process was the leader, and whenever it died.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.api.recall import RecallHandle
from mq.broker.delay.timer import TIMER_TOPIC
from mq.broker.local import LocalBroker
from tests.broker.deliverer import SIZES
from tests.broker.recaller import PRECISION_MS
from tests.support.insides import finder_of, timer_of

ROOT = Path(__file__).parents[2]
HOUR = 3_600_000
PATIENCE = 60.0
# Time to set a scene before its messages are due: more is given where the first was too little.
AHEAD_MS = (1500, 6000, 24_000)
BYSTANDER = """
import sys, mq
with mq.open(sys.argv[1], timer_precision_ms=int(sys.argv[2])) as broker:
    if sys.argv[3:]:
        # Alone here, it has the duties by the time that this comes.
        topic = broker.create_topic("others", 1)
        topic.send(b"x", delay_ms=1)
        assert topic.queues[0].read(0, wait=60.0).messages
    print("in", flush=True)
    sys.stdin.read()
"""


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str], *, kill: bool) -> list[str]:
    """What it said until its end."""
    if kill:
        process.kill()
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == (-9 if kill else 0)
    # The last line may be torn.
    return said.splitlines(keepends=True)


class Account:
    """What all the processes said."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.recalled: set[str] = set()
        self.late: set[str] = set()

    def add(self, lines: list[str]) -> None:
        for line in lines:
            what, _, name = line.removesuffix("\n").partition(" ")
            if not line.endswith("\n") or what == "done":
                continue
            if what == "late":
                name = RecallHandle.of(name).unique_id
            {"sent": self.sent, "recalled": self.recalled, "late": self.late}[what].add(name)


def delivered(broker: LocalBroker, topic: str = "orders") -> list[str]:
    found: list[str] = []
    for queue in broker.topic(topic).queues:
        offset = queue.min_offset
        while messages := queue.read(offset, count_max=1000).messages:
            found += [message.msg_id for message in messages]
            offset = messages[-1].queue_offset + 1
    return found


def wait_until_all_came(broker: LocalBroker, name: str = "orders") -> list[str]:
    """Until nothing waits any more; what is due by then is there."""
    last = broker.topic(name).send(b"last", delay_ms=600).msg_id
    until = time.monotonic() + PATIENCE
    while last not in delivered(broker, name):
        assert time.monotonic() < until
        time.sleep(0.02)
    # Once more: another queue may have been read before it had all.
    return [msg_id for msg_id in delivered(broker, name) if msg_id != last]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def sleep_until(due_ms: int) -> None:
    time.sleep(max(0, due_ms + 1 - now_ms()) / 1000)


def recall_all(broker: LocalBroker, results: list[mq.SendResult], base_ms: int) -> bool:
    """Whether that was in time; before base_ms, no recall may come too late."""
    try:
        for result in results:
            assert result.recall_handle is not None
            assert broker.recall(result.recall_handle) == result.msg_id
    except (AssertionError, mq.NotPermitted):
        if now_ms() < base_ms:
            raise
        return False
    return True


@pytest.mark.parametrize("killed", ["none", "the leader", "any process"])
def test_what_a_recall_said_holds(directory: Path, killed: str) -> None:
    with LocalBroker(directory, timer_precision_ms=PRECISION_MS, **SIZES) as broker:
        broker.create_topic("orders", 2)
    chance, account = random.Random(11), Account()
    bystander = start("-c", BYSTANDER, directory, PRECISION_MS)
    assert bystander.stdout is not None
    bystander.stdout.readline()
    recallers = [start("-m", "tests.broker.recaller", directory, seed, 60) for seed in range(3)]
    for round_number in range(0 if killed == "none" else 12):
        time.sleep(chance.uniform(0.05, 0.3))
        if killed == "any process" and round_number % 3 == 2:
            place = chance.randrange(len(recallers))
            account.add(end(recallers[place], kill=True))
            recallers[place] = start("-m", "tests.broker.recaller", directory, 100 + round_number, 40)
            continue
        end(bystander, kill=True)
        bystander = start("-c", BYSTANDER, directory, PRECISION_MS)
    for recaller in recallers:
        account.add(end(recaller, kill=False))
    end(bystander, kill=False)
    with LocalBroker(directory, timer_precision_ms=PRECISION_MS, **SIZES) as broker:
        found = wait_until_all_came(broker)
    assert len(found) == len(set(found)), "delivered twice"
    came = set(found)
    assert account.recalled & came == set()
    assert account.late - came == set()
    assert account.recalled
    # Of those whose sender was killed, a recall may have been under way.
    if killed != "any process":
        assert came == account.sent - account.recalled


def test_a_recall_counts_only_once_the_leader_has_seen_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader is stopped, and the message is due meanwhile: which it handles first is not known."""
    with LocalBroker(directory, timer_precision_ms=PRECISION_MS, **SIZES):
        pass
    bystander = start("-c", BYSTANDER, directory, PRECISION_MS, "alone")
    assert bystander.stdout is not None
    assert bystander.stdout.readline() == "in\n"
    with LocalBroker(directory, timer_precision_ms=PRECISION_MS, **SIZES) as broker:
        for ahead_ms in AHEAD_MS:
            name = f"orders-{ahead_ms}"
            topic, due_ms = broker.create_topic(name, 1), now_ms() + ahead_ms
            result = topic.send(b"x", deliver_at_ms=due_ms)
            bystander.send_signal(signal.SIGSTOP)
            os.waitpid(bystander.pid, os.WUNTRACED)  # Until the last of its threads has stopped.
            if now_ms() < due_ms:
                break
            bystander.send_signal(signal.SIGCONT)
        assert result.recall_handle is not None
        monkeypatch.setattr("mq.broker.delay.recall.TIMEOUT", 0.5)
        with pytest.raises(mq.RequestTimeout):
            broker.recall(result.recall_handle)
        sleep_until(due_ms)
        bystander.send_signal(signal.SIGCONT)
        monkeypatch.setattr("mq.broker.delay.recall.TIMEOUT", PATIENCE)
        # The leader saw the marker first.
        assert broker.recall(result.recall_handle) == result.msg_id
        assert wait_until_all_came(broker, name) == []
    end(bystander, kill=False)


class TestMarkers:
    @pytest.fixture
    def broker(self, directory: Path) -> Iterator[LocalBroker]:
        with LocalBroker(directory, timer_precision_ms=PRECISION_MS, **SIZES) as broker:
            broker.create_topic("orders", 1)
            yield broker

    def test_a_marker_is_stored_as_rocketmq_does(self, broker: LocalBroker) -> None:
        result = broker.topic("orders").send(b"x", delay_ms=HOUR)
        assert result.recall_handle is not None
        broker.recall(result.recall_handle)
        out_ms = RecallHandle.of(result.recall_handle).out_ms
        marker, sent = finder_of(broker).of_unique_id(TIMER_TOPIC, result.msg_id)
        due_ms = sent.deliver_at_ms  # RocketMQ says out_ms + 1, and goes by out_ms.
        assert (marker.topic, marker.queue_id, marker.queue_offset) == (TIMER_TOPIC, 0, 1)
        properties = marker.properties
        born_ms = int(properties.pop("BORN_TIMESTAMP"))
        assert abs(marker.store_time_ms - born_ms) < 60_000
        assert properties == {
            "TAGS": "_RECALL_TAG_",
            "UNIQ_KEY": result.msg_id,
            "TIMER_DEL_UNIQKEY": f"orders+{result.msg_id}",
            "TIMER_DELIVER_MS": str(due_ms),
            "TIMER_OUT_MS": str(out_ms),
            "REAL_TOPIC": "orders",
            "REAL_QID": "0",
        }

    def test_one_marker_is_enough(self, broker: LocalBroker) -> None:
        result = broker.topic("orders").send(b"x", delay_ms=HOUR)
        assert result.recall_handle is not None
        for _ in range(3):
            assert broker.recall(result.recall_handle) == result.msg_id
        assert len(list(finder_of(broker).of_unique_id(TIMER_TOPIC, result.msg_id))) == 2

    def test_a_recalled_message_does_not_come_after_the_store_was_closed(self, directory: Path) -> None:
        for ahead_ms in AHEAD_MS:
            name = f"orders-{ahead_ms}"
            with LocalBroker(directory, timer_precision_ms=PRECISION_MS, **SIZES) as broker:
                topic, due_ms = broker.create_topic(name, 1), now_ms() + ahead_ms
                results = [topic.send(b"%d" % number, deliver_at_ms=due_ms) for number in range(10)]
                was_in_time = recall_all(broker, results[::2], due_ms)
            if was_in_time and now_ms() < due_ms:
                break
        sleep_until(due_ms)
        with LocalBroker(directory, timer_precision_ms=PRECISION_MS, **SIZES) as broker:
            found = wait_until_all_came(broker, name)
        assert sorted(found) == sorted(result.msg_id for result in results[1::2])

    @pytest.mark.parametrize(("before_ms", "after_ms"), [(60_000, 100), (1000, 10), (100, 60_000)])
    @pytest.mark.parametrize("first", ["recalled", "opened"])
    def test_a_recall_meets_its_message_in_slots_of_another_length(
        self, directory: Path, before_ms: int, after_ms: int, first: str
    ) -> None:
        for ahead_ms in AHEAD_MS:
            name, due_ms = f"orders-{ahead_ms}", now_ms() + ahead_ms
            with LocalBroker(directory, timer_precision_ms=before_ms, **SIZES) as broker:
                sent = broker.create_topic(name, 1).send(b"x", deliver_at_ms=due_ms)
                was_in_time = first == "opened" or recall_all(broker, [sent], due_ms)
            with LocalBroker(directory, timer_precision_ms=after_ms, **SIZES) as broker:
                was_in_time = was_in_time and now_ms() < due_ms
                if first == "opened":
                    was_in_time = recall_all(broker, [sent], due_ms)
                if was_in_time:
                    sleep_until(due_ms)
                    assert wait_until_all_came(broker, name) == []
                    return
        pytest.fail("no recall was in time")

    @pytest.mark.parametrize("due_meanwhile", [False, True])
    def test_a_recall_survives_the_loss_of_the_wheel(self, directory: Path, due_meanwhile: bool) -> None:
        for ahead_ms in AHEAD_MS:
            name = f"orders-{ahead_ms}"
            with LocalBroker(directory, timer_precision_ms=PRECISION_MS, **SIZES) as broker:
                topic, due_ms = broker.create_topic(name, 1), now_ms() + ahead_ms
                results = [topic.send(b"%d" % number, deliver_at_ms=due_ms + number) for number in range(6)]
                was_in_time = recall_all(broker, results[::2], due_ms)
            if was_in_time and now_ms() < due_ms:
                break
        for lost in ("mq/timer", "timerwheel", "config/timercheck"):
            (directory / lost).unlink()
        shutil.rmtree(directory / "timerlog")
        if due_meanwhile:
            sleep_until(due_ms + len(results))
        with LocalBroker(directory, timer_precision_ms=PRECISION_MS, **SIZES) as broker:
            if not due_meanwhile:
                sleep_until(due_ms + len(results))
            found = wait_until_all_came(broker, name)
        assert sorted(found) == sorted(result.msg_id for result in results[1::2])

    def test_a_leader_that_does_not_answer_in_time_raises_a_timeout(
        self, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result = broker.topic("orders").send(b"x", delay_ms=HOUR)
        assert result.recall_handle is not None
        monkeypatch.setattr("mq.broker.delay.recall.TIMEOUT", 0.01)
        monkeypatch.setattr(timer_of(broker), "enqueued", lambda: 0)
        with pytest.raises(mq.RequestTimeout, match="ask again"):
            broker.recall(result.recall_handle)
        monkeypatch.undo()
        assert broker.recall(result.recall_handle) == result.msg_id

    def test_without_the_right_to_write_nothing_is_recalled(self, directory: Path) -> None:
        with LocalBroker(directory, **SIZES) as broker:
            handle = broker.create_topic("orders", 1).send(b"x", delay_ms=HOUR).recall_handle
        assert handle is not None
        with LocalBroker(directory, read_only=True, **SIZES) as broker, pytest.raises(mq.NotPermitted):
            broker.recall(handle)
        with pytest.raises(mq.BrokerClosed):
            broker.recall(handle)
