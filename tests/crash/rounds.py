"""One store and its lives, each ended by a power cut: see power.py, which plays any number of them."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from mq.store.shared.process_state import process_state
from tests.crash.conftest import Answer, Crew
from tests.support.power.disk import Disk
from tests.support.processes.fail_build import fail_points
from tests.support.processes.nursery import Process
from tests.support.processes.trace import ACK, Ack, Log, follow
from tests.support.store.sizes import SMALL

__all__ = ["IMAGES", "Counts", "Lost", "Round"]

CLOCK_FACTOR = 100  # A life of 100 ms takes the store 10 s.
IMAGES = 6  # of a life; of one in which a process died in the middle of an append AMID_IMAGES times as many
AMID_IMAGES = 4
DERIVED = ("mq", "mq", "mq", "consumequeue", "index", "checkpoint")
# Where a process stops in the middle of an append, and at which passage at the most.
AMID = {"ARMED": 3, "BLANK": 6, "HALF_RECORD": 300, "RECORD": 3, "UNIT": 3, "LOG_END": 3, "PUBLISHED": 3}
POINT = fail_points()
IS_PUBLISHED = ("LOG_END", "PUBLISHED")  # and nothing to be made void
AMID_SECONDS = 3.0  # until it is there
ALL_IMAGES_SECONDS = 60.0  # after a failure; --again takes as long as it takes


class Lost(AssertionError):
    """Something is wrong after a power cut; says what, and where everything is that it came from."""


class Counts:
    """What was tried, and so what nothing was lost in."""

    NAMES = ("rounds", "cuts", "images", "attached", "promised", "stored", "recovered", "kills", "amid")

    def __init__(self) -> None:
        self._counts = dict.fromkeys(self.NAMES, 0)

    def add(self, **counts: int) -> None:
        for name, count in counts.items():
            self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in self._counts.items())


class Round:
    """One store and all its lives."""

    def __init__(
        self,
        crew: Crew,
        directory: Path,
        seed: int,
        *,
        strict: bool | None = None,
        syncs_lie: bool = False,
        image_count: int = IMAGES,
        counts: Counts | None = None,
    ) -> None:
        self.crew = crew
        self.directory = directory
        self.seed = seed
        self.chance = random.Random(seed)
        directory.mkdir()
        self.disk = Disk(directory, self.chance)
        self.strict = self.chance.random() < 0.4 if strict is None else strict
        self.image_count = image_count
        self.counts = counts or Counts()
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
        self.is_amid = False  # a process of this life died in the middle of an append
        self.is_calm = False  # little is sent, and nothing waits for the disk
        self.expires = self.chance.random() < 0.2
        self.cut_traces = self.cut_readers = 0  # how many are of earlier lives, and may tell of what was lost
        self.cuts = 0

    def _start(self, actor: str, *, environment: dict[str, str] | None = None, **arguments: Any) -> Process:
        process = self.crew.nursery.start(
            "powered",
            environment=environment,
            scenario=actor,
            record=self.record,
            root=self.disk.root,
            sizes=SMALL,
            **arguments,
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
            expired=str(self.directory / "expired") if self.expires else "",
            bulks=0.0 if self.is_calm else self.chance.choice((0.0, 0.0, 0.0, 0.1, 0.5)),
        )

    def log_min(self) -> int:
        """Below which log offset everything may have been too old."""
        path = self.directory / "expired"
        return max((int(line) for line in path.read_text().split()), default=0) if path.exists() else 0

    def reader(self) -> None:
        self.readers.append(self.directory / f"reader{len(self.readers)}")
        self._start("reader", trace=self.readers[-1], flush="sync", pauses=self.directory / "pauses")

    def kill_one(self) -> None:
        self._kill(self.chance.choice(self.processes))
        self.writer()

    def kill_the_newest(self) -> None:
        """A process dies while it opens, and perhaps recovers, the store."""
        self.writer()
        time.sleep(self.chance.choice((0.0, self.chance.uniform(0.0, 0.03))))
        self._kill(self.processes[-1])
        if not self.processes:
            self.writer()

    def die_amid(self) -> None:
        """A process dies in the middle of an append, alone or with all others, and perhaps the next one in
        the middle of its repair. What they wrote may be on disk by then. Others go on."""
        point = self.chance.choice(list(AMID))
        self._doom(point, self.chance.randint(1, AMID[point]))
        if not self.processes and point not in IS_PUBLISHED and self.chance.random() < 0.3:
            self._doom("REPAIR", 1)
        if self.processes:
            self.writer()
        else:
            self._people()

    def _doom(self, point: str, passage: int) -> None:
        process = self._start(
            "writer",
            environment={"MQ_FAIL": f"{POINT[point]}:{passage}:stop"},
            trace=self._trace(),
            run=self.runs,
            flush=self.chance.choice(("async", "sync")),
            pauses=self.directory / "pauses",
            seed=self.chance.getrandbits(32),
            bulks=self.chance.choice((0.0, 1.0, 1.0)),
            duties=False,
        )
        until = time.monotonic() + AMID_SECONDS
        while not process_state(process.pid).is_stopped and time.monotonic() < until:
            if process.wait(0.001):
                break
        is_there = process_state(process.pid).is_stopped
        self.is_amid |= is_there
        self.counts.add(amid=int(is_there))
        if self.chance.random() < 0.6:
            self.disk.write_back()
        if self.chance.random() < 0.5:
            self.kill_all()
        else:
            self._kill(process)

    def _kill(self, process: Process) -> None:
        with self.disk.standstill():
            process.kill()
        self.counts.add(kills=1)
        self.processes.remove(process)
        self.crew.nursery.forget(process)

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
        failures = self.crew.nursery.failures()
        assert not (self.disk.root / "abort").exists(), f"the store was not closed: {failures}"
        assert not failures, failures
        self._forget_all()
        for trace in self.traces[self.cut_traces :]:
            if trace.exists():
                log = Log(trace, ACK)
                log.add(Ack(0, 0, 0, 0, 0, 0, 0, 1))
                log.close()

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
        self.is_amid = False
        self._people()
        events: list[Callable[[], None]] = [
            self.disk.write_back,
            self.kill_one,
            self.kill_the_newest,
            self._start_over,
            self.close_all,
            self.die_amid,
        ]
        for _ in range(self.chance.choice((1, 1, 2, 3))):
            time.sleep(self.chance.choice((self.chance.uniform(0.0, 0.02), self.chance.uniform(0.01, 0.12))))
            if self.processes:
                self.chance.choices(events, (4, 3, 2, 2, 1, 4))[0]()
            else:
                self._people()
        if self.processes:
            time.sleep(self.chance.uniform(0.0, 0.1))
            if self.chance.random() < 0.15:
                self.close_all()

    def _start_over(self) -> None:
        """All die, without any reboot; sometimes what can be made anew is deleted."""
        self.kill_all()
        if self.chance.random() < 0.5:
            self._delete_derived()
        self._people()

    def _delete_derived(self) -> None:
        name = self.chance.choice(DERIVED)
        if (self.disk.root / name).exists():
            self.disk.remove(name)

    def cut(self) -> None:
        self.kill_all()
        self.cuts += 1
        self.counts.add(cuts=1)
        (self.directory / "kept_state").mkdir(exist_ok=True)
        if self.image_count:
            found = self._look_into_images(self.image_count * (AMID_IMAGES if self.is_amid else 1))
            if found["wrong"]:
                self._lost(found["wrong"], found)
        self._keep_state()
        self.cut_traces, self.cut_readers = len(self.traces), len(self.readers)
        self.disk.cut(sector=self.chance.choice((4096, 4096, 512)), strict=self.strict)
        if self.chance.random() < 0.15:
            self._delete_derived()

    def _keep_state(self) -> None:
        """What the last life left, as it is before the dice are thrown."""
        to = self.directory / f"life{self.cuts}"
        shutil.rmtree(self.directory / f"life{self.cuts - 1}", ignore_errors=True)
        to.mkdir()
        for name in ("journal", "data"):
            shutil.copy(self.disk.state / name, to / name)
        for name in ("inodes", "disk"):
            subprocess.run(["cp", "-a", "--sparse=always", self.disk.state / name, to / name], check=True)
        (to / "arguments.json").write_text(json.dumps(self._images_of(to)))

    def _images_of(self, state: Path) -> dict[str, Any]:
        """The arguments of look_into that say which life it is."""
        return {
            "root": str(self.disk.root),
            "state": str(state),
            "old": [
                _there(self.traces[: self.cut_traces]),
                _there(self.readers[: self.cut_readers]),
            ],
            "new": [
                _there(self.traces[self.cut_traces :]),
                _there(self.readers[self.cut_readers :]),
            ],
            "sizes": SMALL,
            "strict": self.strict,
            "log_min": self.log_min(),
        }

    def _look_into_images(self, budget: int | None, state: Path | None = None) -> dict[str, Any]:
        arguments = self._images_of(self.disk.state)
        if state is not None:
            arguments = json.loads((state / "arguments.json").read_text())
        answer = self.directory / "images.json"
        answer.unlink(missing_ok=True)
        process = self.crew.nursery.start(
            "look_into",
            **arguments,
            answer=answer,
            budget=budget,
            seed=self.chance.getrandbits(32) if state is None else self.seed,
            seconds=ALL_IMAGES_SECONDS,
        )
        assert process.wait(ALL_IMAGES_SECONDS + 120), "opening an image hangs"
        self.crew.nursery.forget(process)
        assert answer.exists(), self.crew.nursery.failures()
        found: dict[str, Any] = json.loads(answer.read_text())
        self.counts.add(images=found["images"], attached=found["attached"])
        return found

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
            log_min=self.log_min(),
        )
        self.runs += 1  # It sends under two.
        until = time.monotonic() + 120
        while not answer.exists():
            assert not process.wait(0.002) or answer.exists(), self.crew.nursery.failures()
            assert time.monotonic() < until, "opening the store after a power cut hangs"
        self.kill_all()
        self.readers.append(kept)
        return Answer(**json.loads(answer.read_text()))

    def play(self) -> Answer:
        """What was found in the end. Raises Lost."""
        follow(self.disk.state / "journal")
        try:
            return self._judged()
        finally:
            follow(None)

    def _judged(self) -> Answer:
        try:
            found = self.lived()
        except Lost:
            raise
        except AssertionError as error:
            self.kill_all()
            self._lost([str(error)], None)
        if found.wrong:
            life = self.directory / f"life{self.cuts}"
            self._lost(found.wrong, self._look_into_images(None, life) if self.image_count else None)
        if failures := self.crew.nursery.failures():
            self._lost([failures], None)
        self.counts.add(
            rounds=1, promised=found.promised, stored=found.stored, recovered=int(found.recovered)
        )
        return found

    def lived(self) -> Answer:
        """What is found after some lives, each cut short. A test plants its answer here."""
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

    def _lost(self, wrong: list[str], images: dict[str, Any] | None) -> NoReturn:
        state = self.disk.state
        (state / "arguments.json").write_text(json.dumps(self._images_of(state)))
        account = {
            "seed": self.seed,
            "strict": self.strict,
            "cuts": self.cuts,
            "wrong": wrong,
            "images": images,
        }
        (self.directory / "round.json").write_text(json.dumps(account, indent=1))
        for name in ("report", "recorder.so"):
            if (self.crew.nursery.report.parent / name).exists():
                shutil.copy(self.crew.nursery.report.parent / name, self.directory / name)
        kept = Path(tempfile.mkdtemp(prefix=f"power-{self.seed}-", dir=os.environ.get("MQ_POWER_KEPT")))
        subprocess.run(["cp", "-a", "--sparse=always", self.directory, kept / "round"], check=True)
        lines = "\n".join(wrong[:10])
        raise Lost(
            f"MQ_POWER_SEED={self.seed} (strict: {self.strict}); all of it is in {kept}/round:\n{lines}"
        )


def _there(paths: list[Path]) -> list[str]:
    return [str(path) for path in paths if path.exists()]
