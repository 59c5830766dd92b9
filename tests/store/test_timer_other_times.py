"""Files of the timer of another time than the rest, a store that was closed for long, a clock that was set
back, slots of another length than before: nothing is lost, nothing comes early, and nothing comes twice.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mq.errors import StoreLocked
from mq.store.log.commitlog import segment_files
from mq.store.timer import timer_log
from mq.store.timer.check import problems
from mq.store.timer.checkpoint import read_timer_check, write_timer_check
from tests.support.store.timers import BEGIN_MS, Bench

HOUR, DAY = 3_600_000, 86_400_000


def came(bench: Bench) -> list[str]:
    return [message.msg_id for message in bench.delivered()]


def go_until(bench: Bench, end_ms: int) -> dict[str, int]:
    """Set the clock on from one due time to the next; when each message came."""
    found: dict[str, int] = {}
    while bench.now_ms < end_ms:
        due_ms = bench.turn()
        for unique_id in came(bench):
            assert unique_id not in found, "twice"
            found[unique_id] = bench.now_ms
        bench.now_ms = min(max(due_ms, bench.now_ms + 1), end_ms)
    return found


@pytest.mark.parametrize(
    ("precision_ms", "closed_ms"), [(1000, 8 * DAY), (1000, 60 * DAY), (100, DAY), (1, HOUR)]
)
@pytest.mark.parametrize("forget", [False, True], ids=["beside", "after a reboot"])
def test_a_store_that_was_closed_for_longer_than_the_wheel_goes_round(
    tmp_path: Path, precision_ms: int, closed_ms: int, forget: bool
) -> None:
    with Bench(tmp_path / "store", precision_ms=precision_ms) as bench:
        sent = [bench.put_aside(BEGIN_MS + delay_ms) for delay_ms in (90_000, 70_000, 400_000, 3_000_000)]
        recalled = bench.put_aside(BEGIN_MS + 80_000)
        bench.turn()
        bench.recall(recalled, BEGIN_MS + 80_000)
        bench.turn()
        bench.reopen(forget=forget)
        bench.now_ms += closed_ms
        late = bench.put_aside(bench.now_ms + 5000)
        found = go_until(bench, bench.now_ms + 5001)
        assert sorted(found) == sorted([*sent, late])
        assert max(found[each] for each in sent) < found[late] == BEGIN_MS + closed_ms + 5000
        assert bench.progress.pending() == 0
        bench.close()
    assert list(problems(tmp_path / "store", file_size=1 << 20)) == []


@pytest.mark.parametrize("after_ms", [1, 100, 10_000])
@pytest.mark.parametrize("forget", [False, True], ids=["beside", "after a reboot"])
def test_slots_of_another_length_hold_what_waits(tmp_path: Path, after_ms: int, forget: bool) -> None:
    with Bench(tmp_path / "store") as bench:
        # One further ahead than the wheel goes round by then, and one that is stored once more on the way.
        due = {
            bench.put_aside(due_ms): due_ms for due_ms in (BEGIN_MS + 40 * HOUR + 77, BEGIN_MS + 50 * HOUR)
        }
        bench.turn()
        bench.close()
        bench.precision_ms = after_ms
        bench.reopen_closed(forget=forget)
        assert go_until(bench, BEGIN_MS + 51 * HOUR) == due
        assert bench.progress.pending() == 0


@pytest.mark.parametrize("forget", [False, True], ids=["beside", "after a reboot"])
def test_shorter_slots_deliver_no_message_early(tmp_path: Path, forget: bool) -> None:
    with Bench(tmp_path / "store", precision_ms=10_000) as bench:
        due = {bench.put_aside(BEGIN_MS + 9_000): BEGIN_MS + 9_000}
        bench.turn()
        bench.close()
        bench.precision_ms = 1000
        bench.reopen_closed(forget=forget)
        assert go_until(bench, BEGIN_MS + 12_000) == due


def test_what_came_late_and_was_not_delivered_comes_after_a_power_cut(tmp_path: Path) -> None:
    """It stands in a later slot than its own, which the check that is on disk does not know to be over."""
    with Bench(tmp_path / "store") as bench:
        bench.put_aside(BEGIN_MS + HOUR)
        bench.turn()
        bench.engine.save()
        bench.now_ms += 1500
        bench.turn()
        late = bench.put_aside(BEGIN_MS + 900)
        bench.turn(deliveries=1)  # Into the wheel; where it goes was not known yet.
        assert bench.progress.enqueued() == 2
        assert came(bench) == []
        bench.close(last=False)
        bench.reopen_closed(forget=True)
        bench.turn()
        assert came(bench) == [late]


def test_a_leader_that_lost_the_duties_while_it_flushed_writes_no_check(tmp_path: Path) -> None:
    with Bench(tmp_path / "store") as bench:
        bench.put_aside(BEGIN_MS + HOUR)
        bench.turn()
        bench.engine.save()
        before = read_timer_check(bench.root)
        bench.put_aside(BEGIN_MS + HOUR)
        bench.turn()
        control = bench.store.control
        assert control is not None
        term, control.duties_term = control.duties_term, control.duties_term + 7
        with pytest.raises(StoreLocked):
            bench.engine.save()
        assert read_timer_check(bench.root) == before
        control.duties_term = term
        bench.engine.save()
        assert read_timer_check(bench.root) != before


def test_a_clock_that_was_set_back_delivers_nothing_again_after_a_power_cut(tmp_path: Path) -> None:
    with Bench(tmp_path / "store") as bench:
        sent = bench.put_aside(BEGIN_MS + 3 * HOUR)
        bench.turn()
        bench.engine.save()
        check, log = read_timer_check(bench.root), timer_log.files(bench.root)[0]
        unmarked = log.read_bytes()
        bench.now_ms += 3 * HOUR
        bench.last_store_ms = bench.now_ms
        bench.turn()
        assert came(bench) == [sent]
        bench.close(last=False)
        assert check is not None
        write_timer_check(bench.root, check)
        log.write_bytes(unmarked)  # The mark did not get to the disk, and the copy did.
        bench.now_ms = BEGIN_MS + HOUR
        bench.reopen_closed(forget=True)
        assert go_until(bench, BEGIN_MS + 4 * HOUR) == {}
        assert bench.asked == [sent]


def test_a_last_unit_whose_record_is_damaged_has_the_others_not_put_in_again(tmp_path: Path) -> None:
    with Bench(tmp_path / "store") as bench:
        due = {bench.put_aside(due_ms): due_ms for due_ms in range(BEGIN_MS + HOUR, BEGIN_MS + HOUR + 4)}
        bench.turn()
        bench.close()
        log = timer_log.files(bench.root)[0]
        *_, third, fourth = timer_log.units(bench.root)
        units = bytearray(log.read_bytes())
        units[fourth.position : fourth.position + timer_log.UNIT_SIZE] = bytes(timer_log.UNIT_SIZE)
        log.write_bytes(units)
        (records,) = segment_files(bench.root / "commitlog")
        with records.open("r+b") as file:
            file.seek(third.log_offset + 88)  # its body
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))
        bench.reopen_closed(forget=True)
        del due[sorted(due)[2]]
        assert go_until(bench, BEGIN_MS + 2 * HOUR) == due
        assert bench.progress.pending() == 0


@pytest.mark.parametrize("is_older", [True, False], ids=["older check", "newer check"])
def test_a_check_of_another_time_than_the_log(tmp_path: Path, is_older: bool) -> None:
    """As from two backups."""
    root, other = tmp_path / "store", tmp_path / "other"
    with Bench(root) as bench:
        bench.put_aside(BEGIN_MS + 1000)
        waiting = [bench.put_aside(BEGIN_MS + HOUR + each) for each in range(3)]
        bench.turn()
        bench.now_ms += 1000
        bench.turn()
        assert len(came(bench)) == 1
        bench.close()
        shutil.copytree(root, other)
        bench.reopen_closed()
        late = bench.put_aside(BEGIN_MS + 2 * HOUR)
        bench.now_ms += 3 * HOUR
        bench.turn()
        assert sorted(came(bench)) == [*waiting, late]
        bench.close()
        checks = [directory / "config" / "timercheck" for directory in (root, other)]
        if is_older:
            shutil.copy(checks[1], checks[0])
        else:
            shutil.copy(checks[0], checks[1])
            shutil.rmtree(root)
            other.rename(root)
            bench.seen = 1
        bench.reopen_closed(forget=True)
        bench.turn()
        assert sorted(came(bench)) == ([] if is_older else waiting)


@pytest.mark.parametrize("late_ms", [-1, 5000], ids=["before it was due", "before it was delivered"])
def test_an_older_log_beside_a_newer_check(tmp_path: Path, late_ms: int) -> None:
    """Others were stored meanwhile, and the leader was late."""
    root, older = tmp_path / "store", tmp_path / "older"
    with Bench(root) as bench:
        due_ms = BEGIN_MS + 3000
        waiting = bench.put_aside(due_ms)
        bench.turn()
        bench.now_ms = due_ms + late_ms
        others = bench.put_aside(due_ms + HOUR)
        stored_ms = bench.last_store_ms
        bench.close(last=False)
        shutil.copytree(root / "commitlog", older)
        bench.reopen_closed()
        bench.now_ms = due_ms + 20_000
        bench.turn()
        assert came(bench) == [waiting]
        bench.now_ms += 60_000
        bench.turn()
        bench.close()
        for name in ("commitlog", "consumequeue", "index"):
            shutil.rmtree(root / name)
        older.rename(root / "commitlog")
        bench.seen, bench.last_store_ms = 0, stored_ms
        bench.reopen_closed(forget=True)
        assert go_until(bench, due_ms + 2 * HOUR) == {waiting: due_ms + 80_000, others: due_ms + HOUR}
