"""Every single send timed, while commit log segments roll: what the slowest in a thousand takes."""

from __future__ import annotations

import os
from contextlib import closing
from typing import Any

from tests.speed import ours
from tests.speed.cases.case import KIB, Bench, Case
from tests.speed.goal import at_most
from tests.speed.pairing import Measurement, Turn, alone
from tests.speed.spread import percentile
from tests.speed.workspace import fresh, settle


def _measure(bench: Bench) -> Measurement:
    def turn() -> Turn:
        with fresh(bench.data) as directory:
            options: dict[str, Any] = {"commitlog_file_size": bench.plan.latency_file_size}
            with closing(ours.Sending(directory / "queue", os.urandom(KIB), **options)) as queue:
                queue.send_each(100)
                settle(bench.plan.memory_size)
                times = [time / 1e3 for time in queue.send_each_timed(bench.plan.latency_count)]
            segments = len(list((directory / "queue" / "commitlog").iterdir()))
        return Turn(
            percentile(times, 0.999),
            {
                "p50 µs": percentile(times, 0.5),
                "p99 µs": percentile(times, 0.99),
                "p99.99 µs": percentile(times, 0.9999),
                "max µs": max(times),
                "segments": float(segments),
            },
        )

    return alone("µs", turn, bench.plan.rounds, bench.say)


CASES = (
    Case("latency", "p99.9 of a send, 1 KiB, segments rolling", "fixed limit", at_most(10, "µs"), _measure),
)
