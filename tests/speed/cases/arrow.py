"""read_arrow over a queue of 1 KiB messages, against memcpy of the bodies' bytes out of a warm map."""

from __future__ import annotations

import os
import time
from contextlib import closing

from tests.speed import ours, reference
from tests.speed.cases.case import KIB, Bench, Case
from tests.speed.goal import at_least
from tests.speed.pairing import Measurement, paired
from tests.speed.workspace import fresh, settle

CHUNK_COUNT = 4096


def _measure(bench: Bench) -> Measurement:
    module = reference.load(bench.cache)
    count = bench.plan.copy_size // KIB // 2 // ours.FILL_COUNT * ours.FILL_COUNT or ours.FILL_COUNT
    chunk_count = min(CHUNK_COUNT, count)

    with fresh(bench.data) as directory:
        (directory / "queue").mkdir()
        with (
            closing(ours.Reading(directory / "queue", os.urandom(KIB))) as queue,
            reference.ReferenceMap(module, directory / "map", count * KIB, touched=True) as mapped,
        ):
            queue.fill(count)
            settle(bench.plan.memory_size)

            def reads() -> float:
                begin = time.perf_counter()
                assert queue.read_arrow_all(chunk_count, 2 * chunk_count * KIB) == count
                return count * KIB / (time.perf_counter() - begin)

            return paired(
                "B/s", reads, lambda: mapped.copy_out_rate(chunk_count * KIB), bench.plan.rounds, bench.say
            )


CASES = (
    Case(
        "read/arrow",
        "read_arrow, 1 KiB",
        "memcpy of the same bytes",
        at_least(0.5),
        _measure,
        ("cffi", "pyarrow"),
    ),
)
