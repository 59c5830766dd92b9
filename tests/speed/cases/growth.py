"""What a send and a read cost in a store that holds many messages, against one of 1,000: one queue, 100 B.

The figure is the median of single calls, few enough that the small store stays small. Reads are of messages
at random places.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from tests.speed import ours
from tests.speed.cases.case import Bench, Case
from tests.speed.pairing import Measurement, Turn, paired
from tests.speed.plan import Plan
from tests.speed.spread import percentile
from tests.speed.workspace import fresh, settle

BODY_SIZE = 100
SMALL_COUNT = 1000
CALL_COUNT = 1000
WARM_UP_COUNT = 100

Times = Callable[[ours.Reading, int], list[int]]


def _send(store: ours.Reading, _: int) -> list[int]:
    return store.send_each_timed(CALL_COUNT)


def _read(store: ours.Reading, count: int) -> list[int]:
    return store.read_timed([random.randrange(count) for _ in range(CALL_COUNT)])


@contextmanager
def _filled(bench: Bench, count: int) -> Iterator[ours.Reading]:
    body = os.urandom(BODY_SIZE)
    with fresh(bench.data) as directory, closing(ours.Reading(directory / "queue", body)) as store:
        store.fill(count)
        yield store


def _measure(times: Times, count_of: Callable[[Plan], int]) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        count = count_of(bench.plan)

        def turn(store: ours.Reading, count: int) -> Turn:
            settle(bench.plan.memory_size)
            warm = times(store, count)[WARM_UP_COUNT:]
            return Turn(percentile(warm, 0.5), {"p99 ns": percentile(warm, 0.99)})

        def small() -> Turn:
            with _filled(bench, SMALL_COUNT) as store:
                return turn(store, SMALL_COUNT)

        bench.say(f"filling {count:,} messages")
        with _filled(bench, count) as large:
            return paired("ns", lambda: turn(large, count), small, bench.plan.rounds, bench.say)

    return measure


def _case(name: str, title: str, times: Times, count_of: Callable[[Plan], int]) -> Case:
    return Case(f"growth/{name}", title, "one of 1,000", None, _measure(times, count_of))


CASES = (
    _case("send-100k", "send, p50, to a store of 100,000", _send, lambda plan: plan.grown_count),
    _case("send-10m", "send, p50, to a store of 10 M", _send, lambda plan: plan.backlog_count),
    _case("read-100k", "read one, p50, of a store of 100,000", _read, lambda plan: plan.grown_count),
    _case("read-10m", "read one, p50, of a store of 10 M", _read, lambda plan: plan.backlog_count),
)
