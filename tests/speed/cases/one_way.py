"""From send() in one process to the listener's entry in another, 1 KiB, a message each millisecond.

So the receiver sleeps when a message comes: waking it is part of the figure.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from tests.speed import consuming
from tests.speed.cases.case import KIB, Bench, Case
from tests.speed.goal import Goal, at_most
from tests.speed.pairing import Measurement, Turn, paired
from tests.speed.peers import process_queue, rocketmq
from tests.speed.processes import together
from tests.speed.spread import percentile
from tests.speed.workspace import fresh, settle

PAUSE_SECONDS = 0.001
WARM_UP_COUNT = 200
ROCKETMQ_COUNT_MAX = 2000


class OneWay(Protocol):
    """`ready` is called three times by each: when it is there, when sending may begin, and at the end."""

    def send(self, count: int, pause: float, ready: Callable[[], object]) -> None: ...
    def listen(self, count: int, ready: Callable[[], object]) -> list[int]: ...


def _turn(times: list[int], fraction: float) -> Turn:
    warm = [time / 1e3 for time in times[min(WARM_UP_COUNT, len(times) // 10) :]]
    return Turn(
        percentile(warm, fraction),
        {
            "p50 µs": percentile(warm, 0.5),
            "p90 µs": percentile(warm, 0.9),
            "p99 µs": percentile(warm, 0.99),
            "max µs": max(warm),
        },
    )


def _between(bench: Bench, open_pair: Callable[[Path, bytes], OneWay], fraction: float) -> Turn:
    count = bench.plan.round_trip_count // 4
    with fresh(bench.data) as parent:
        directory = parent / "pair"
        directory.mkdir()
        settle(bench.plan.memory_size)
        pair = open_pair(directory, os.urandom(KIB))

        def send(ready: Callable[[], object]) -> list[int]:
            pair.send(count, PAUSE_SECONDS, ready)
            return []

        times, _ = together([lambda ready: pair.listen(count, ready), send])
    return _turn(times, fraction)


def _against_queue(fraction: float) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        return paired(
            "µs",
            lambda: _between(bench, consuming.OneWay, fraction),
            lambda: _between(bench, process_queue.ONE_WAY.open, fraction),
            bench.plan.rounds,
            bench.say,
        )

    return measure


def _against_rocketmq(bench: Bench) -> Measurement:
    with fresh(bench.data) as directory, rocketmq.running(bench.cache, directory) as peer:

        def theirs() -> Turn:
            settle(bench.plan.memory_size)
            count = min(bench.plan.round_trip_count, ROCKETMQ_COUNT_MAX)
            return _turn(peer.latencies(count, KIB, PAUSE_SECONDS), 0.5)

        return paired(
            "µs", partial(_between, bench, consuming.OneWay, 0.5), theirs, bench.plan.rounds, bench.say
        )


def _case(name: str, fraction: float, goal: Goal) -> Case:
    return Case(
        f"one-way/{name}",
        f"send to listener in another process, {name}",
        str(process_queue.ONE_WAY),
        goal,
        _against_queue(fraction),
    )


CASES = (
    _case("p50", 0.5, at_most(1)),
    _case("p99", 0.99, at_most(1.5)),
    Case(
        "one-way/rocketmq",
        "send to listener in another process, p50",
        "RocketMQ 5.3.3 and its Java push consumer",
        at_most(round(1 / 15, 4)),
        _against_rocketmq,
        tools=rocketmq.TOOLS,
    ),
)
