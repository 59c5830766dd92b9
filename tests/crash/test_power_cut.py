"""The power fails, over and over, at any moment of sending, flushing, opening and closing.

Each round is a store on a disk that forgets (disk.py), with up to three lives, each ended by a power cut:
some writers, synchronous and asynchronous ones, and perhaps a reader that is shown what is on disk and
nothing else. Now and then one of them dies alone, or all do, or all close, or somebody deletes mq/. What is
left is opened as after a reboot, by one who looks at all of it or by writers at once. Then holds:

    what was acknowledged with flush="sync", or before a broker.flush() that returned, is where it was
    what a reader of flush="sync" has seen is still there
    nothing torn is delivered, offsets are dense, no invariant is broken
    sending, reading, closing and opening go on

MQ_POWER_ROUNDS says how many rounds there are (120 if it says nothing); round n of MQ_POWER_SEED=s makes the
choices of round 0 of MQ_POWER_SEED=s+n.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.conftest import SMALL, Answer, Crew
from tests.crash.disk import Disk
from tests.crash.processes import Process
from tests.crash.trace import ACK, Ack, Log

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("MQ_POWER_ROUNDS", "120"))
SEED = int(os.environ.get("MQ_POWER_SEED", str(time.time_ns() % 1_000_000_000)))
CLOCK_FACTOR = 100  # A life of 100 ms takes the store 10 s.


class Round:
    """One store and all its lives."""

    def __init__(
        self, crew: Crew, directory: Path, seed: int, *, strict: bool, syncs_lie: bool = False
    ) -> None:
        self.crew = crew
        self.directory = directory
        self.chance = random.Random(seed)
        directory.mkdir()
        self.disk = Disk(directory, self.chance)
        self.strict = strict
        self.record = {
            "state": str(self.disk.state),
            "delay_max_us": self.chance.choice((0, 300, 2000)),
            "syncs_lie": syncs_lie,
            "clock_begin_ns": time.time_ns(),
            "clock_factor": CLOCK_FACTOR,
        }
        self.runs = 0
        self.traces: list[Path] = []
        self.readers: list[Path] = []
        self.processes: list[Process] = []
        self.is_calm = False  # little is sent, and nothing waits for the disk
        self.cut_traces = 0  # how many are of earlier lives, and may tell of what was lost

    def _start(self, actor: str, **arguments: Any) -> Process:
        process = self.crew.nursery.start(
            "powered", who=actor, record=self.record, root=self.disk.root, sizes=SMALL, **arguments
        )
        self.processes.append(process)
        return process

    def _trace(self) -> Path:
        self.runs += 1
        self.traces.append(self.directory / f"trace{self.runs}")
        return self.traces[-1]

    def writer(self) -> None:
        self._start(
            "writer",
            trace=self._trace(),
            run=self.runs,
            flush="async" if self.is_calm else self.chance.choice(("async", "sync")),
            pauses=self.directory / "pauses",
            seed=self.chance.getrandbits(32),
            idle=0.02 if self.is_calm else self.chance.choice((0.0, 0.002, 0.02)),
        )

    def reader(self) -> None:
        self.readers.append(self.directory / f"reader{len(self.readers)}")
        self._start("reader", trace=self.readers[-1], flush="sync", pauses=self.directory / "pauses")

    def kill_one(self) -> None:
        process = self.chance.choice(self.processes)
        with self.disk.standstill():
            process.kill()
        self.processes.remove(process)
        self.crew.nursery.forget(process)
        self.writer()

    def kill_all(self) -> None:
        with self.disk.standstill():
            for process in self.processes:
                process.kill()
        self._forget_all()

    def close_all(self) -> None:
        """All close, the last one cleanly: what they sent is on disk."""
        for process in self.processes:
            process.stop()
        for process in self.processes:
            assert process.wait(120), "closing hangs"
        assert not (self.disk.root / "abort").exists(), "nobody closed the store"
        self._forget_all()
        for trace in self.traces[self.cut_traces :]:
            if trace.exists():
                Log(trace, ACK).add(Ack(0, 0, 0, 0, 0, 0, 0, 1))

    def _forget_all(self) -> None:
        for process in self.processes:
            self.crew.nursery.forget(process)
        self.processes.clear()

    def _people(self) -> None:
        for _ in range(1 if self.is_calm else self.chance.choice((1, 2, 3))):
            self.writer()
        if self.chance.random() < 0.5:
            self.reader()

    def live(self) -> None:
        self.is_calm = self.chance.random() < 0.3
        self._people()
        events: list[Callable[[], None]] = [
            self.disk.write_back,
            self.kill_one,
            self._start_over,
            self.close_all,
        ]
        for _ in range(self.chance.choice((1, 1, 2, 3))):
            time.sleep(self.chance.uniform(0.01, 0.12))
            if self.processes:
                self.chance.choices(events, (4, 2, 2, 1))[0]()
            else:
                self._people()
        if self.processes:
            time.sleep(self.chance.uniform(0.0, 0.1))
            if self.chance.random() < 0.15:
                self.close_all()

    def _start_over(self) -> None:
        """All die, without any reboot; sometimes mq/ is deleted, since all in it can be rebuilt."""
        self.kill_all()
        if self.chance.random() < 0.5 and (self.disk.root / "mq").exists():
            self.disk.remove("mq")
        self._people()

    def cut(self) -> None:
        self.kill_all()
        self.cut_traces = len(self.traces)
        self.disk.cut(sector=self.chance.choice((4096, 4096, 512)), strict=self.strict)
        if self.chance.random() < 0.15 and (self.disk.root / "mq").exists():
            self.disk.remove("mq")

    def look(self) -> Answer:
        answer, kept = self.directory / "answer", self.directory / f"kept{self.runs}"
        answer.unlink(missing_ok=True)
        close = self.chance.random() < 0.7
        traces, readers = list(self.traces), list(self.readers)
        process = self._start(
            "restarted",
            traces=traces,
            readers=readers,
            answer=answer,
            kept=kept,
            trace=self._trace(),
            run=self.runs,
            close=close,
        )
        self.runs += 1  # It sends under two.
        until = time.monotonic() + 120
        while not answer.exists():
            assert not process.wait(0.002) or answer.exists(), self.crew.nursery.failures()
            assert time.monotonic() < until, "who opens the store after a power cut hangs"
        self.kill_all()
        self.readers.append(kept)
        return Answer(**json.loads(answer.read_text()))

    def play(self) -> Answer:
        """What is wrong in the end, or before."""
        for _ in range(self.chance.choice((0, 1, 1, 2))):
            self.live()
            self.cut()
            if self.chance.random() < 0.4:
                found = self.look()
                if found.wrong:
                    return found
        self.live()
        self.cut()
        return self.look()


def _play(crew: Crew, directory: Path, *, strict: bool, share: float) -> None:
    promised = stored = recovered = 0
    for number in range(int(ROUNDS * share)):
        work = Round(crew, directory / str(number), SEED + number, strict=strict)
        found = work.play()
        assert found.wrong == [], f"round {number}, MQ_POWER_SEED={SEED + number} MQ_POWER_ROUNDS=1"
        promised += found.promised
        stored += found.stored
        recovered += found.recovered
        shutil.rmtree(work.directory)
    print(
        f"  {promised:,} promised, {stored:,} stored in the end, {recovered} recoveries at the last opening"
    )
    assert promised > 0, "nothing was promised, so nothing was proved"


@pytest.mark.timeout(120 + ROUNDS * 5)
@pytest.mark.parametrize("names", ["in order", "strict"])
def test_power_cuts(recorded_crew: Crew, tmp_path: Path, names: str) -> None:
    print(f"{ROUNDS} rounds, MQ_POWER_SEED={SEED}")
    strict = names == "strict"
    _play(recorded_crew, tmp_path, strict=strict, share=0.4 if strict else 0.6)


def test_syncs_that_do_nothing_are_noticed(recorded_crew: Crew, tmp_path: Path) -> None:
    """The disk does forget: on one that lies to the store, promises are broken."""
    for number in range(100):
        work = Round(recorded_crew, tmp_path / str(number), SEED + number, strict=False, syncs_lie=True)
        if any("was acknowledged" in what for what in work.play().wrong):
            return
    pytest.fail("nothing was lost, though nothing was synced")
