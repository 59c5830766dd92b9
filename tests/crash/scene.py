"""One store, a process that survives, and processes that die beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash.conftest import Crew
from tests.support.processes.fail_build import fail_points
from tests.support.processes.pauses import PROMISE
from tests.support.processes.trace import acks
from tests.support.store.sizes import SMALL

__all__ = ["Scene", "Way"]

POINT = fail_points()


@dataclass(frozen=True)
class Way:
    """How the victim sends, and into files of what sizes."""

    count: int = 1
    size: int = 200
    queue_file_units: int = 50
    flush: Any = "async"
    query: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        return {**SMALL, "queue_file_units": self.queue_file_units}


class Scene:
    """One store with a survivor inside."""

    def __init__(self, crew: Crew, directory: Path, way: Way) -> None:
        self.crew = crew
        self.way = way
        self.root = directory / "store"
        self.pauses = directory / "pauses"
        self.traces = [directory / "survivor"]
        self.survivor = crew.nursery.start(
            "survivor",
            root=self.root,
            trace=self.traces[0],
            run=1,
            sizes=way.sizes,
            flush=way.flush,
            pauses=self.pauses,
            query=way.query,
        )
        self.let_live(3)

    def let_live(self, count: int) -> None:
        """Wait until the survivor has sent so many messages more."""
        wanted = len(acks(self.traces[0])) + count
        until = time.monotonic() + 120
        while len(acks(self.traces[0])) < wanted:
            assert time.monotonic() < until, f"the survivor hangs; {self.crew.nursery.failures()}"
            assert not self.survivor.wait(0.002), f"the survivor died: {self.crew.nursery.failures()}"

    @contextmanager
    def survivor_paused(self) -> Iterator[None]:
        """The others have the store to themselves; the paused one holds no lock."""
        pause, paused = (self.traces[0].with_suffix(suffix) for suffix in (".pause", ".paused"))
        pause.touch()
        until = time.monotonic() + 120
        while not paused.exists():
            assert time.monotonic() < until, "the survivor does not pause"
            time.sleep(0.002)
        yield
        pause.unlink()

    def die_at(self, point: str, passage: int) -> None:
        """Have a second process die there."""
        self.traces.append(self.traces[0].with_name(f"victim{len(self.traces)}"))
        victim = self.crew.nursery.start(
            "victim",
            environment={"MQ_FAIL": f"{POINT[point]}:{passage}:kill"},
            root=self.root,
            trace=self.traces[-1],
            run=len(self.traces),
            sizes=self.way.sizes,
            flush=self.way.flush,
            pauses=self.pauses,
            count=self.way.count,
            size=self.way.size,
            query=self.way.query,
        )
        assert victim.wait(120), f"{point} was not passed {passage} times"
        self.crew.nursery.forget(victim)

    def check(self) -> int:
        """Look at the store: beside the survivor, after all have died, and closed.

        Returns how many repairs there were, before the survivor's own death may have added one.
        """
        repairs = 0
        for state in ("beside", "dead", "closed"):
            if state == "dead":
                self.survivor.kill()
            answer = self.crew.inspect(self.root, self.traces, pauses=self.pauses)
            if state == "beside":
                repairs = answer.repairs
            assert answer.wrong == [], state
            assert not answer.recovered, f"{state}: a recovery where there was nothing to recover"
        pause = self.crew.longest_pause([self.pauses])
        assert pause <= PROMISE, f"the survivor was held up for {pause * 1000:.0f} ms"
        return repairs
