"""Slots of another length than before: nothing is wrong with what was delivered out of the ones of then."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.store.timer import timer_log
from mq.store.timer.check import problems
from tests.support.store.timers import BEGIN_MS, Bench

FILE_SIZE = 1 << 20


def deliver_some(bench: Bench) -> None:
    """Of a crowded second, and of one that is longer ahead."""
    for delay in (1_010, 1_020, 1_500, 1_990, 2_005, 2_500, 9_100, 9_900):
        bench.put_aside(bench.now_ms + delay)
    bench.turn()
    bench.now_ms += 5_000
    bench.turn()


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize(
    ("before_ms", "after_ms"), [(1000, 100), (1000, 7), (7, 1000), (60_000, 10), (10, 60_000)]
)
def test_a_store_whose_slots_changed_is_whole(
    tmp_path: Path, before_ms: int, after_ms: int, forget: bool
) -> None:
    with Bench(tmp_path / "store", precision_ms=before_ms, file_size=FILE_SIZE) as bench:
        deliver_some(bench)
        bench.precision_ms = after_ms
        bench.reopen(forget=forget)
        deliver_some(bench)
        assert len(list(bench.delivered())) == 14
        bench.close()
        assert list(problems(bench.root, file_size=FILE_SIZE)) == []
        bench.reopen_closed()


def test_a_link_of_what_is_to_come_into_another_slot_is_told(tmp_path: Path) -> None:
    with Bench(tmp_path / "store", file_size=FILE_SIZE) as bench:
        for delay in (3_100, 4_200, 5_300):
            bench.put_aside(BEGIN_MS + delay)
        bench.turn()
        bench.close()
        last = [unit.position for unit in timer_log.units(bench.root)][-1]
        with timer_log.files(bench.root)[0].open("r+b") as file:
            file.seek(last + 4)
            file.write((last - timer_log.UNIT_SIZE).to_bytes(8, "big"))
        (problem,) = problems(bench.root, file_size=FILE_SIZE)
        assert f"unit at {last}: it leads to one of another slot" in problem
        bench.reopen_closed()
