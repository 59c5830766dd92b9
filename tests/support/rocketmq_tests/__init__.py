"""RocketMQ's own integration tests, its module `test` of 5.3 and 4.9, against servers that run already.

java/pom.xml says where the tests come from, and what of them is compiled. outcomes-5.3.csv and
outcomes-4.9.csv have a line for each test, whether it is compiled or not: how it ends on a served directory,
and why.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

from tests.support.cluster.java_process import JavaProcess, ProcessFailed
from tests.support.cluster.programs import Program, Version, built_program

__all__ = ["Expected", "Outcome", "expected", "in_sources", "run"]

PACKAGE = "org.apache.rocketmq.test."
_TEST = re.compile(r"@Test\b(?:\([^)]*\))?(?:\s*@\w+(?:\([^)]*\))?)*\s*public void (\w+)\(")


@dataclass(frozen=True, slots=True)
class Expected:
    """One line of a table.

    outcome: passes, fails or "not run". run_in: rounds, scale, or nothing for a test that is not run. reason:
    why it does not pass.
    """

    test: str  # class#method, without the package that all have
    outcome: str
    run_in: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a test, how long it took, and what JUnit said if it failed."""

    outcome: str
    seconds: float
    message: str


def expected(version: Version) -> list[Expected]:
    """The table of a version."""
    path = Path(__file__).parent / f"outcomes-{version}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return [Expected(**row) for row in csv.DictReader(file)]


def in_sources(version: Version) -> set[str]:
    """All tests in the sources of a version."""
    [root] = (_program(version).directory / "sources").glob("*/test/src/test/java/org/apache/rocketmq/test")
    return {
        f"{'.'.join(path.relative_to(root).with_suffix('').parts)}#{test}"
        for path in root.rglob("*.java")
        for test in _TEST.findall(path.read_text(encoding="utf-8"))
    }


def run(
    version: Version,
    tests: Iterable[str],
    directory: Path,
    *,
    name_server: str,
    broker: str,
    processes: int,
    options: Iterable[str] = (),
) -> dict[str, Outcome]:
    """Run tests in so many JVMs, whose working directories are made in `directory`. `broker`: its name.

    The tests of a class run one after the other in one process. `options` are for the JVMs.
    """
    by_class = groupby(sorted(tests), lambda test: test.partition("#")[0])
    waiting = deque((name, [test.partition("#")[2] for test in found]) for name, found in by_class)
    servers = (f"-Dmq.tests.name-server={name_server}", f"-Dmq.tests.broker={broker}", *options)

    def work(number: int) -> dict[str, Outcome]:
        outcomes: dict[str, Outcome] = {}
        if not waiting:
            return outcomes
        with _runner(version, directory / f"jvm-{number}", servers) as runner:
            while waiting:
                name, methods = waiting.popleft()
                for method, outcome in _run_class(runner, name, methods):
                    outcomes[f"{name}#{method}"] = outcome
        return outcomes

    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(processes) as pool:
        for found in pool.map(work, range(processes)):
            outcomes.update(found)
    return outcomes


@cache
def _program(version: Version) -> Program:
    return built_program(Path(__file__).parent / "java", f"tests-{version}", version)


@contextmanager
def _runner(version: Version, directory: Path, options: Iterable[str]) -> Iterator[JavaProcess]:
    """A process of java/src/runner."""
    process = JavaProcess(f"rocketmq-tests-{version}", directory)
    process.launch(_program(version), f"tests-{version}", "mq.tests.Runner", [], options, answers=True)
    try:
        yield process
    finally:
        process.kill()


def _run_class(runner: JavaProcess, name: str, methods: list[str]) -> Iterator[tuple[str, Outcome]]:
    requests, answers = runner.pipes
    requests.write(" ".join([PACKAGE + name, *methods]).encode() + b"\n")
    requests.flush()
    while line := answers.readline().decode():
        if line == "\n":
            return
        method, outcome, milliseconds, message = line.removesuffix("\n").split("\t")
        yield method, Outcome(outcome, int(milliseconds) / 1000, message[:500])
    raise ProcessFailed(f"{name} ended its process:\n{runner.said()}")
