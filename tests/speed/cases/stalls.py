"""What stalls take of a run of batches at full speed: the share of its time in calls that take long."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing

from tests.speed import ours
from tests.speed.cases.batch import BATCH_COUNT
from tests.speed.cases.case import KIB, Bench, Case
from tests.speed.goal import at_most
from tests.speed.pairing import Measurement, Turn, alone
from tests.speed.spread import percentile
from tests.speed.workspace import fresh, settle

LONG = 0.002  # seconds; a batch takes some 0.6 ms
ROOM = 2 << 30  # bytes that a run leaves on the disk


def _measure(bench: Bench) -> Measurement:
    def turn() -> Turn:
        with (
            fresh(bench.data) as directory,
            closing(ours.Sending(directory / "queue", os.urandom(KIB))) as queue,
        ):
            queue.send_batch(BATCH_COUNT)
            settle(bench.plan.memory_size)
            times = _times(bench, queue)
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

    return alone("%", turn, bench.plan.rounds, bench.say)


def _times(bench: Bench, queue: ours.Sending) -> list[float]:
    """Seconds of each batch, until the time is over or the disk has no more to spare."""
    times = []
    until = time.perf_counter() + bench.plan.stall_seconds
    while (begin := time.perf_counter()) < until:
        queue.send_batch(BATCH_COUNT)
        times.append(time.perf_counter() - begin)
        if len(times) % 100 == 0 and shutil.disk_usage(bench.data).free < ROOM:
            bench.say("the disk is nearly full: the run ends early")
            break
    return times


CASES = (
    Case(
        "batch/stalls",
        f"share of a run of batches of 1,000 in calls over {LONG * 1e3:g} ms",
        "fixed limit",
        at_most(5, "%"),
        _measure,
    ),
)
