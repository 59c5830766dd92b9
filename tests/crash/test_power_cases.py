"""Power cuts of which each is chosen, where test_power_cut.py leaves it to the dice and would need luck.

All messages have one size, some two KiB, so that the next life's take the places of the last one's.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.crash.conftest import SMALL, Crew
from tests.crash.disk import Disk

pytestmark = pytest.mark.crash
MAGIC = b"\xda\xa3\x20\xa7"


class Least(random.Random):
    """The disk has what it must have, and nothing else."""

    def random(self) -> float:
        return 0.999

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def randint(self, a: int, b: int) -> int:
        return a


class Case:
    """A store on a disk that forgets, and its lives one after the other."""

    def __init__(self, crew: Crew, directory: Path) -> None:
        self.crew = crew
        self.directory = directory
        self.disk = Disk(directory, Least())
        self.log = self.disk.root / "commitlog" / f"{0:020}"
        self.lives = 0

    def live(self, steps: Sequence[tuple[str, int]], *, flush: str = "async") -> dict[str, list[str]]:
        """One process does the steps, says what it reads and what is wrong then, and is killed."""
        self.lives += 1
        answer = self.directory / f"answer{self.lives}"
        record = {
            "state": str(self.disk.state),
            "delay_max_us": 0,
            "syncs_lie": False,
            "clock_begin_ns": 0,
            "clock_factor": 1,
        }
        process = self.crew.nursery.start(
            "powered",
            who="scripted",
            record=record,
            root=self.disk.root,
            sizes=SMALL,
            flush=flush,
            steps=steps,
            answer=answer,
        )
        until = time.monotonic() + 120
        while not answer.exists():
            assert not process.wait(0.002) or answer.exists(), self.crew.nursery.failures()
            assert time.monotonic() < until, "the steps hang"
        with self.disk.standstill():
            process.kill()
        self.crew.nursery.forget(process)
        found: dict[str, list[str]] = json.loads(answer.read_text())
        return found

    def keep_log_but(self, record: int) -> None:
        """All of the log came to disk before the power failed, except for one sector of a record."""
        data = self.log.read_bytes()
        starts = [place - 4 for place in range(len(data)) if data.startswith(MAGIC, place)]
        data = data[: starts[record]] + bytes(512) + data[starts[record] + 512 :]
        self.log.write_bytes(data)
        self.disk.on_disk(self.log).write_bytes(data)

    def cut(self) -> None:
        self.disk.cut(sector=512, strict=False)


def test_what_was_found_in_the_page_cache_alone_is_flushed_too(recorded_crew: Crew, tmp_path: Path) -> None:
    """All are killed, mq/ is deleted: the messages are found, and nothing that says what is on disk."""
    case = Case(recorded_crew, tmp_path)
    case.live([("early", 0)] * 10)
    case.disk.remove("mq")
    case.live([("late", 0), ("flush", 0)], flush="sync")
    case.cut()
    assert case.live([]) == {"0": ["early"] * 10 + ["late"], "1": [], "problems": []}


def test_a_unit_of_a_lost_message_is_not_taken_for_that_of_the_next(
    recorded_crew: Crew, tmp_path: Path
) -> None:
    """Units come to disk before the log does, and the places in the queue are given away again."""
    case = Case(recorded_crew, tmp_path)
    case.live([("kept", 0), ("flush", 0), ("lost", 1), ("lost", 1), ("lost", 0), ("flush units", 0)])
    case.cut()
    case.live([("late", 0), ("other", 1), ("other", 1), ("other", 1)], flush="sync")
    case.cut()
    assert case.live([]) == {"0": ["kept", "late"], "1": ["other"] * 3, "problems": []}


def test_what_recovery_cut_off_does_not_come_back(recorded_crew: Crew, tmp_path: Path) -> None:
    """Whole records behind a torn one: gone after one power cut, they are still gone after the next."""
    case = Case(recorded_crew, tmp_path)
    case.live([("kept", 0), ("flush", 0), *[("torn", 1)] * 4, *[("old", 0)] * 6])
    case.keep_log_but(1)
    case.cut()
    assert case.live([("new", 0), ("new", 0), ("flush", 0)])["0"] == ["kept", "new", "new"]
    case.cut()
    assert case.live([]) == {"0": ["kept", "new", "new"], "1": [], "problems": []}
