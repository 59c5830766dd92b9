"""Several processes that send into one store, async flush, 1 KiB, against one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from tests.speed import ours
from tests.speed.cases.case import KIB, Bench, Case
from tests.speed.goal import at_least
from tests.speed.pairing import Measurement, paired
from tests.speed.plan import Plan
from tests.speed.processes import total_rate
from tests.speed.workspace import fresh, settle

CHUNK_COUNT = 64


def _processes(count_of: Callable[[Plan], int]) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        def turn(processes: int) -> float:
            with fresh(bench.data) as directory:
                settle(bench.plan.memory_size)
                return total_rate(
                    lambda: ours.Sending(directory / "queue", os.urandom(KIB)),
                    processes=processes,
                    threads=1,
                    seconds=bench.plan.seconds,
                    chunk_count=CHUNK_COUNT,
                )

        many = partial(turn, count_of(bench.plan))
        return paired("msg/s", many, partial(turn, 1), bench.plan.rounds, bench.say)

    return measure


CASES = (
    Case(
        "writers/4",
        "4 processes sending",
        "one process",
        at_least(1.2),
        _processes(lambda p: p.writer_counts[0]),
    ),
    Case(
        "writers/32",
        "32 processes sending",
        "one process",
        at_least(1.2),
        _processes(lambda p: p.writer_counts[1]),
    ),
)
