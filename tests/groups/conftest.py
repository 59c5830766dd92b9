"""Where the tests of groups get their processes from, and the store that is verified after each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import mq
from tests.support.processes.fail_build import TREE
from tests.support.processes.nursery import Nursery, Process
from tests.support.store.sizes import SIZES


class Troupe:
    """Consumers and others in processes of their own, all in one store."""

    def __init__(self, nursery: Nursery, root: Path) -> None:
        self.root = root
        self.deaths: dict[int, int] = {}
        self._nursery = nursery
        self._traces = root.parent / "traces"
        self._traces.mkdir()
        self._numbers = count(1)
        self._living: list[Process] = []

    def start(self, actor: str, **arguments: Any) -> Process:
        process = self._nursery.start(actor, root=self.root, sizes=SIZES, **arguments)
        self._living.append(process)
        return process

    def pulse(self) -> Path:
        """A process that notes when the machine stands still, from now on: see tests/support/processes."""
        path = self.trace("pulse")
        self._living.append(self._nursery.start("pulse", path=path))
        return path

    def living(self) -> list[int]:
        """The pids of all its processes."""
        return self._nursery.living()

    def trace(self, name: str) -> Path:
        return self._traces / name

    def consumer(self, group: str, actor: str = "consumer", **options: Any) -> Member:
        """Another consumer of a group, with a trace of its own."""
        number = next(self._numbers)
        trace = self.trace(f"{group}-{number}")
        process = self.start(actor, trace=trace, process=number, group=group, **options)
        return Member(self, number, process, trace)

    def traces(self, group: str) -> list[Path]:
        return sorted(self._traces.glob(f"{group}-*"))

    def end(self, process: Process) -> None:
        """Ask it to end, and wait."""
        process.stop()
        assert process.wait(120), f"a process does not end: {self.failures()}"
        self.forget(process)

    def forget(self, process: Process) -> None:
        self._living.remove(process)
        self._nursery.forget(process)

    def end_all(self) -> None:
        for process in list(self._living):
            process.stop()
        for process in list(self._living):
            self.end(process)

    def failures(self) -> str:
        return self._nursery.failures()


class Member:
    """A consumer process."""

    def __init__(self, troupe: Troupe, number: int, process: Process, trace: Path) -> None:
        self.number, self.process, self.trace = number, process, trace
        self._troupe = troupe

    def kill(self) -> int:
        """SIGKILL; the moment at which it was told."""
        self._troupe.deaths[self.number] = time.monotonic_ns()
        told_ns = self.process.kill()
        self._troupe.forget(self.process)
        return told_ns

    def leave(self) -> None:
        """In good order."""
        self._troupe.end(self.process)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    assert mq.__file__ is not None
    report = tmp_path_factory.mktemp("nursery") / "report"
    with Nursery(TREE, report, Path(mq.__file__).parents[1], "tests.groups.actors") as made:
        yield made


@pytest.fixture
def troupe(nursery: Nursery, directory: Path) -> Iterator[Troupe]:
    made = Troupe(nursery, directory)
    yield made
    made.end_all()
    if failures := nursery.failures():
        pytest.fail(failures, pytrace=False)
