"""Where the crash tests get their processes from, and the one check that each ends with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.power.recorder import build
from tests.support.processes.fail_build import TREE, fail_build
from tests.support.processes.nursery import Nursery
from tests.support.processes.pauses import longest


@dataclass
class Answer:
    wrong: list[str]
    stored: int
    promised: int
    repairs: int
    recovered: bool


@dataclass
class Crew:
    """A nursery with the pulse of the machine."""

    nursery: Nursery
    pulse: Path

    def inspect(
        self, root: Path, traces: Sequence[Path], readers: Sequence[Path] = (), pauses: Path | None = None
    ) -> Answer:
        """What a process that opens the store now finds. pauses: of one that is watched meanwhile."""
        path = root.parent / "answer.json"
        path.unlink(missing_ok=True)
        process = self.nursery.start(
            "inspect", root=root, traces=list(traces), readers=list(readers), answer=path, pauses=pauses
        )
        assert process.wait(120), "an inspection hangs"
        self.nursery.forget(process)
        assert path.exists(), self.nursery.failures()
        return Answer(**json.loads(path.read_text()))

    def longest_pause(self, watched: Sequence[Path]) -> float:
        return longest(list(watched), self.pulse)


def _no_failures(nursery: Nursery) -> None:
    if failures := nursery.failures():
        pytest.fail(failures, pytrace=False)


def _hire(
    directory: Path, python_path: Path, *, has_pulse: bool = True, **environment: str
) -> Iterator[Crew]:
    with Nursery(TREE, directory / "report", python_path, "tests.crash.actors", **environment) as nursery:
        if has_pulse:
            nursery.start("pulse", path=directory / "pulse")
        yield Crew(nursery, directory / "pulse")
    _no_failures(nursery)


@pytest.fixture(scope="module")
def hired_to_fail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    yield from _hire(tmp_path_factory.mktemp("crew"), fail_build())


@pytest.fixture(scope="module")
def hired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    import mq

    assert mq.__file__ is not None
    yield from _hire(tmp_path_factory.mktemp("crew"), Path(mq.__file__).parents[1])


def hire_with_recorder(directory: Path) -> Iterator[Crew]:
    # With fail points batches of a few messages go through the file, as large ones do without.
    # How long anything takes is none of a power cut's questions.
    yield from _hire(directory, fail_build(), has_pulse=False, LD_PRELOAD=str(build(directory)))


@pytest.fixture(scope="module")
def hired_with_recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    yield from hire_with_recorder(tmp_path_factory.mktemp("crew"))


@pytest.fixture
def failing_crew(hired_to_fail: Crew) -> Iterator[Crew]:
    """Processes of the build with fail points."""
    yield hired_to_fail
    _no_failures(hired_to_fail.nursery)


@pytest.fixture
def recorded_crew(hired_with_recorder: Crew) -> Iterator[Crew]:
    """Processes that can be recorded, see recorder.py."""
    yield hired_with_recorder
    _no_failures(hired_with_recorder.nursery)


@pytest.fixture
def crew(hired: Crew) -> Iterator[Crew]:
    """Processes of the mq that is installed."""
    yield hired
    _no_failures(hired.nursery)
