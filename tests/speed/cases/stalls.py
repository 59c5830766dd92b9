"""What stalls take of a run of batches at full speed: the share of its time in calls that take long."""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import count
from pathlib import Path

from tests.speed import ours
from tests.speed.cases.batch import BATCH_COUNT
from tests.speed.cases.case import KIB, Bench, Case
from tests.speed.goal import at_most
from tests.speed.pairing import Measurement, Turn, alone
from tests.speed.spread import percentile
from tests.speed.workspace import fresh, settle

LONG = 0.002  # seconds; a batch takes some 0.6 ms
ROOM = 2 << 30  # bytes that a run leaves on the disk
RECORD_SIZE = 1184  # of a message in the log
FILE_SIZE = 1 << 30  # as a file of the log


Step = Callable[[], object]


def _measure(opened: Callable[[Path], AbstractContextManager[Step]]) -> Callable[[Bench], Measurement]:
    """`opened`: what takes the next 1,000 messages in a directory."""

    def measure(bench: Bench) -> Measurement:
        def turn() -> Turn:
            with fresh(bench.data) as directory, opened(directory) as step:
                step()
                settle(bench.plan.memory_size)
                return _share(_times(bench, step))

        return alone("%", turn, bench.plan.rounds, bench.say)

    return measure


def _share(times: list[float]) -> Turn:
    total = sum(times)
    return Turn(
        100 * sum(each for each in times if each > LONG) / total,
        {
            "kmsg/s": len(times) * BATCH_COUNT / total / 1e3,
            "p50 ms": percentile(times, 0.5) * 1e3,
            "max ms": max(times) * 1e3,
            "seconds": total,
        },
    )


def _times(bench: Bench, step: Step) -> list[float]:
    """Seconds of each batch, until the time is over or the disk has no more to spare."""
    times = []
    until = time.perf_counter() + bench.plan.stall_seconds
    while (begin := time.perf_counter()) < until:
        step()
        times.append(time.perf_counter() - begin)
        if len(times) % 100 == 0 and shutil.disk_usage(bench.data).free < ROOM:
            bench.say("the disk is nearly full: the run ends early")
            break
    return times


@contextmanager
def _batches(directory: Path) -> Iterator[Step]:
    with closing(ours.Sending(directory / "queue", os.urandom(KIB))) as queue:
        yield lambda: queue.send_batch(BATCH_COUNT)


@contextmanager
def _copies(directory: Path) -> Iterator[Step]:
    """The same bytes, into one allocated and mapped file after the other: what the machine itself stalls."""
    batch = os.urandom(BATCH_COUNT * RECORD_SIZE)

    def copies() -> Generator[None, None, None]:
        for number in count():
            path = directory / f"{number}"
            with path.open("w+b") as file:
                os.posix_fallocate(file.fileno(), 0, FILE_SIZE)
                with mmap.mmap(file.fileno(), FILE_SIZE) as mapped:
                    for at in range(0, FILE_SIZE - len(batch), len(batch)):
                        mapped[at : at + len(batch)] = batch
                        yield

    with closing(copies()) as going:
        yield lambda: next(going)


CASES = (
    Case(
        "batch/stalls",
        f"share of a run of batches of 1,000 in calls over {LONG * 1e3:g} ms",
        "fixed limit",
        at_most(5, "%"),
        _measure(_batches),
    ),
    Case(
        "batch/stalls-memcpy",
        f"share of a run of memcpy of the same bytes into fresh files, in copies over {LONG * 1e3:g} ms",
        "the case before",
        None,
        _measure(_copies),
    ),
)
