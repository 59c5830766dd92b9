"""Does reading slow down with the backlog: 10 M messages waiting against 1,000, bodies of 100 B.

Deep: read on through the large store, turn after turn. Shallow: send 1,000, read these, and again; the
time of the sends does not count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing

from tests.speed import ours
from tests.speed.cases.case import Bench, Case
from tests.speed.goal import at_least
from tests.speed.pairing import Measurement, paired
from tests.speed.workspace import fresh, settle

BODY_SIZE = 100
SHALLOW_COUNT = 1000
PULL_COUNT = 32
"""The default of a consumer, and of queue.read."""


def _measure(take: Callable[[ours.Reading, int], int]) -> Callable[[Bench], Measurement]:
    """`take(queue, count)` reads up to `count` messages."""

    def measure(bench: Bench) -> Measurement:
        body = os.urandom(BODY_SIZE)
        turn_count = min(bench.plan.read_count, bench.plan.backlog_count // (2 * (bench.plan.rounds + 1)))
        with fresh(bench.data) as directory:
            for name in ("deep", "shallow"):
                (directory / name).mkdir()
            with (
                closing(ours.Reading(directory / "deep", body)) as deep,
                closing(ours.Reading(directory / "shallow", body)) as shallow,
            ):
                bench.say(f"filling {bench.plan.backlog_count:,} messages")
                deep.fill(bench.plan.backlog_count)
                settle(bench.plan.memory_size)

                def deep_rate() -> float:
                    begin = time.perf_counter()
                    done = take(deep, turn_count)
                    assert done == turn_count
                    return done / (time.perf_counter() - begin)

                def shallow_rate() -> float:
                    seconds, done = 0.0, 0
                    while done < turn_count:
                        shallow.fill(SHALLOW_COUNT)
                        begin = time.perf_counter()
                        done += take(shallow, SHALLOW_COUNT)
                        seconds += time.perf_counter() - begin
                    return done / seconds

                return paired("msg/s", deep_rate, shallow_rate, bench.plan.rounds, bench.say)

    return measure


def _by_pulls(queue: ours.Reading, count: int) -> int:
    done = 0
    while done < count:
        done += queue.read_batch(min(PULL_COUNT, count - done))
    return done


CASES = (
    Case(
        "backlog/pull",
        "read by 32 with 10 M waiting",
        "with 1,000 waiting",
        at_least(0.95),
        _measure(_by_pulls),
    ),
    Case(
        "backlog/each",
        "read one by one with 10 M waiting",
        "with 1,000 waiting",
        at_least(0.95),
        _measure(lambda queue, count: queue.read_each(count)),
    ),
)
