"""Sending 1,000 at a time, async flush; messages with one tag and key, built before."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from tests.speed import ours, reference
from tests.speed.cases.case import KIB, Bench, Case, rate_of
from tests.speed.goal import Goal, at_least
from tests.speed.pairing import Measurement, paired
from tests.speed.peers import leveldb, lmdb, rocksdb, sqlite
from tests.speed.peers.queue import BatchSender, Peer
from tests.speed.workspace import fresh, settle

BATCH_COUNT = 1000
MESSAGE_SIZE_MAX = 64 << 20


def _bytes_rate(bench: Bench, body_size: int) -> float:
    """Bytes of bodies a second, of as many batches as fill `copy_size`."""
    body = os.urandom(body_size)
    batches = max(1, bench.plan.copy_size // (body_size * BATCH_COUNT))
    with fresh(bench.data) as directory:
        # A batch of 1,000 larger bodies is over the default limit of a message; neither side compresses.
        options: dict[str, Any] = {"message_size_max": MESSAGE_SIZE_MAX, "compress_over": MESSAGE_SIZE_MAX}
        with closing(ours.Sending(directory / "queue", body, **options)) as queue:
            queue.send_batch(BATCH_COUNT)
            settle(bench.plan.memory_size)
            begin = time.perf_counter()
            for _ in range(batches):
                queue.send_batch(BATCH_COUNT)
            seconds = time.perf_counter() - begin
    return batches * BATCH_COUNT * body_size / seconds


def _against_memcpy(body_size: int) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        module = reference.load(bench.cache)
        record = os.urandom(body_size)

        def memcpy() -> float:
            with (
                fresh(bench.data) as directory,
                reference.ReferenceMap(
                    module, directory / "map", bench.plan.copy_size, touched=False
                ) as mapped,
            ):
                settle(bench.plan.memory_size)
                return mapped.fill_rate(record)

        return paired("B/s", lambda: _bytes_rate(bench, body_size), memcpy, bench.plan.rounds, bench.say)

    return measure


def _ours_rate(bench: Bench) -> float:
    return rate_of(bench, ours.Sending, lambda queue: queue.send_batch, per_call=BATCH_COUNT)


def _against(peer: Peer[BatchSender]) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        def theirs() -> float:
            return rate_of(bench, peer.open, lambda queue: queue.send_batch, per_call=BATCH_COUNT)

        return paired("msg/s", lambda: _ours_rate(bench), theirs, bench.plan.rounds, bench.say)

    return measure


def _built(bench: Bench) -> Measurement:
    def built() -> float:
        return rate_of(bench, ours.Sending, lambda queue: queue.send_batch_built, per_call=BATCH_COUNT)

    return paired("msg/s", built, lambda: _ours_rate(bench), bench.plan.rounds, bench.say)


def _memcpy_case(name: str, body_size: int, goal: Goal) -> Case:
    return Case(
        f"batch/memcpy-{body_size // KIB}k",
        f"send_batch of 1,000, {name}",
        "memcpy into a fresh fallocated map",
        goal,
        _against_memcpy(body_size),
        ("cffi",),
    )


def _case(name: str, peer: Peer[BatchSender], goal: Goal | None = None) -> Case:
    title = f"{peer}, in one transaction"
    return Case(f"batch/{name}", "send_batch of 1,000, 1 KiB", title, goal, _against(peer), (peer.module,))


CASES = (
    _memcpy_case("1 KiB", KIB, at_least(0.5)),
    _memcpy_case("16 KiB", 16 * KIB, at_least(0.8)),
    _case("lmdb", lmdb.NOSYNC, at_least(1.5)),
    _case("lmdb-default-map", lmdb.NOSYNC_DEFAULT_MAP, at_least(1.5)),
    _case("leveldb", leveldb.ASYNC, at_least(1.5)),
    _case("rocksdb", rocksdb.ASYNC, at_least(1.5)),
    _case("sqlite", sqlite.NORMAL),
    Case("batch/built", "send_batch, messages built in the loop", "built before", None, _built),
)
