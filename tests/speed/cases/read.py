"""Reading 1 KiB messages into MessageExt, the offset kept; a peer gets and acknowledges."""

from __future__ import annotations

from collections.abc import Callable

from tests.speed import ours
from tests.speed.cases.case import Bench, Case, rate_of
from tests.speed.goal import Goal, at_least
from tests.speed.pairing import Measurement, paired
from tests.speed.peers import leveldb, lmdb, queuelib, rocksdb, sqlite
from tests.speed.peers.queue import BatchReader, Peer, Reader

BATCH_COUNT = 100
FILL_COUNT = 1000


def _each_against(peer: Peer[Reader]) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        count = bench.plan.read_count

        def reads() -> float:
            return rate_of(
                bench, ours.Reading, lambda queue: queue.read_each, prepare=lambda queue: queue.fill(count)
            )

        def theirs() -> float:
            return rate_of(
                bench, peer.open, lambda queue: queue.read_each, prepare=lambda queue: queue.send_each(count)
            )

        return paired("msg/s", reads, theirs, bench.plan.rounds, bench.say)

    return measure


def _batch_against(peer: Peer[BatchReader]) -> Callable[[Bench], Measurement]:
    def fill(queue: BatchReader, count: int) -> None:
        for _ in range(0, count, FILL_COUNT):
            queue.send_batch(FILL_COUNT)

    def measure(bench: Bench) -> Measurement:
        count = bench.plan.read_count

        def reads() -> float:
            return rate_of(
                bench,
                ours.Reading,
                lambda queue: queue.read_batch,
                per_call=BATCH_COUNT,
                prepare=lambda queue: queue.fill(count),
            )

        def theirs() -> float:
            return rate_of(
                bench,
                peer.open,
                lambda queue: queue.read_batch,
                per_call=BATCH_COUNT,
                prepare=lambda queue: fill(queue, count),
            )

        return paired("msg/s", reads, theirs, bench.plan.rounds, bench.say)

    return measure


def _each(name: str, peer: Peer[Reader], goal: Goal | None = None) -> Case:
    return Case(
        f"read/{name}", "read one by one, 1 KiB", str(peer), goal, _each_against(peer), (peer.module,)
    )


def _batch(name: str, peer: Peer[BatchReader], goal: Goal | None = None) -> Case:
    title = f"{peer}, in one transaction"
    return Case(f"read/batch-{name}", "read by 100, 1 KiB", title, goal, _batch_against(peer), (peer.module,))


CASES = (
    _each("queuelib", queuelib.FIFO, at_least(1.3)),
    _each("lmdb", lmdb.NOSYNC, at_least(3)),
    _each("lmdb-default-map", lmdb.NOSYNC_DEFAULT_MAP, at_least(3)),
    _each("leveldb", leveldb.ASYNC),
    _each("rocksdb", rocksdb.ASYNC),
    _each("sqlite", sqlite.NORMAL),
    _batch("lmdb", lmdb.NOSYNC, at_least(1.5)),
    _batch("lmdb-default-map", lmdb.NOSYNC_DEFAULT_MAP, at_least(1.5)),
    _batch("leveldb", leveldb.ASYNC),
    _batch("sqlite", sqlite.NORMAL),
)
