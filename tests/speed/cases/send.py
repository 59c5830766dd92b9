"""Sending one by one: 1 KiB, one tag and key, async flush; the message is built inside the timed loop."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing

from tests.speed import ours, reference
from tests.speed.cases.case import KIB, Bench, Case, rate_of
from tests.speed.goal import Goal, at_least, at_most
from tests.speed.pairing import Measurement, alone, paired, rate
from tests.speed.peers import (
    diskcache,
    leveldb,
    litequeue,
    lmdb,
    localqueue,
    persist_queue,
    queuelib,
    rocksdb,
    sqlite,
)
from tests.speed.peers.queue import Peer, Sender
from tests.speed.workspace import fresh, settle

TITLE = "send, 1 KiB, one by one"
REFERENCE_SIZE = 256 << 20
SMALL_SIZE = 100


def ours_rate(bench: Bench) -> float:
    return rate_of(bench, ours.Sending, lambda queue: queue.send_each)


def _against(peer: Peer[Sender]) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        def theirs() -> float:
            return rate_of(bench, peer.open, lambda queue: queue.send_each)

        return paired("msg/s", lambda: ours_rate(bench), theirs, bench.plan.rounds, bench.say)

    return measure


def _case(name: str, peer: Peer[Sender], goal: Goal | None = None) -> Case:
    return Case(f"send/{name}", TITLE, str(peer), goal, _against(peer), (peer.module,))


def _prepared(bench: Bench) -> Measurement:
    def prepared() -> float:
        return rate_of(bench, ours.Sending, lambda queue: queue.send_each_prepared)

    return paired("msg/s", prepared, lambda: ours_rate(bench), bench.plan.rounds, bench.say)


def _bare_call(bench: Bench) -> Measurement:
    """Time of a send over the time of one call that copies as much into pages that are already there."""
    module = reference.load(bench.cache)
    record = os.urandom(KIB)
    size = min(REFERENCE_SIZE, bench.plan.copy_size)

    def bare() -> float:
        with (
            fresh(bench.data) as directory,
            reference.ReferenceMap(module, directory / "map", size, touched=True) as mapped,
        ):
            settle(bench.plan.memory_size)
            return 1e9 / rate(lambda count: mapped.append_each(record, count), bench.plan.seconds)

    return paired("ns", lambda: 1e9 / ours_rate(bench), bare, bench.plan.rounds, bench.say)


def _small(bench: Bench) -> Measurement:
    """The second half of a turn counts: by then pages are made ahead of the sender."""

    def turn() -> float:
        with (
            fresh(bench.data) as directory,
            closing(ours.Sending(directory / "queue", os.urandom(SMALL_SIZE))) as queue,
        ):
            settle(bench.plan.memory_size)
            rate(queue.send_each, bench.plan.seconds)
            return rate(queue.send_each, bench.plan.seconds)

    return alone("msg/s", turn, bench.plan.rounds, bench.say)


CASES = (
    Case(
        "send/small",
        f"send, {SMALL_SIZE} B, one by one, pages warm",
        "fixed limit",
        at_least(1_500_000, "msg/s"),
        _small,
    ),
    _case("leveldb", leveldb.ASYNC, at_least(3.5)),
    _case("lmdb", lmdb.NOSYNC, at_least(2.5)),
    _case("lmdb-default-map", lmdb.NOSYNC_DEFAULT_MAP, at_least(3.5)),
    _case("sqlite", sqlite.NORMAL, at_least(18)),
    _case("sqlite-shared", sqlite.NORMAL_SHARED, at_least(18)),
    _case("persist-queue", persist_queue.FILE, at_least(80)),
    _case("rocksdb", rocksdb.ASYNC),
    _case("queuelib", queuelib.FIFO),
    _case("litequeue", litequeue.WAL_NORMAL),
    _case("localqueue", localqueue.RELAXED),
    _case("diskcache", diskcache.NORMAL),
    Case(
        "send/bare-call",
        "time of a send, 1 KiB",
        "bare cffi call copying 1 KiB",
        at_most(12),
        _bare_call,
        ("cffi",),
    ),
    Case("send/prepared", "send of a message built before", "built inside the loop", None, _prepared),
)
