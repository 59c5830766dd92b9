"""2 producers and 2 consumers of one group in 4 processes: from the first send to the last consumed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.speed import consuming
from tests.speed.cases.case import KIB, Bench, Case
from tests.speed.goal import Goal, at_least
from tests.speed.pairing import Measurement, paired
from tests.speed.peers import process_queue, shared_lmdb
from tests.speed.peers.pipeline import Pipeline
from tests.speed.peers.queue import Peer
from tests.speed.processes import together
from tests.speed.workspace import fresh, settle

PRODUCERS = 2
CONSUMERS = 2
BATCH_COUNT = 100


def _rate(bench: Bench, open_pipeline: Callable[[Path, bytes], Pipeline]) -> float:
    count = bench.plan.read_count // PRODUCERS // BATCH_COUNT * BATCH_COUNT
    total = count * PRODUCERS
    with fresh(bench.data) as parent:
        directory = parent / "pipeline"
        directory.mkdir()
        pipeline = open_pipeline(directory, os.urandom(KIB))
        settle(bench.plan.memory_size)

        def timed(work: Callable[[Callable[[], object]], None]) -> Callable[[Any], tuple[float, float]]:
            def job(ready: Callable[[], object]) -> tuple[float, float]:
                moments: list[float] = []

                def mark() -> None:
                    # The end is noted before the wait for the others, the beginning after it.
                    if moments:
                        moments.append(time.perf_counter())
                        ready()
                    else:
                        ready()
                        moments.append(time.perf_counter())

                work(mark)
                begin, end = moments
                return begin, end

            return job

        producers = [timed(partial(pipeline.produce, count))] * PRODUCERS
        consumers = [timed(partial(pipeline.consume, place, total)) for place in range(CONSUMERS)]
        spans = together([*producers, *consumers])
    return total / (max(end for _, end in spans) - min(begin for begin, _ in spans))


def _against(peer: Peer[Pipeline], batch: int) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        return paired(
            "msg/s",
            lambda: _rate(bench, partial(consuming.Pipeline, batch=batch, consumers=CONSUMERS)),
            lambda: _rate(bench, peer.open),
            bench.plan.rounds,
            bench.say,
        )

    return measure


def _case(name: str, peer: Peer[Pipeline], goal: Goal, batch: int = 1) -> Case:
    how = "one by one" if batch == 1 else f"by {batch}"
    return Case(
        f"pipeline/{name}",
        f"2 producers, 2 consumers, {how}, 1 KiB",
        str(peer),
        goal,
        _against(peer, batch),
        (peer.module,),
    )


CASES = (
    _case("lmdb", shared_lmdb.peer(1, writable_map=True), at_least(5)),
    _case("lmdb-default-map", shared_lmdb.peer(1, writable_map=False), at_least(5)),
    _case("queue", process_queue.PIPELINE, at_least(1.5)),
    _case("batch-lmdb", shared_lmdb.peer(BATCH_COUNT, writable_map=True), at_least(2), BATCH_COUNT),
    _case(
        "batch-lmdb-default-map", shared_lmdb.peer(BATCH_COUNT, writable_map=False), at_least(2), BATCH_COUNT
    ),
)
