"""Rows into a RocketMQ cluster and through it, by Spark that is killed.

    python -m tests.spark.cluster_run --rows 1000000

A name server and two brokers are started, and an application of two executors (cluster_application.py). While
it loads, and while it copies, an executor, a worker, the JVM of the driver and its Python are killed; what
ends the application is followed by another one. In the end every row must be there, and a consumer under
mq.Once must handle each one once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import mq
from tests.spark.processes import CLUSTER, SECONDS_MAX, Process, victims_of
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.programs import Version
from tests.support.cluster.settings import BrokerPlan
from tests.support.eventually import eventually

Kill = tuple[str, float, str]  # in which topic, at which share of all rows, and which process

KILLS: tuple[Kill, ...] = (
    ("orders", 0.3, "executor"),
    ("orders", 0.6, "driver"),
    ("results", 0.2, "executor"),
    ("results", 0.4, "jvm"),
    ("results", 0.6, "worker"),
    ("results", 0.8, "driver"),
)
QUEUES = 4  # on each broker
FAILURES_MAX = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--version", choices=["5.3", "4.9"], default="5.3")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mq-cluster-run-") as place:
        run(options.rows, options.version, Path(place), lambda text: print(text, file=sys.stderr, flush=True))
    return 0


def run(
    rows: int, version: Version, place: Path, say: Callable[[str], object], kills: Sequence[Kill] = KILLS
) -> None:
    began = time.monotonic()

    def told(text: str) -> None:
        say(f"[{time.monotonic() - began:6.1f} s] {text}")

    plans = [BrokerPlan(name, version) for name in ("a", "b")]
    with (
        Cluster(plans, version=version) as cluster,
        mq.open(f"rocketmq://{cluster.name_server}", timeout=30.0) as broker,
    ):
        for topic in ("orders", "results"):
            broker.create_topic(topic, QUEUES)
        survive(broker, cluster.name_server, rows, place, told, list(kills))
        account(broker, rows, place, told)


def end_of(broker: mq.Broker, topic: str) -> int:
    return sum(queue.max_offset for queue in broker.topic(topic).queues)


def survive(
    broker: mq.Broker,
    name_servers: str,
    rows: int,
    place: Path,
    told: Callable[[str], object],
    kills: list[Kill],
) -> None:
    """Have the application do its work, however often it is killed."""
    failures = 0
    while True:
        process = Process("tests.spark.cluster_application", place, name_servers, place, CLUSTER, rows)
        try:
            jvm = int(process.line())
            told("an application runs")
            while process.driver.poll() is None:
                if kills and end_of(broker, kills[0][0]) >= kills[0][1] * rows:
                    topic, _, kind = kills.pop(0)
                    if killed(process, kind, jvm):
                        told(f"killed: {kind}, with {end_of(broker, topic):,} rows in {topic}")
                    if kind in {"jvm", "driver"}:
                        break
                time.sleep(0.05)
            else:
                code = process.driver.returncode
                told(f"the application has ended with {code}")
                if code == 0:
                    assert not kills, f"no process was killed of {kills}"
                    return
                # Spark gives its Pythons ten seconds to start, which is not always enough.
                failures += 1
                told(process.said())
                assert failures <= FAILURES_MAX, "the application fails again and again"
        finally:
            process.close()


def killed(process: Process, kind: str, jvm: int) -> bool:
    """Whether there was one to be killed."""
    until = time.monotonic() + SECONDS_MAX
    while process.driver.poll() is None and time.monotonic() < until:
        for pid in victims_of(process, kind, jvm):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        time.sleep(0.01)
    return False


def account(broker: mq.Broker, rows: int, place: Path, told: Callable[[str], object]) -> None:
    """Every row is there, and each one is handled once."""
    with mq.open(place / "handled") as handled_keys:
        orders = handled_once(broker, handled_keys, "orders", 2 * rows)
        stored = end_of(broker, "orders")
        told(f"orders: {stored:,} messages, {len(orders):,} handled once")
        numbers = Counter(int(body.partition(b" ")[0]) for body in orders)
        assert numbers == Counter(range(rows)), "a row of the load is missing, or was handled twice"
        results = handled_once(broker, handled_keys, "results", 3 * rows)
        told(f"results: {end_of(broker, 'results'):,} messages, {len(results):,} handled once")
        found = Counter(placed(body) for body in results)
        wanted = {
            (queue.broker_name, queue.queue_id, offset)
            for queue in broker.readable("orders")
            for offset in range(broker.max_offset(queue))
        }
        assert len(wanted) == stored
        assert found == Counter(wanted), "a row of the copy is missing, or was handled twice"


def placed(body: bytes) -> tuple[str, int, int]:
    row = json.loads(body)
    return row["brokerName"], row["queueId"], row["queueOffset"]


def handled_once(broker: mq.Broker, keys: mq.Broker, topic: str, size: int) -> list[bytes]:
    """The bodies that a consumer under mq.Once handles."""
    group = f"readers-of-{topic}"
    once, bodies, seen = mq.Once(keys, group, size=size), list[bytes](), list[int]()
    consumer = mq.PushConsumer(broker, group, threads=4)

    def handle(messages: list[mq.MessageExt]) -> None:
        for message in messages:
            with once(message) as is_fresh:
                if is_fresh:
                    bodies.append(message.body)
        seen.append(len(messages))

    consumer.subscribe(topic, listener=handle, batch_size=256)
    consumer.start()
    try:
        end = end_of(broker, topic)
        eventually(lambda: sum(seen) >= end, lambda: f"{sum(seen)} of {end} messages came", SECONDS_MAX)
    finally:
        consumer.close()
    return bodies


if __name__ == "__main__":
    sys.exit(main())
