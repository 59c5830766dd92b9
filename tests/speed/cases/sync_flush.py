"""Sync flush, 1 KiB: a send returns after the disk has it. One thread, then several that share flushes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial

from tests.speed import ours, reference
from tests.speed.cases.case import KIB, Bench, Case, rate_of
from tests.speed.goal import Goal, at_least, at_most
from tests.speed.pairing import Measurement, Turn, paired
from tests.speed.peers import leveldb, lmdb, sqlite
from tests.speed.peers.queue import Peer, Sender
from tests.speed.plan import Plan
from tests.speed.processes import total_rate
from tests.speed.spread import percentile
from tests.speed.workspace import fresh, settle

PAGE_SIZE = 4096
SECONDS_FACTOR = 2
"""A flush takes some 100 µs: a turn by time is this much longer than elsewhere."""

open_sync = partial(ours.Sending, flush="sync")


def _p50(times: list[float]) -> Turn:
    return Turn(percentile(times, 0.5), {"p99 µs": percentile(times, 0.99), "max µs": max(times)})


def _against_fdatasync(bench: Bench) -> Measurement:
    module = reference.load(bench.cache)
    count = bench.plan.sync_count

    def sends() -> Turn:
        with (
            fresh(bench.data) as directory,
            closing(open_sync(directory / "queue", os.urandom(KIB))) as queue,
        ):
            queue.send_each(20)
            settle(bench.plan.memory_size)
            return _p50([time / 1e3 for time in queue.send_each_timed(count)])

    def flushes() -> Turn:
        with (
            fresh(bench.data) as directory,
            reference.ReferenceMap(module, directory / "map", count * PAGE_SIZE, touched=True) as mapped,
        ):
            settle(bench.plan.memory_size)
            mapped.sync_times(min(20, count))
            return _p50([seconds * 1e6 for seconds in mapped.sync_times(count)])

    return paired("µs", sends, flushes, bench.plan.rounds, bench.say)


def _against(peer: Peer[Sender]) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        seconds = SECONDS_FACTOR * bench.plan.seconds

        def sends() -> float:
            return rate_of(bench, open_sync, lambda queue: queue.send_each, seconds=seconds)

        def theirs() -> float:
            return rate_of(bench, peer.open, lambda queue: queue.send_each, seconds=seconds)

        return paired("msg/s", sends, theirs, bench.plan.rounds, bench.say)

    return measure


def _together(shape: Callable[[Plan], tuple[int, int]]) -> Callable[[Bench], Measurement]:
    """`shape`: processes, and threads in each."""

    def measure(bench: Bench) -> Measurement:
        processes, threads = shape(bench.plan)

        def turn(processes: int, threads: int) -> float:
            with fresh(bench.data) as directory:
                settle(bench.plan.memory_size)
                return total_rate(
                    lambda: open_sync(directory / "queue", os.urandom(KIB)),
                    processes=processes,
                    threads=threads,
                    seconds=SECONDS_FACTOR * bench.plan.seconds,
                    chunk_count=1,
                )

        many = partial(turn, processes, threads)
        return paired("msg/s", many, partial(turn, 1, 1), bench.plan.rounds, bench.say)

    return measure


def _case(name: str, peer: Peer[Sender], goal: Goal | None = None) -> Case:
    return Case(f"sync/{name}", "sync send, 1 KiB", str(peer), goal, _against(peer), (peer.module,))


CASES = (
    Case(
        "sync/fdatasync",
        "p50 of a sync send, 1 KiB",
        "raw fdatasync of one prepared page",
        at_most(1.15),
        _against_fdatasync,
        ("cffi",),
    ),
    _case("sqlite", sqlite.FULL, at_least(1.2)),
    _case("lmdb", lmdb.SYNC),
    _case("leveldb", leveldb.SYNC),
    Case(
        "sync/2-processes",
        "sync send, 2 processes",
        "one thread",
        at_least(1.7),
        _together(lambda _: (2, 1)),
    ),
    Case(
        "sync/16-threads",
        "sync send, 16 threads over 4 processes",
        "one thread",
        at_least(6),
        _together(lambda plan: plan.thread_counts),
    ),
)
