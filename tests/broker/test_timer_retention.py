"""What waits longer than messages are kept: it is stored once more on its way, before retention takes it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import mq
from mq.broker.delay.timer import TIMER_TOPIC, roll_window_ms
from mq.store import retention
from mq.store.timer import timer_log
from tests.support.eventually import eventually
from tests.support.insides import timer_of
from tests.support.store.timers import BEGIN_MS, Bench

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
PATIENCE = 60.0
FILLER = b"." * 60_000  # A dozen of these fill a file of the log.


def expire(bench: Bench, kept_ms: int) -> int:
    """What the duties do, at the time of the bench: whatever was written since the last time, was now."""
    for file in (bench.root / "commitlog").iterdir():
        if file.stat().st_mtime_ns > (bench.now_ms + DAY) * 1_000_000:
            os.utime(file, ns=(0, bench.now_ms * 1_000_000))
    due = retention.due(bench.store, bench.now_ms, kept_ms)
    if due is None:
        return 0
    retention.delete(bench.store, due)
    return len(due.files)


@pytest.mark.parametrize("precision_ms", [100, 1000, 60_000])
@pytest.mark.parametrize("kept_ms", [5 * MINUTE, HOUR, 72 * HOUR])
def test_a_message_that_waits_longer_than_messages_are_kept_comes(
    tmp_path: Path, kept_ms: int, precision_ms: int
) -> None:
    """And one that was recalled at the beginning does not, however often both were stored again."""
    options = {"precision_ms": precision_ms, "roll_ms": roll_window_ms(kept_ms)}
    with Bench(tmp_path / "store", **options) as bench:
        due_ms = BEGIN_MS + 4 * kept_ms + 12_345
        sent, recalled = bench.put_aside(due_ms), bench.put_aside(due_ms)
        bench.recall(recalled, due_ms)
        bench.turn()
        expired = 0
        while bench.now_ms < due_ms - 1:
            assert list(bench.delivered()) == []
            bench.now_ms = min(bench.now_ms + kept_ms // 10, due_ms - 1)
            bench.turn()
            for _ in range(12):
                bench.append(FILLER, TIMER_OUT_MS=0, TIMER_DELIVER_MS=1, REAL_TOPIC="noise", REAL_QID=0)
            bench.turn()
            expired += expire(bench, kept_ms)
        bench.now_ms = due_ms
        bench.turn()
        assert [message.msg_id for message in bench.delivered()] == [sent]
        assert expired > 10, "nothing was deleted meanwhile"


def test_with_the_usual_retention_it_is_rocketmqs_two_days() -> None:
    assert roll_window_ms(72 * HOUR) == 2 * DAY


@pytest.mark.parametrize("kept_ms", [2 * MINUTE, HOUR, 24 * HOUR, 72 * HOUR, 365 * DAY])
def test_a_third_of_the_time_is_left_to_store_it_again(kept_ms: int) -> None:
    assert 3 * roll_window_ms(kept_ms) <= max(2 * kept_ms, 3 * MINUTE)


@pytest.mark.parametrize(
    ("hours", "roll_s"), [(0, 60), (1 / 60, 60), (1, 2400), (72, 172_800), (8760, 172_800)]
)
def test_a_broker_goes_by_its_own_retention(directory: Path, hours: float, roll_s: int) -> None:
    with mq.open(directory, retention_hours=hours, timer_max_delay_ms=30 * DAY) as broker:
        before_ms = time.time_ns() // 1_000_000
        broker.create_topic("orders", 1).send(b"x", delay_ms=29 * DAY)
        deadline = time.monotonic() + PATIENCE
        while timer_of(broker).enqueued() < 1:
            assert time.monotonic() < deadline
            timer_of(broker).progress.notify()
            timer_of(broker).progress.wait_enqueued(0, 0.1)
        after_ms = time.time_ns() // 1_000_000
        (unit,) = timer_log.units(directory)
        assert unit.magic & timer_log.ROLL
        assert before_ms - SECOND <= unit.time_ms - roll_s * SECOND <= after_ms


def test_a_leader_goes_by_another_retention_once_it_is_changed(directory: Path) -> None:
    with mq.open(directory, retention_hours=72) as broker:
        topic = broker.create_topic("orders", 1)

        def next_unit() -> timer_log.Unit:
            before = timer_of(broker).enqueued()
            topic.send(b"x", delay_ms=2 * DAY + HOUR)
            eventually(lambda: timer_of(broker).enqueued() > before, timer_of(broker).enqueued)
            return list(timer_log.units(directory))[-1]

        first = next_unit()
        broker.retention.change(hours=1)
        eventually(lambda: next_unit().time_ms < first.time_ms - 12 * HOUR, lambda: first)


@pytest.mark.parametrize("precision_ms", [1000, 7_000, 20_000, 30_000, 60_000])
def test_the_shortest_window_stores_no_message_again_and_again(tmp_path: Path, precision_ms: int) -> None:
    """Also where a slot is as long as that."""
    delays = (59_999, 60_001, 61_000, 99_999, 120_000, 120_001, 150_000, 179_999, 180_000, 290_000)
    with Bench(tmp_path / "store", precision_ms=precision_ms, roll_ms=roll_window_ms(0)) as bench:
        sent = [bench.put_aside(BEGIN_MS + delay) for delay in delays]
        while bench.now_ms < BEGIN_MS + delays[-1]:
            bench.turn()
            bench.now_ms += 5_000
        bench.turn()
        assert [message.msg_id for message in bench.delivered()] == sent
        number = bench.copies.number(TIMER_TOPIC, 0, add=False)
        assert number is not None
        assert bench.copies.next_offset(number) <= len(sent) * 5
