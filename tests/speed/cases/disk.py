"""Disk a message: allocated blocks of commit log, consume queue and index, over the bytes of the body."""

from __future__ import annotations

import os
from collections.abc import Callable

from tests.speed import ours
from tests.speed.cases.case import KIB, Bench, Case
from tests.speed.goal import Goal, at_most
from tests.speed.pairing import Measurement
from tests.speed.plan import Plan
from tests.speed.workspace import allocated_size, fresh, settle

PARTS = ("commitlog", "consumequeue", "index")


def _measure(body_size: int, count_of: Callable[[Plan], int], plain: bool) -> Callable[[Bench], Measurement]:
    """One store; what it occupies does not vary from run to run."""

    def measure(bench: Bench) -> Measurement:
        count = count_of(bench.plan) // ours.FILL_COUNT * ours.FILL_COUNT
        with fresh(bench.data) as directory:
            store = directory / "queue"
            bench.say(f"filling {count:,} messages")
            ours.make_store(store, os.urandom(body_size), count, plain=plain)
            settle(bench.plan.memory_size)
            parts = {part: allocated_size(store / part) / count for part in PARTS}
        context = {f"{part} B": size for part, size in parts.items()}
        return Measurement("B/msg", (sum(parts.values()),), (float(body_size),), context)

    return measure


def _case(
    name: str, body_size: int, count_of: Callable[[Plan], int], goal: Goal | None, plain: bool = True
) -> Case:
    extras = "" if plain else ", with tag and key"
    return Case(
        f"disk/{name}",
        f"disk a message of {body_size} B{extras}",
        "its payload",
        goal,
        _measure(body_size, count_of, plain),
    )


CASES = (
    _case("1k", KIB, lambda plan: plan.stored_count, at_most(1.15)),
    _case("100", 100, lambda plan: plan.backlog_count, at_most(2.5)),
    _case("1k-tag-key", KIB, lambda plan: plan.stored_count, None, plain=False),
    _case("100-tag-key", 100, lambda plan: plan.stored_count, None, plain=False),
)
