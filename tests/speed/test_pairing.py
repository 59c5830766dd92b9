"""Turns and rates, with a clock that passes only by what is done."""

from collections.abc import Callable

import pytest

from tests.speed.pairing import CHUNK_COUNT_MAX, CHUNK_SECONDS, Measurement, Turn, alone, paired, rate


class Clock:
    """Time that passes only by what is done: `item_seconds` for each item."""

    def __init__(self, item_seconds: float) -> None:
        self.now = 100.0
        self.item_seconds = item_seconds
        self.chunks: list[int] = []

    def __call__(self) -> float:
        return self.now

    def run(self, count: int) -> int:
        self.chunks.append(count)
        self.now += count * self.item_seconds
        return count


def in_turn(log: list[str], name: str, figures: list[float]) -> Callable[[], float]:
    left = iter(figures)

    def turn() -> float:
        log.append(name)
        return next(left)

    return turn


def test_the_two_sides_alternate_and_the_first_pair_is_dropped() -> None:
    log: list[str] = []
    measured = paired("x/s", in_turn(log, "ours", [99, 6, 8]), in_turn(log, "peer", [1, 2, 4]), rounds=2)
    assert log == ["ours", "peer"] * 3
    assert measured == Measurement("x/s", (6, 8), (2, 4))


def test_a_ratio_is_taken_within_its_pair() -> None:
    # The second half of the run is ten times slower for both; no pair notices.
    assert Measurement("x/s", (30.0, 3.0), (10.0, 1.0)).figures() == (3.0, 3.0)


def test_without_a_peer_the_samples_stand_for_themselves() -> None:
    measured = alone("ms", iter([9.0, 4.0, 5.0]).__next__, rounds=2)
    assert measured.figures() == (4.0, 5.0)


def test_context_is_the_median_of_the_turns_that_count() -> None:
    turns = iter([Turn(1.0, {"max": 1000.0}), *(Turn(1.0, {"max": value}) for value in (1.0, 5.0, 3.0))])
    measured = paired("ms", turns.__next__, lambda: 1.0, rounds=3)
    assert measured.context == {"ours max": 3.0}


def test_each_turn_is_announced() -> None:
    said: list[str] = []
    alone("ms", lambda: 1.0, rounds=2, on_turn=said.append)
    assert said == ["warm-up", "round 1 of 2", "round 2 of 2"]


def test_a_rate_is_items_over_time() -> None:
    clock = Clock(item_seconds=1e-6)
    assert rate(clock.run, 0.5, clock=clock) == pytest.approx(1e6)


def test_chunks_grow_until_reading_the_clock_costs_nothing() -> None:
    clock = Clock(item_seconds=1e-6)
    rate(clock.run, 0.5, clock=clock)
    assert clock.chunks[:4] == [1, 2, 4, 8]
    assert max(clock.chunks) == 2048
    assert max(clock.chunks) * clock.item_seconds >= CHUNK_SECONDS
    quick = Clock(item_seconds=1e-9)
    rate(quick.run, 0.1, clock=quick)
    assert max(quick.chunks) == CHUNK_COUNT_MAX


def test_slow_items_do_not_overrun_the_time_by_more_than_one() -> None:
    clock = Clock(item_seconds=0.3)
    rate(clock.run, 0.5, clock=clock)
    assert clock.chunks == [1, 1]


def test_a_reader_that_runs_dry_ends_the_turn_and_what_it_read_counts() -> None:
    clock = Clock(item_seconds=1e-3)
    left = 10

    def run(count: int) -> int:
        nonlocal left
        done = min(count, left)
        left -= done
        clock.now += done * clock.item_seconds
        return done

    assert rate(run, 60.0, clock=clock) == pytest.approx(1000)
    assert left == 0
