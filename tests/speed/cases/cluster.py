"""mq on a cluster: its clients against RocketMQ's own on one broker of RocketMQ 5.3, 1 KiB, async flush.

The Java client runs in a process of its own for each turn, which warms up for a second or two before it
measures. A backlog is stored once; each turn consumes it with a new group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import mq
from tests.speed import servers
from tests.speed.cases.case import Bench, Case
from tests.speed.goal import Goal, at_least, at_most
from tests.speed.pairing import Measurement, Turn, alone, paired
from tests.speed.peers import rocketmq_java
from tests.speed.peers.rocketmq_java import JavaClient
from tests.speed.peers.rocketmq_python import CPP, GRPC
from tests.speed.peers.rocketmq_python import measure as measure_python
from tests.speed.plan import Plan
from tests.speed.remote import MqClient
from tests.speed.workspace import fresh, settle
from tests.support.cluster.proxy import Proxy
from tests.support.cluster.shared import unique_name

AGAINST = "the Java client of RocketMQ 5.3.3"
SECONDS_FACTOR = 5
"""A send over a connection takes longer than one into a file: a turn by time is this much longer."""
BATCH_COUNT = 500
PAUSE_US = 1000
LATENCY_COUNT_MAX = 2000
IDLE_QUEUE_COUNT = 100
PYTHON_COUNT_MIN, PYTHON_COUNT_MAX = 200, 5000
SETTLE_SECONDS = 2.0
TCP_ESTABLISHED = "01"

Measures = Callable[[MqClient | JavaClient, Plan], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Clients:
    """Both clients on one topic of one broker."""

    ours: MqClient
    theirs: JavaClient


@contextmanager
def _clients(bench: Bench) -> Iterator[Clients]:
    with fresh(bench.data) as directory, servers.real_broker(directory) as real:
        topic = servers.new_topic(real.name_server)
        yield Clients(MqClient(real.name_server, topic), JavaClient(real.name_server, topic))


def rate_turn(figures: dict[str, float]) -> Turn:
    """The rate, and beside it the client's processor time for a message."""
    return Turn(figures["rate"], {"client µs": figures["cpu_us"]})


def latency_turn(figures: dict[str, float]) -> Turn:
    """The median, and beside it the slowest in a hundred."""
    return Turn(figures["p50_us"], {"p99 µs": figures["p99_us"]})


def send_threads(threads: int) -> Measures:
    """Sync sends of so many threads."""
    return lambda client, plan: client.send(threads, SECONDS_FACTOR * plan.seconds)


def send_async(client: MqClient | JavaClient, plan: Plan) -> dict[str, float]:
    """Sends whose results come later."""
    return client.send_async(SECONDS_FACTOR * plan.seconds)


def send_batches(client: MqClient | JavaClient, plan: Plan) -> dict[str, float]:
    """Batches of 500."""
    return client.send_batches(SECONDS_FACTOR * plan.seconds, BATCH_COUNT)


def latency(client: MqClient | JavaClient, plan: Plan) -> dict[str, float]:
    """A message each millisecond, so that the receiver sleeps when one comes. A new group would begin with
    the messages of the turn before, so each turn has a topic of its own."""
    count = min(plan.round_trip_count, LATENCY_COUNT_MAX)
    client = replace(client, topic=servers.new_topic(client.name_server))
    return client.latency(unique_name("group"), count, PAUSE_US)


def _measure(
    unit: str, measures: Measures, turn_of: Callable[[dict[str, float]], Turn]
) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        with _clients(bench) as clients:

            def turn(client: MqClient | JavaClient) -> Turn:
                settle(bench.plan.memory_size)
                return turn_of(measures(client, bench.plan))

            return paired(
                unit, partial(turn, clients.ours), partial(turn, clients.theirs), bench.plan.rounds, bench.say
            )

    return measure


def _drain(processes: int) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        count = bench.plan.read_count
        with _clients(bench) as clients:
            bench.say(f"filling {count:,} messages")
            clients.theirs.fill(count)

            def ours() -> Turn:
                settle(bench.plan.memory_size)
                return rate_turn(clients.ours.drain(unique_name("group"), count, processes))

            def theirs() -> Turn:
                settle(bench.plan.memory_size)
                return rate_turn(clients.theirs.drain(unique_name("group"), count))

            return paired("msg/s", ours, theirs, bench.plan.rounds, bench.say)

    return measure


