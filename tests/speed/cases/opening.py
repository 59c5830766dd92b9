"""Opening a store: closed cleanly, and after kill -9 of the only process, in the same boot. 100 B bodies.

Each turn opens in a process of its own; importing mq is not part of it, closing neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from tests.speed import ours
from tests.speed.cases.case import Bench, Case
from tests.speed.goal import Goal, at_most
from tests.speed.pairing import Measurement, Turn, alone
from tests.speed.plan import Plan
from tests.speed.processes import in_child, killed_while
from tests.speed.workspace import fresh, settle

BODY_SIZE = 100
KILL_AFTER_SECONDS = 0.05


def _measure(count_of: Callable[[Plan], int], killed: bool) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        count = count_of(bench.plan)
        body = os.urandom(BODY_SIZE)
        with fresh(bench.data) as directory:
            store = directory / "queue"
            bench.say(f"filling {count:,} messages")
            in_child(lambda: ours.make_store(store, body, count))

            def turn() -> Turn:
                if killed:
                    killed_while(partial(ours.send_until_killed, store, body), KILL_AFTER_SECONDS)
                else:
                    settle(bench.plan.memory_size)
                opening, reading = in_child(lambda: ours.open_times(store))
                return Turn(opening * 1e3, {"first read ms": reading * 1e3})

            return alone("ms", turn, bench.plan.rounds, bench.say)

    return measure


def _case(name: str, title: str, goal: Goal, count_of: Callable[[Plan], int], killed: bool) -> Case:
    return Case(f"open/{name}", title, "fixed limit", goal, _measure(count_of, killed))


CASES = (
    _case(
        "clean", "open a clean store of 1 M", at_most(5, "ms"), lambda plan: plan.stored_count, killed=False
    ),
    _case(
        "killed-1m", "open 1 M after kill -9", at_most(100, "ms"), lambda plan: plan.stored_count, killed=True
    ),
    _case(
        "killed-10m",
        "open 10 M after kill -9",
        at_most(100, "ms"),
        lambda plan: plan.backlog_count,
        killed=True,
    ),
)
