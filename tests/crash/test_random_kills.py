"""Any of four writers and two readers is killed every few milliseconds, and another started in its place.

MQ_CRASH_KILLS says how many deaths there are in all (1,000 if it says nothing), MQ_CRASH_SEED repeats a
choice of victims. They are spread over rounds, each with a store of its own; a round ends with all
processes killed at once, and the next one to open must attach to what they left, without a scan.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from tests.crash.conftest import Crew
from tests.support.processes.nursery import Process
from tests.support.processes.pauses import PROMISE
from tests.support.store.sizes import SMALL

pytestmark = [pytest.mark.crash, pytest.mark.rounds]

KILLS = int(os.environ.get("MQ_CRASH_KILLS", "1000"))
SEED = int(os.environ.get("MQ_CRASH_SEED", str(time.time_ns() % 1_000_000)))
ROUND = 100
INTERVAL = 0.006
# A call may meet several deaths one after the other, and a disk that others use. So the median is what was
# promised, and no round takes many times as long: a process that waits for a dead one waits for seconds.
BUSY_MARGIN = 4
FLUSH = ("async", "async", "sync", "async")


class Round:
    """One store and all processes that work on it."""

    def __init__(self, crew: Crew, directory: Path, chance: random.Random) -> None:
        self.crew = crew
        self.root = directory / "store"
        self.directory = directory
        self.chance = chance
        self.runs = 0
        self.writers = [directory / f"writer{number}" for number in range(len(FLUSH))]
        self.readers = [directory / f"reader{number}" for number in range(2)]
        self.pauses: list[Path] = []
        self.places: list[Callable[[], Process]] = [
            *(lambda n=number: self._writer(n) for number in range(len(self.writers))),
            *(lambda n=number: self._reader(n) for number in range(len(self.readers))),
        ]
        self.processes = [start() for start in self.places]

    def _watched(self) -> Path:
        self.runs += 1
        self.pauses.append(self.directory / f"pauses{self.runs}")
        return self.pauses[-1]

    def _writer(self, number: int) -> Process:
        pauses = self._watched()
        return self.crew.nursery.start(
            "writer",
            root=self.root,
            trace=self.writers[number],
            run=self.runs,
            sizes=SMALL,
            flush=FLUSH[number],
            pauses=pauses,
            seed=self.chance.getrandbits(32),
            idle=0.002,
        )

    def _reader(self, number: int) -> Process:
        return self.crew.nursery.start(
            "reader", root=self.root, trace=self.readers[number], sizes=SMALL, pauses=self._watched()
        )

    def kill_one(self) -> None:
        place = self.chance.randrange(len(self.places))
        self.processes[place].kill()
        self.crew.nursery.forget(self.processes[place])
        self.processes[place] = self.places[place]()

    def kill_all(self) -> None:
        self.chance.shuffle(self.processes)
        for process in self.processes:
            process.kill()
            self.crew.nursery.forget(process)

    def check(self, state: str) -> None:
        answer = self.crew.inspect(self.root, self.writers, self.readers, self.pauses[0])
        assert answer.wrong == [], state
        assert not answer.recovered, f"{state}: a recovery where there was nothing to recover"
        print(
            f"  {state}: {answer.promised:,} acknowledged, {answer.stored:,} stored, {answer.repairs} repairs"
        )


@pytest.mark.timeout(120 + KILLS // 2)
def test_a_store_survives_random_kills(crew: Crew, tmp_path: Path) -> None:
    print(f"{KILLS:,} kills, MQ_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    pauses: list[float] = []
    for number in range((KILLS + ROUND - 1) // ROUND):
        directory = tmp_path / f"round{number}"
        directory.mkdir()
        work = Round(crew, directory, chance)
        kills = min(ROUND, KILLS - number * ROUND)
        for kill in range(kills):
            time.sleep(chance.expovariate(1 / INTERVAL))
            work.kill_one()
            if kill == kills // 2:
                work.check("halfway")
        work.kill_all()
        work.check("all dead")
        work.check("closed")
        pauses.append(crew.longest_pause(work.pauses))
        print(f"  longest pause {pauses[-1] * 1000:.0f} ms")
        assert pauses[-1] <= PROMISE * BUSY_MARGIN
    assert median(pauses) <= PROMISE


def test_kills_in_opening_and_closing(crew: Crew, tmp_path: Path) -> None:
    """Two processes open, send a little and close, over and over: often the last one to close dies doing
    so."""
    print(f"{KILLS // 4:,} kills, MQ_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    root = tmp_path / "store"
    traces = [tmp_path / f"visitor{number}" for number in range(2)]
    run = 0

    def start(number: int) -> Process:
        nonlocal run
        run += 1
        return crew.nursery.start("visitor", root=root, trace=traces[number], run=run, sizes=SMALL)

    visitors = [start(number) for number in range(2)]
    for kill in range(1, KILLS // 4 + 1):
        time.sleep(chance.expovariate(1 / INTERVAL))
        number = chance.randrange(2)
        visitors[number].kill()
        crew.nursery.forget(visitors[number])
        if kill % 50 == 0:
            visitors[1 - number].kill()
            answer = crew.inspect(root, traces)
            assert answer.wrong == [], f"after {kill} kills"
        visitors[number] = start(number)
        if kill % 50 == 0:
            crew.nursery.forget(visitors[1 - number])
            visitors[1 - number] = start(1 - number)
    for visitor in visitors:
        visitor.kill()
    assert crew.inspect(root, traces).wrong == []
    assert crew.inspect(root, traces).wrong == []
