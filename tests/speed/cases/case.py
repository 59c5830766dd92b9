"""A case: one row of the table, and how it is measured."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tests.speed.goal import Goal
from tests.speed.pairing import Measurement, rate
from tests.speed.plan import Plan
from tests.speed.workspace import fresh, settle

KIB = 1024


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a case works: how much, where its data may lie, where built files are, where progress is
    reported."""

    plan: Plan
    data: Path
    cache: Path
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """`needs` and `tools`: the modules and the programs without which it cannot run."""

    name: str
    title: str
    against: str
    goal: Goal | None
    measure: Callable[[Bench], Measurement]
    needs: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        modules = [module for module in self.needs if importlib.util.find_spec(module) is None]
        return modules + [tool for tool in self.tools if shutil.which(tool) is None]


class Closes(Protocol):
    def close(self) -> None: ...


OpenedT = TypeVar("OpenedT", bound=Closes)


def rate_of(
    bench: Bench,
    open_queue: Callable[[Path, bytes], OpenedT],
    run: Callable[[OpenedT], Callable[[int], int]],
    *,
    body_size: int = KIB,
    per_call: int | None = None,
    prepare: Callable[[OpenedT], object] = lambda _: None,
    seconds: float | None = None,
) -> float:
    """Messages a second of one queue on a fresh directory: one turn.

    `run` gives the call to time. With `per_call`, each of its calls is asked for that many messages.
    """
    with fresh(bench.data) as parent:
        directory = parent / "queue"
        directory.mkdir()
        with closing(open_queue(directory, os.urandom(body_size))) as queue:
            prepare(queue)
            call = run(queue)
            settle(bench.plan.memory_size)
            if per_call is None:
                return rate(call, seconds or bench.plan.seconds)
            return per_call * rate(_calls(call, per_call), seconds or bench.plan.seconds, chunk_count_max=1)


def _calls(call: Callable[[int], int], per_call: int) -> Callable[[int], int]:
    """Counts whole calls; one that does less than asked ends the turn and does not count."""

    def run(count: int) -> int:
        assert count == 1
        return int(call(per_call) == per_call)

    return run
