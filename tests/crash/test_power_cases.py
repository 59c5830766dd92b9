"""Power cuts of which each is chosen, where test_power_cut.py leaves it to the dice and would need luck.

All messages have one size, some two KiB, so that the next life's take the places of the last one's.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.store.native import lib
from mq.store.shared.control import Control
from tests.crash.conftest import Crew
from tests.support.power.disk import Disk
from tests.support.power.replay import Change, changes_of
from tests.support.processes.nursery import Process
from tests.support.processes.trace import TOPIC
from tests.support.store.sizes import SMALL

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

    def live(
        self, steps: Sequence[tuple[str, int]], *, flush: Any = "async", syncs_lie: bool = False
    ) -> dict[str, list[str]]:
        """One process does the steps, says what it reads and what is wrong then, and is killed.

        syncs_lie: as if it was killed before each sync that it did.
        """
        process, found = self.begin(steps, flush=flush, syncs_lie=syncs_lie)
        self.kill(process)
        return found

    def begin(
        self, steps: Sequence[tuple[str, int]], *, flush: Any = "async", syncs_lie: bool = False
    ) -> tuple[Process, dict[str, list[str]]]:
        """The same process, which lives on; what it said."""
        self.lives += 1
        answer = self.directory / f"answer{self.lives}"
        record = {
            "state": str(self.disk.state),
            "delay_max_us": 0,
            "syncs_lie": syncs_lie,
            "clock_begin_ns": 0,
            "clock_factor": 1,
        }
        process = self.crew.nursery.start(
            "powered",
            scenario="scripted",
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
        found: dict[str, list[str]] = json.loads(answer.read_text())
        return process, found

    def kill(self, process: Process) -> None:
        with self.disk.standstill():
            process.kill()
        self.crew.nursery.forget(process)

    def keep_log_but(self, record: int) -> None:
        """All of the log came to disk before the power failed, except for one sector of a record."""
        data = self.log.read_bytes()
        starts = [place - 4 for place in range(len(data)) if data.startswith(MAGIC, place)]
        data = data[: starts[record]] + bytes(512) + data[starts[record] + 512 :]
        self.log.write_bytes(data)
        self.disk.on_disk(self.log).write_bytes(data)

    def changes(self) -> Iterator[Change]:
        """All that was done to names and lengths so far, and all that was synced."""
        return changes_of((self.disk.state / "journal").read_text())

    def cut(self, *, strict: bool = False) -> None:
        self.disk.cut(sector=512, strict=strict)


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


def test_the_abort_file_is_on_disk_whichever_process_made_it(recorded_crew: Crew, tmp_path: Path) -> None:
    """The first process dies before it syncs the directory, and another one goes on: without the mark, a
    recovery would take the store for one that was closed, and trust what never came to disk."""
    case = Case(recorded_crew, tmp_path)
    case.live([("kept", 0), ("close", 0)])
    case.disk.sync()
    assert not (case.disk.root / "abort").exists()
    case.disk.touch("abort")
    case.live([("late", 0)], flush="sync")
    case.cut(strict=True)
    assert (case.disk.root / "abort").exists()
    assert case.live([])["0"] == ["kept", "late"]


@pytest.mark.parametrize("strict", [False, True], ids=["in order", "strict"])
def test_a_topic_is_on_disk_before_its_messages_whichever_process_made_it(
    recorded_crew: Crew, tmp_path: Path, strict: bool
) -> None:
    """Its creator dies before topics.json is on disk: the next process's messages are no deleted topic's."""
    case = Case(recorded_crew, tmp_path)
    case.live([("kept", 0), ("flush", 0)])
    case.live([("make other", 0)], syncs_lie=True)
    case.live([("to other", 0)], flush="sync")
    case.cut(strict=strict)
    found = case.live([("make other", 0)])
    assert found == {"0": ["kept"], "1": [], "other": ["to other"], "problems": []}


@pytest.mark.parametrize("count", [0, 80], ids=["topics.json", "journal"])
@pytest.mark.parametrize("strict", [False, True], ids=["in order", "strict"])
def test_a_topic_that_is_read_is_on_disk_before_its_messages(
    recorded_crew: Crew, tmp_path: Path, strict: bool, count: int
) -> None:
    """Its creator dies before it is on disk, while others have the store open, so there is no recovery."""
    case = Case(recorded_crew, tmp_path)
    other, _ = case.begin([("kept", 0), ("flush", 0), ("make many", count)])
    case.live([("make other", 0)], syncs_lie=True)
    case.live([("to other", 0)], flush="sync")
    case.kill(other)
    case.cut(strict=strict)
    found = case.live([("make other", 0)])
    assert found == {"0": ["kept"], "1": [], "other": ["to other"], "problems": []}


@pytest.mark.parametrize("is_new", [False, True], ids=["same control file", "new one"])
def test_files_that_are_too_old_go_after_the_words_that_tell_of_them(
    recorded_crew: Crew, tmp_path: Path, is_new: bool
) -> None:
    """An older control file came to disk, then the log's first files went: the store can be opened."""
    case = Case(recorded_crew, tmp_path)
    case.live([("early", 0)] * 150 + [("flush", 0)])
    case.disk.sync()
    if is_new:
        case.cut(strict=True)  # What is recovered has a new control file.
    case.live([("expire", 0), ("make other", 0)])  # which forces all names to disk, unless it is strict
    assert not case.log.exists()
    case.cut(strict=is_new)
    assert not case.log.exists()
    found = case.live([])
    assert found["problems"] == []
    assert 0 < len(found["0"]) < 150


