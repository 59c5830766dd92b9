"""Opening a store: closed cleanly, and after kill -9 of the only process, in the same boot. 100 B bodies.

Each turn opens in a process of its own; importing mq is not part of it, closing neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.speed import ours
from tests.speed.cases.case import Bench, Case
from tests.speed.goal import Goal, at_most
from tests.speed.pairing import Measurement, Turn, alone
from tests.speed.plan import Plan
from tests.speed.processes import in_child, killed_while
from tests.speed.workspace import fresh, settle

BODY_SIZE = 100
Filling = Callable[[Path, bytes, Plan], None]
KILL_AFTER_SECONDS = 0.05


def _messages(count_of: Callable[[Plan], int]) -> Filling:
    """One queue."""
    return lambda store, body, plan: ours.make_store(store, body, count_of(plan))


def _topics(store: Path, body: bytes, plan: Plan) -> None:
    """As many topics as a large store has."""
    ours.make_topics(store, body, plan.topic_counts[-1])


def _measure(fill: Filling, killed: bool) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        body = os.urandom(BODY_SIZE)
        with fresh(bench.data) as directory:
            store = directory / "queue"
            bench.say("filling")
            in_child(lambda: fill(store, body, bench.plan))

            def turn() -> Turn:
                if killed:
                    killed_while(partial(ours.send_until_killed, store, body), KILL_AFTER_SECONDS)
                else:
                    settle(bench.plan.memory_size)
                opening, reading = in_child(lambda: ours.open_times(store))
                return Turn(opening * 1e3, {"first read ms": reading * 1e3})

            return alone("ms", turn, bench.plan.rounds, bench.say)

    return measure


def _case(name: str, title: str, goal: Goal, fill: Filling, *, killed: bool) -> Case:
    return Case(f"open/{name}", title, "fixed limit", goal, _measure(fill, killed))


_1M = _messages(lambda plan: plan.stored_count)
_10M = _messages(lambda plan: plan.backlog_count)

CASES = (
    _case("clean", "open a clean store of 1 M", at_most(5, "ms"), _1M, killed=False),
    _case("killed-1m", "open 1 M after kill -9", at_most(100, "ms"), _1M, killed=True),
    _case("killed-10m", "open 10 M after kill -9", at_most(100, "ms"), _10M, killed=True),
    _case("killed-topics", "open 10,000 topics after kill -9", at_most(200, "ms"), _topics, killed=True),
)
