"""Runs cases, each in a process of its own, and makes a row of whatever comes of it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from tests.speed.cases import chosen
from tests.speed.cases.case import Bench, Case
from tests.speed.pairing import Measurement
from tests.speed.plan import Plan
from tests.speed.progress import say
from tests.speed.spread import median
from tests.speed.table import Row, quantity
from tests.speed.workspace import ROOT, fresh

CASE_SECONDS_MAX = 900.0

_spawn = multiprocessing.get_context("spawn")


def run(cases: list[Case], plan: Plan) -> Iterator[Row]:
    for number, case in enumerate(cases, 1):
        row = _row(case, plan, f"{number}/{len(cases)} {case.name}")
        say(f"{number}/{len(cases)} {case.name}: {_outcome(row)}")
        yield row


def _row(case: Case, plan: Plan, label: str) -> Row:
    def row(measurement: Measurement | None, problem: str = "") -> Row:
        return Row(case.name, case.title, case.against, case.goal, measurement, problem)

    if missing := case.missing():
        return row(None, f"{', '.join(missing)} not installed")
    with fresh(ROOT, "data-") as data:
        receiving, sending = _spawn.Pipe(duplex=False)
        child = _spawn.Process(target=_measure, args=(case.name, plan, data, label, sending))
        child.start()
        sending.close()
        try:
            if not receiving.poll(CASE_SECONDS_MAX):
                return row(None, f"took longer than {CASE_SECONDS_MAX:g} s")
            result: Measurement | str = receiving.recv()
        except EOFError:
            child.join()
            return row(None, f"the process died, exit code {child.exitcode}")
        finally:
            _end(child.pid)
            child.join()
    return row(None, result) if isinstance(result, str) else row(result)


def _measure(name: str, plan: Plan, data: Path, label: str, sending: Connection) -> None:
    """The child: leads a process group, so that what it started can be ended with it."""
    os.setpgid(0, 0)
    (case,) = [case for case in chosen([name]) if case.name == name]
    bench = Bench(plan, data, ROOT, lambda text: say(f"{label}: {text}"))
    result: Measurement | str
    try:
        result = case.measure(bench)
    except Exception as error:  # noqa: BLE001 - it becomes the row's problem
        traceback.print_exc()
        result = f"{type(error).__name__}: {error}"
    sending.send(result)


def _end(leader: int | None) -> None:
    if leader is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _outcome(row: Row) -> str:
    if row.measurement is None:
        return row.problem
    verdict = {True: "met", False: "missed", None: "no goal"}[row.met()]
    return f"{quantity(median(row.measurement.figures()), row.figure_unit())} ({verdict})"
