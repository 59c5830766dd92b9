"""The timer wheel against a sorted list: with delays, recalls, rolls and takeovers."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mq.store.timer.check import problems
from tests.support.store.timers import BEGIN_MS, TOPIC, Bench

DELAYS = st.one_of(st.integers(1, 300), st.integers(1, 5_000), st.integers(1, 400_000))
CHANGES = st.one_of(
    st.tuples(st.just("put"), DELAYS),
    st.tuples(st.just("put"), DELAYS),
    st.tuples(st.just("put"), DELAYS),
    st.tuples(st.just("crowd"), DELAYS),
    st.tuples(st.just("pass"), st.integers(0, 3_000)),
    st.tuples(st.just("pass"), st.integers(0, 200_000)),
    st.tuples(st.just("set back"), st.integers(0, 5_000)),
    st.tuples(st.just("recall"), st.integers(0, 30)),
    st.tuples(st.just("work"), st.integers(1, 12)),
    st.tuples(st.just("take over"), st.just(0)),
    st.tuples(st.just("reopen"), st.just(0)),
    st.tuples(st.just("forget"), st.just(0)),
)


@dataclass
class Model:
    """What should come, and when."""

    waiting: dict[str, int] = field(default_factory=dict)
    recalled: set[str] = field(default_factory=set)
    came: set[str] = field(default_factory=set)
    latest_ms: int = 0  # by the clock, which may be set back
    doubt_ms: int = (
        0  # the same when the store was forgotten: what was due by then is asked for once it is due
    )

    def check(self, bench: Bench) -> None:
        """Nothing came early, twice or after its recall; and by the time, one after the other."""
        last = 0
        for message in bench.delivered():
            assert message.msg_id not in self.came, "twice"
            assert message.msg_id not in self.recalled, "recalled"
            due = self.waiting.pop(message.msg_id)
            assert due <= bench.now_ms, "early"
            self.came.add(message.msg_id)
            last = max(last, due)

    def check_all(self, bench: Bench) -> None:
        self.check(bench)
        assert [due for due in self.waiting.values() if due <= bench.now_ms] == [], "late"
        pending = bench.progress.pending()
        assert pending == len(self.waiting) or (bench.now_ms < self.doubt_ms and pending > len(self.waiting))


@settings(max_examples=40)
@example([("put", 1), ("pass", 1), ("set back", 1), ("take over", 0), ("forget", 0), ("put", 1)], 1000, 20, 7)
@given(
    changes=st.lists(CHANGES, max_size=30),
    precision_ms=st.sampled_from([1000, 1000, 100, 10, 1]),
    roll_slots=st.sampled_from([20, 300, 172_800]),
    file_units=st.sampled_from([7, 20_000]),
)
def test_the_wheel_is_a_sorted_list(
    changes: list[tuple[str, int]], precision_ms: int, roll_slots: int, file_units: int
) -> None:
    roll_ms = min(roll_slots * precision_ms, 172_800_000)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "store"
        file_size = file_units * 52 + 16 + 20
        with Bench(root, precision_ms=precision_ms, roll_ms=roll_ms, file_size=file_size) as bench:
            model = Model()
            for what, amount in changes:
                change(bench, model, what, amount)
            bench.now_ms += 500_000
            bench.turn()
            model.check_all(bench)
            assert model.waiting == {}
            number = bench.copies.number(TOPIC, 0, add=True)
            assert number is not None
            assert bench.progress.enqueued() == bench.copies.next_offset(number)
            bench.close()
        assert list(problems(root, file_size=file_size)) == []


def change(bench: Bench, model: Model, what: str, amount: int) -> None:
    if what in {"put", "crowd"}:
        for _ in range(10 if what == "crowd" else 1):
            due_ms = bench.now_ms + amount
            model.waiting[bench.put_aside(due_ms)] = due_ms
    elif what == "pass":
        bench.turn()
        bench.now_ms += amount
    elif what == "set back":
        bench.turn()
        model.latest_ms = max(model.latest_ms, bench.now_ms)
        bench.now_ms -= amount
    elif what == "recall":
        bench.turn()
        model.check_all(bench)
        if model.waiting:
            chosen = sorted(model.waiting)[amount % len(model.waiting)]
            bench.recall(chosen, model.waiting.pop(chosen))
            model.recalled.add(chosen)
    elif what == "work":
        bench.turn(deliveries=amount)
        model.check(bench)
        return
    elif what == "take over":
        bench.take_over()
        return
    else:
        bench.reopen(forget=what == "forget")
        if what == "forget":
            model.doubt_ms = model.latest_ms
        return
    bench.turn()
    model.check_all(bench)


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("wait_ms", [0, 3_000, 12_000, 60_000])
def test_a_recall_rolls_with_its_message(tmp_path: Path, wait_ms: int, forget: bool) -> None:
    with Bench(tmp_path / "store", roll_ms=10_000) as bench:
        due_ms = BEGIN_MS + 95_500
        sent, kept = bench.put_aside(due_ms, b"0"), bench.put_aside(due_ms)
        bench.turn()
        while bench.now_ms < BEGIN_MS + wait_ms:
            bench.now_ms += 1_500
            bench.turn()
        bench.recall(sent, due_ms)
        bench.turn()
        assert bench.progress.pending() == 1
        while bench.now_ms < due_ms + 10_000:
            bench.reopen(forget=forget)
            bench.now_ms += 2_500
            bench.turn()
        assert [message.msg_id for message in bench.delivered()] == [kept]
        assert bench.progress.pending() == 0


def test_a_message_rolls_until_it_is_near(tmp_path: Path) -> None:
    with Bench(tmp_path / "store", roll_ms=10_000) as bench:
        roll_one(bench)


def roll_one(bench: Bench) -> None:
    due_ms = BEGIN_MS + 95_500
    sent = bench.put_aside(due_ms)
    while bench.now_ms < due_ms - 1:
        bench.now_ms = min(max(bench.turn(), bench.now_ms + 1), due_ms - 1)
        bench.turn()
        assert list(bench.delivered()) == []
    bench.now_ms = due_ms
    bench.turn()
    (came,) = bench.delivered()
    assert came.msg_id == sent
    # By ten seconds at a time, and by half of that where little would be left.
    assert int(came.properties["TIMER_ROLL_TIMES"]) in {8, 9, 10}
    assert came.properties["TIMER_OUT_MS"] == str(due_ms // 1000 * 1000)
