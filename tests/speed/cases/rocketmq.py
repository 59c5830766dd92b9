"""Sends of one program on a directory against those of Java threads on a broker of RocketMQ 5.3.3, 1 KiB.

RocketMQ needs many threads to be at its best: 32 of them send while each waits for its answer. Ours is one
thread of one process where sends need no flush, and as many threads as RocketMQ's where each waits for the
disk. Consumption against it is `consume/rocketmq`. The broker is paused while ours has its turn.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from tests.speed import ours, servers
from tests.speed.cases.case import KIB, Bench, Case, rate_of
from tests.speed.cases.cluster import BATCH_COUNT, SECONDS_FACTOR, rate_turn
from tests.speed.cases.sync_flush import open_sync
from tests.speed.goal import Goal, at_least
from tests.speed.pairing import Measurement, Turn, paired
from tests.speed.peers import rocketmq_java
from tests.speed.peers.rocketmq_java import JavaClient
from tests.speed.processes import total_rate
from tests.speed.workspace import fresh, settle

THREADS = 32


def _against(
    ours_rate: Callable[[Bench], float],
    theirs: Callable[[JavaClient, float], dict[str, float]],
    flush: str = "ASYNC_FLUSH",
) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        with fresh(bench.data) as directory, servers.real_broker(directory, flush) as real:
            client = JavaClient(real.name_server, servers.new_topic(real.name_server))

            def local() -> float:
                with real.resting():
                    return ours_rate(bench)

            def remote() -> Turn:
                settle(bench.plan.memory_size)
                return rate_turn(theirs(client, SECONDS_FACTOR * bench.plan.seconds))

            return paired("msg/s", local, remote, bench.plan.rounds, bench.say)

    return measure


def _sends(bench: Bench) -> float:
    return rate_of(bench, ours.Sending, lambda queue: queue.send_each)


def _batches(bench: Bench) -> float:
    return rate_of(bench, ours.Sending, lambda queue: queue.send_batch_built, per_call=BATCH_COUNT)


def _sync_sends(bench: Bench) -> float:
    with fresh(bench.data) as directory:
        settle(bench.plan.memory_size)
        return total_rate(
            lambda: open_sync(directory / "queue", os.urandom(KIB)),
            processes=1,
            threads=THREADS,
            seconds=SECONDS_FACTOR * bench.plan.seconds,
            chunk_count=1,
        )


def _case(name: str, title: str, against: str, goal: Goal, measure: Callable[[Bench], Measurement]) -> Case:
    return Case(f"rocketmq/{name}", title, against, goal, measure, tools=rocketmq_java.TOOLS)


CASES = (
    _case(
        "send",
        "send, 1 KiB, one by one",
        f"{THREADS} Java threads on {servers.TITLE}",
        at_least(20),
        _against(_sends, lambda client, seconds: client.send(THREADS, seconds)),
    ),
    _case(
        "batch",
        f"batches of {BATCH_COUNT}, built in the loop",
        f"the same of the Java client on {servers.TITLE}",
        at_least(10),
        _against(_batches, lambda client, seconds: client.send_batches(seconds, BATCH_COUNT)),
    ),
    _case(
        "sync",
        f"sync send of {THREADS} threads",
        f"{THREADS} Java threads on {servers.TITLE} with SYNC_FLUSH",
        at_least(2),
        _against(_sync_sends, lambda client, seconds: client.send(THREADS, seconds), "SYNC_FLUSH"),
    ),
)
