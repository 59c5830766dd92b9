"""A recall, or its message, that is still on its way in the wheel when the message is due: the leader was
away meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.store.timers import BEGIN_MS, Bench


class Late(NamedTuple):
    """In ms from the begin: when message and recall are due, when the one that is in its last slot by then
    is rolled, and when another message is due, which comes first, so that it is known where to."""

    due_ms: int
    rolled_ms: int
    first_ms: int


# The message is in its last slot, its recall one roll behind, and both are overdue at once.
RECALL = Late(15_500, 10_500, 10_900)
# The other way round: the recall's slot is over when its message comes there.
MESSAGE = Late(14_500, 6_500, 7_900)


@pytest.mark.parametrize("crowd", [0, 1500])
@pytest.mark.parametrize("way", ["away", "closed", "forgotten"])
@pytest.mark.parametrize("late", [RECALL, MESSAGE], ids=["recall", "message"])
def test_a_recall_counts_though_one_of_the_two_rolls_late(
    tmp_path: Path, late: Late, way: str, crowd: int
) -> None:
    with Bench(tmp_path / "store", roll_ms=10_000) as bench:
        due_ms = BEGIN_MS + late.due_ms
        recalled, kept = bench.put_aside(due_ms), bench.put_aside(due_ms)
        bench.turn()
        bench.now_ms = BEGIN_MS + 1_000
        others = [bench.put_aside(due_ms + 1_000) for _ in range(crowd)]
        bench.recall(recalled, due_ms)
        bench.turn()
        bench.now_ms = BEGIN_MS + late.rolled_ms
        bench.turn()
        first = bench.put_aside(BEGIN_MS + late.first_ms)
        bench.turn()
        bench.now_ms = due_ms + 5_000
        if way != "away":
            bench.reopen(forget=way == "forgotten")
        bench.turn()
        assert [message.msg_id for message in bench.delivered()] == [first, kept, *others]
        assert bench.progress.pending() == 0


@pytest.mark.parametrize("closed_days", [3, 12, 60])
def test_what_rolls_late_comes_after_any_time(tmp_path: Path, closed_days: int) -> None:
    """The wheel goes round once or more, and what was rolled, and recalled, was due long ago."""
    day = 86_400_000
    with Bench(tmp_path / "store") as bench:
        dues = [BEGIN_MS + int(days * day) for days in (2.1, 2.5, 2.9, 3.5, 6.9, 7.5, 10.0)]
        recalled = [bench.put_aside(due_ms) for due_ms in dues]
        kept = [bench.put_aside(due_ms) for due_ms in dues]
        bench.turn()
        bench.now_ms += 100_000
        for unique_id, due_ms in zip(recalled, dues, strict=True):
            bench.recall(unique_id, due_ms)
        bench.turn()
        bench.reopen()
        bench.now_ms += closed_days * day
        came: list[str] = []
        while bench.now_ms < dues[-1] + day:
            bench.turn()
            came += [message.msg_id for message in bench.delivered()]
            bench.now_ms += day // 4
        bench.turn()
        assert sorted(came + [message.msg_id for message in bench.delivered()]) == kept
        assert bench.progress.pending() == 0


def test_a_rolled_timer_is_not_late_when_the_clock_was_set_back(tmp_path: Path) -> None:
    """The slot that is read is ahead of the clock: the message is delivered by the clock all the same."""
    with Bench(tmp_path / "store", roll_ms=10_000) as bench:
        bench.turn()
        bench.now_ms -= 60_000
        due_ms = bench.now_ms + 15_500
        sent = bench.put_aside(due_ms)
        while bench.now_ms < due_ms:
            assert list(bench.delivered()) == []
            bench.now_ms = min(max(bench.turn(), bench.now_ms + 1), due_ms)
        bench.turn()
        assert [message.msg_id for message in bench.delivered()] == [sent]