def _python(client: tuple[str, str], verb: str) -> Callable[[Bench], Measurement]:
    """Processor time of the client's process for each message. `verb`: send or consume."""

    def measure(bench: Bench) -> Measurement:
        count = min(max(bench.plan.round_trip_count, PYTHON_COUNT_MIN), PYTHON_COUNT_MAX)
        with (
            fresh(bench.data) as directory,
            servers.real_broker(directory) as real,
            _address(client, directory, real.name_server) as address,
        ):

            def ours() -> Turn:
                settle(bench.plan.memory_size)
                client = MqClient(real.name_server, servers.new_topic(real.name_server))
                sent = client.send_count(count)
                figures = sent if verb == "send" else client.drain(unique_name("group"), count)
                return Turn(figures["cpu_us"], {"msg/s": figures["rate"]})

            def theirs() -> Turn:
                topic = servers.new_topic(real.name_server)
                settle(bench.plan.memory_size)
                figures = measure_python(client, address, topic, count, 1024)
                return Turn(figures[f"{verb}_cpu_us"], {"msg/s": figures[f"{verb}_rate"]})

            return paired("µs", ours, theirs, bench.plan.rounds, bench.say)

    return measure


@contextmanager
def _address(client: tuple[str, str], directory: Path, name_server: str) -> Iterator[str]:
    """Where a Python client connects to: the name server, or a proxy before it."""
    if client == CPP:
        yield name_server
        return
    proxy = Proxy(directory / "proxy", name_server, at_full_speed=True)
    try:
        proxy.start()
        yield proxy.address
    finally:
        proxy.close()


def _idle(bench: Bench) -> Measurement:
    """The share of a core of a consumer for which no message comes; and that it has one connection."""
    with fresh(bench.data) as directory, servers.real_broker(directory) as real:
        topic = servers.new_topic(real.name_server, IDLE_QUEUE_COUNT)
        with (
            mq.open(f"rocketmq://{real.name_server}", timeout=servers.TIMEOUT_SECONDS) as broker,
            mq.PushConsumer(broker, unique_name("group")) as consumer,
        ):
            consumer.subscribe(topic, listener=lambda _: None)
            consumer.start()
            until = time.perf_counter() + servers.TIMEOUT_SECONDS
            while sum(queue.topic == topic for queue in consumer.assignment()) < IDLE_QUEUE_COUNT:
                assert time.perf_counter() < until, "the consumer does not get its queues"
                time.sleep(0.01)
            time.sleep(SETTLE_SECONDS)

            def turn() -> Turn:
                begin, begin_cpu = time.perf_counter(), time.process_time()
                time.sleep(bench.plan.stall_seconds)
                cpu = time.process_time() - begin_cpu
                connections = connections_to(int(real.broker.address.rpartition(":")[2]))
                assert connections == 1, f"{connections} connections to the broker"
                return Turn(100 * cpu / (time.perf_counter() - begin), {"connections": connections})

            return alone("%", turn, bench.plan.rounds, bench.say)


def connections_to(port: int) -> int:
    """How many TCP connections to this port of any host this process has."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # That of the listing itself is closed.
            own.add(str(descriptor.readlink()))
    found = 0
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            is_there = int(fields[2].rpartition(":")[2], 16) == port and fields[3] == TCP_ESTABLISHED
            found += is_there and f"socket:[{fields[9]}]" in own
    return found


def _case(
    name: str, title: str, goal: Goal, measure: Callable[[Bench], Measurement], against: str = AGAINST
) -> Case:
    return Case(f"cluster/{name}", title, against, goal, measure, tools=rocketmq_java.TOOLS)


def _cpu(name: str, client: tuple[str, str], verb: str, title: str) -> Case:
    return _case(
        f"cpu-{verb}-{name}",
        f"on a cluster: processor time to {title} a message",
        at_most(1),
        _python(client, verb),
        client[0],
    )


CASES = (
    _case(
        "send-1",
        "on a cluster: sync send, 1 thread",
        at_least(0.7),
        _measure("msg/s", send_threads(1), rate_turn),
    ),
    _case(
        "send-8",
        "on a cluster: sync send, 8 threads",
        at_least(0.7),
        _measure("msg/s", send_threads(8), rate_turn),
    ),
    _case("send-async", "on a cluster: send_async", at_least(0.8), _measure("msg/s", send_async, rate_turn)),
    _case(
        "batch-500", "on a cluster: batches of 500", at_least(0.9), _measure("msg/s", send_batches, rate_turn)
    ),
    _case("drain", "on a cluster: push consumption of a backlog", at_least(0.7), _drain(1)),
    _case("drain-2", "on a cluster: push consumption over 2 processes", at_least(1), _drain(2)),
    _case(
        "latency", "on a cluster: send to listener, p50", at_most(1.2), _measure("µs", latency, latency_turn)
    ),
    _cpu("cpp", CPP, "send", "send"),
    _cpu("grpc", GRPC, "send", "send"),
    _cpu("cpp", CPP, "consume", "consume"),
    _cpu("grpc", GRPC, "consume", "consume"),
    _case(
        "idle",
        f"on a cluster: idle push consumer of {IDLE_QUEUE_COUNT} queues, share of a core",
        at_most(1, "%"),
        _idle,
        "fixed limit",
    ),
)
