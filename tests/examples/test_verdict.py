"""The verdict of the main job is worth something: each way to fail one of its events is noticed."""

from collections.abc import Callable

import pytest

from examples.replay import PRODUCER_COUNT, READERS, Report, Tally, verdict

PATHS = ["a.py", "b.py", "a.py", "b.py", "a.py", "c.md"]


def tally(count: int = 6, added: int = 6) -> Tally:
    made = Tally()
    for number in range(count):
        made.count("m", "code", added if number == 0 else 0, 0)
    return made


def reports() -> dict[str, Report]:
    """A run without fault: one producer sent all, the first reader met five events, the second one."""
    empty = Tally()
    readers = dict(
        zip(READERS, (Report(tally(5), {0: [0, 2, 4], 1: [1, 3]}), Report(empty, {})), strict=True)
    )
    second = Tally()
    second.count("m", "code", 0, 0)
    readers["reader B"] = Report(second, {0: [5], 1: []})
    producers = {f"producer {number + 1}": Report(Tally()) for number in range(PRODUCER_COUNT)}
    producers["producer 1"] = Report(tally())
    return readers | producers


def failing(change: Callable[[dict[str, Report]], None]) -> list[str]:
    run = reports()
    change(run)
    return [statement for statement, holds in verdict(run, tally(), PATHS).items() if not holds]


def test_a_run_without_fault_passes() -> None:
    assert all(verdict(reports(), tally(), PATHS).values())


def lose_one(run: dict[str, Report]) -> None:
    run["reader A"] = Report(tally(5), {0: [0, 2, 4], 1: [1]})


def meet_one_twice(run: dict[str, Report]) -> None:
    run["reader A"] = Report(tally(5), {0: [0, 2, 4, 4], 1: [1, 3]})


def both_meet_one(run: dict[str, Report]) -> None:
    run["reader B"] = Report(run["reader B"].tally, {0: [5, 0]})


def swap_two(run: dict[str, Report]) -> None:
    run["reader A"] = Report(tally(5), {0: [0, 4, 2], 1: [1, 3]})


def count_lines_wrongly(run: dict[str, Report]) -> None:
    run["reader A"] = Report(tally(5, added=7), run["reader A"].met)


def send_one_less(run: dict[str, Report]) -> None:
    run["producer 1"] = Report(tally(5))


@pytest.mark.parametrize(
    ("change", "noticed"),
    [
        (lose_one, "were read"),
        (meet_one_twice, "once"),
        (both_meet_one, "once"),
        (swap_two, "in order"),
        (count_lines_wrongly, "lines added"),
        (send_one_less, "were sent"),
    ],
)
def test_a_fault_is_noticed(change: Callable[[dict[str, Report]], None], noticed: str) -> None:
    assert any(noticed in statement for statement in failing(change))
