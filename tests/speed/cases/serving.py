"""RocketMQ's Java client on a store that mq serves, against the same client on a broker of RocketMQ 5.3.

Each turn is a client process of its own, 1 KiB, async flush. While mq has its turn the broker is paused: an
idle one of 5.3 takes a part of a core. Two serving processes have a port each, and a client process each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from tests.speed import servers
from tests.speed.cases.case import Bench, Case
from tests.speed.cases.cluster import (
    SECONDS_FACTOR,
    Measures,
    latency,
    latency_turn,
    rate_turn,
    send_batches,
    send_threads,
)
from tests.speed.goal import Goal, at_least, at_most
from tests.speed.pairing import Measurement, Turn, paired
from tests.speed.peers import rocketmq_java
from tests.speed.peers.rocketmq_java import JavaClient
from tests.speed.workspace import fresh, settle
from tests.support.cluster.shared import unique_name

AGAINST = f"the same client on {servers.TITLE}"


@dataclass(frozen=True, slots=True)
class Sides:
    """A client for each serving process of mq, as many for the broker of RocketMQ, and that broker."""

    ours: Sequence[JavaClient]
    theirs: Sequence[JavaClient]
    real: servers.RealBroker


@contextmanager
def _sides(bench: Bench, processes: int = 1) -> Iterator[Sides]:
    with (
        fresh(bench.data) as directory,
        servers.real_broker(directory) as real,
        servers.serving(directory / "queue", processes) as serving,
    ):
        topic = servers.new_topic(serving[0].name_server)
        ours = [JavaClient(server.name_server, topic) for server in serving]
        there = JavaClient(real.name_server, servers.new_topic(real.name_server))
        yield Sides(ours, [there] * processes, real)


def _in_turns(
    bench: Bench, sides: Sides, unit: str, turn: Callable[[Sequence[JavaClient]], Turn]
) -> Measurement:
    def ours() -> Turn:
        with sides.real.resting():
            settle(bench.plan.memory_size)
            return turn(sides.ours)

    def theirs() -> Turn:
        settle(bench.plan.memory_size)
        return turn(sides.theirs)

    return paired(unit, ours, theirs, bench.plan.rounds, bench.say)


def _measure(
    unit: str, measures: Measures, turn_of: Callable[[dict[str, float]], Turn]
) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        with _sides(bench) as sides:
            return _in_turns(bench, sides, unit, lambda clients: turn_of(measures(clients[0], bench.plan)))

    return measure


def _send_to_two(threads: int) -> Callable[[Bench], Measurement]:
    """Two processes serve. One thread sends to one of them; several, from two clients, to both."""

    def measure(bench: Bench) -> Measurement:
        each = max(1, threads // 2)

        def send(client: JavaClient) -> dict[str, float]:
            return client.send(each, SECONDS_FACTOR * bench.plan.seconds)

        def turn(clients: Sequence[JavaClient]) -> Turn:
            used = clients[: threads // each]
            with ThreadPoolExecutor(len(used)) as pool:
                figures = list(pool.map(send, used))
            return Turn(sum(found["rate"] for found in figures), {"client µs": figures[0]["cpu_us"]})

        with _sides(bench, processes=2) as sides:
            return _in_turns(bench, sides, "msg/s", turn)

    return measure


def _drain(bench: Bench) -> Measurement:
    count = bench.plan.read_count
    with _sides(bench) as sides:
        bench.say(f"filling {count:,} messages")
        for client in (*sides.ours, *sides.theirs):
            client.fill(count)

        def turn(clients: Sequence[JavaClient]) -> Turn:
            return rate_turn(clients[0].drain(unique_name("group"), count))

        return _in_turns(bench, sides, "msg/s", turn)


def _case(name: str, title: str, goal: Goal, measure: Callable[[Bench], Measurement]) -> Case:
    return Case(
        f"serve/{name}",
        f"Java client on a served store: {title}",
        AGAINST,
        goal,
        measure,
        tools=rocketmq_java.TOOLS,
    )


CASES = (
    _case("send-1", "sync send, 1 thread", at_least(0.8), _measure("msg/s", send_threads(1), rate_turn)),
    _case("send-8", "sync send, 8 threads", at_least(0.8), _measure("msg/s", send_threads(8), rate_turn)),
    _case("send-1-of-2", "sync send, 1 thread, 2 serving processes", at_least(1), _send_to_two(1)),
    _case(
        "send-8-of-2", "sync send, 2 clients of 4 threads, 2 serving processes", at_least(1), _send_to_two(8)
    ),
    _case("batch-500", "batches of 500", at_least(1), _measure("msg/s", send_batches, rate_turn)),
    _case("drain", "push consumption of a backlog", at_least(1), _drain),
    _case("latency", "send to listener, p50", at_most(1), _measure("µs", latency, latency_turn)),
)
