"""The push consumer on a deep backlog, one process, 1 KiB: a listener that does nothing.

A peer gets and acknowledges one by one. Ours has four queues and 20 threads, which is what a user gets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import Any

from tests.speed.cases.case import KIB, Bench, Case, rate_of
from tests.speed.consuming import Consuming, Marks
from tests.speed.goal import Goal, at_least
from tests.speed.pairing import Measurement, paired
from tests.speed.peers import lmdb, rocketmq, sqlite
from tests.speed.peers.queue import Peer, Reader
from tests.speed.workspace import fresh, settle

TITLE = "push consumer, message by message, 1 KiB"
BATCH_SIZE = 64
SMALL_SIZE = 100
SHALLOW_COUNT = 1000


def ours_rate(bench: Bench, **options: Any) -> float:
    with fresh(bench.data) as directory, closing(Consuming(directory / "queue", os.urandom(KIB))) as queue:
        queue.fill(bench.plan.read_count)
        settle(bench.plan.memory_size)
        return queue.drain_rate(**options)


def _against(peer: Peer[Reader]) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        def theirs() -> float:
            return rate_of(
                bench,
                peer.open,
                lambda queue: queue.read_each,
                prepare=lambda queue: queue.send_each(bench.plan.read_count),
            )

        return paired("msg/s", lambda: ours_rate(bench), theirs, bench.plan.rounds, bench.say)

    return measure


def _against_rocketmq(bench: Bench) -> Measurement:
    with fresh(bench.data) as directory, rocketmq.running(bench.cache, directory) as peer:

        def theirs() -> float:
            peer.fill(bench.plan.read_count, KIB)
            settle(bench.plan.memory_size)
            return peer.drain(bench.plan.read_count)

        return paired("msg/s", lambda: ours_rate(bench), theirs, bench.plan.rounds, bench.say)


def _by_batches(bench: Bench) -> Measurement:
    def batches() -> float:
        return ours_rate(bench, batch_size=BATCH_SIZE)

    return paired("msg/s", batches, lambda: ours_rate(bench), bench.plan.rounds, bench.say)


def _deep(bench: Bench) -> Measurement:
    """Deep: read on through the large store, turn after turn. Shallow: send 1,000, consume these, again.

    Both count in the listener, from the first of some messages to the last, so that neither start nor wake-up
    count.
    """
    body = os.urandom(SMALL_SIZE)
    turn_count = min(bench.plan.read_count, bench.plan.backlog_count // (2 * (bench.plan.rounds + 1)))
    with (
        fresh(bench.data) as directory,
        closing(Consuming(directory / "deep", body, queue_count=1)) as deep,
        closing(Consuming(directory / "shallow", body, queue_count=1)) as shallow,
    ):
        bench.say(f"filling {bench.plan.backlog_count:,} messages")
        deep.fill(bench.plan.backlog_count)
        settle(bench.plan.memory_size)

        def deep_rate() -> float:
            deep.top_up(turn_count)
            marks = Marks()
            marks.set(1, turn_count)
            with deep.consumer(marks) as consumer:
                consumer.start()
                return (turn_count - 1) / marks.seconds()

        def shallow_rate() -> float:
            marks, seconds, bursts = Marks(), 0.0, turn_count // SHALLOW_COUNT
            with shallow.consumer(marks) as consumer:
                consumer.start()
                for burst in range(bursts):
                    marks.set(1 + burst * SHALLOW_COUNT, (burst + 1) * SHALLOW_COUNT)
                    shallow.fill(SHALLOW_COUNT)
                    seconds += marks.seconds()
            return bursts * (SHALLOW_COUNT - 1) / seconds

        return paired("msg/s", deep_rate, shallow_rate, bench.plan.rounds, bench.say)


def _case(name: str, peer: Peer[Reader], goal: Goal) -> Case:
    return Case(f"consume/{name}", TITLE, f"{peer}, get + ack", goal, _against(peer), (peer.module,))


CASES = (
    _case("lmdb", lmdb.NOSYNC, at_least(1.5)),
    _case("lmdb-default-map", lmdb.NOSYNC_DEFAULT_MAP, at_least(1.5)),
    _case("sqlite", sqlite.NORMAL, at_least(8)),
    Case(
        "consume/rocketmq",
        TITLE,
        "RocketMQ 5.3.3 and its Java push consumer",
        at_least(15),
        _against_rocketmq,
        tools=rocketmq.TOOLS,
    ),
    Case(
        "consume/batch-64",
        "push consumer, batch_size=64",
        "message by message",
        at_least(2.5),
        _by_batches,
    ),
    Case(
        "consume/backlog",
        "push consumer with 10 M waiting",
        "with 1,000 waiting",
        at_least(0.95),
        _deep,
    ),
)