def test_what_follows_is_on_disk_before_files_go(recorded_crew: Crew, tmp_path: Path) -> None:
    """The messages behind the expired files were not flushed, and the power fails when the files are gone:
    the queues go on where they were. With nothing on disk that tells, their offsets would be given once
    more."""
    case = Case(recorded_crew, tmp_path)
    steps = [("quiet", 1), *[("early", 0)] * 60, ("flush", 0), *[("late", 0)] * 90]
    case.live([*steps, ("expire", 0), ("make other", 0)])  # which forces all names to disk
    assert not case.log.exists()
    case.cut()
    found = case.live([("new", 0), ("new", 1)], flush="sync")
    assert found["problems"] == []
    assert (found["0"][-1], found["1"]) == ("new", ["new"])
    with mq.open(case.disk.root, read_only=True) as broker:
        assert [queue.max_offset for queue in broker.topic(TOPIC).queues] == [151, 2]


@pytest.mark.parametrize("again", [False, True], ids=["once", "derived files deleted then"])
def test_files_of_which_nothing_came_to_disk_are_no_beginning_of_the_log(
    recorded_crew: Crew, tmp_path: Path, again: bool
) -> None:
    """Nothing was flushed; of the third file some pages came to disk, of the first two none. What is synced
    afterwards is not behind a hole, at which the next recovery would end the log."""
    case = Case(recorded_crew, tmp_path)
    case.live([("early", 0)] * 90)
    case.disk.sync()
    files = sorted((case.disk.root / "commitlog").iterdir())
    for path in (*files[:2], *map(case.disk.on_disk, files[:2])):
        os.truncate(path, 0)
        os.truncate(path, SMALL["commitlog_file_size"])
    for path in (files[2], case.disk.on_disk(files[2])):
        with path.open("r+b") as file:
            file.write(bytes(4096))
    if (case.disk.root / "checkpoint").exists():
        case.disk.remove("checkpoint")
    case.cut()
    assert case.live([("late", 0)] * 3, flush="sync") == {"0": ["late"] * 3, "1": [], "problems": []}
    if again:
        case.disk.remove("mq")
        if (case.disk.root / "checkpoint").exists():
            case.disk.remove("checkpoint")
    else:
        case.cut()
    assert case.live([]) == {"0": ["late"] * 3, "1": [], "problems": []}


def test_a_log_that_is_on_disk_up_to_a_files_end_has_lost_nothing(
    recorded_crew: Crew, tmp_path: Path
) -> None:
    """The power fails between the flushes of two files, and of the second all pages are on disk but the first
    one: the log ends where the first file does, as the control file knows, and nothing is lost there."""
    case = Case(recorded_crew, tmp_path)
    case.live([("early", 0)] * 45)
    case.disk.sync()
    case.disk.remove("checkpoint")
    first, second = sorted((case.disk.root / "commitlog").iterdir())[:2]
    for path in (second, case.disk.on_disk(second)):
        with path.open("r+b") as file:
            file.write(bytes(4096))
    control = Control(case.disk.root / "mq" / "control", create=False)
    control.set(lib.MQ_FLUSHED_END, int(second.name))
    control.close()
    case.disk.sync()
    case.cut()
    kept = first.read_bytes().count(MAGIC)
    assert kept < 45
    assert case.live([("new", 0)]) == {"0": ["early"] * kept + ["new"], "1": [], "problems": []}


def test_units_go_after_their_records_are_gone_from_the_disk(recorded_crew: Crew, tmp_path: Path) -> None:
    """The power may fail while old files go: a record that is left without its unit counts as damage."""
    case = Case(recorded_crew, tmp_path)
    case.live([("early", 0)] * 190 + [("flush", 0)])
    case.disk.sync()
    before = len(list(case.changes()))
    case.live([("expire", 0)])
    log, units = str(case.disk.root / "commitlog"), str(case.disk.root / "consumequeue")
    steps = [
        (change.kind, log if change.path.startswith(log) else units)
        for change in list(case.changes())[before:]
        if change.kind in ("unlink", "named") and change.path.startswith((log, units))
    ]
    gone, synced, later = steps.index(("unlink", units)), steps.index(("named", log)), steps[::-1]
    assert len(steps) - 1 - later.index(("unlink", log)) < synced < gone
