"""A group of Java and local members, while the processes that serve the directory are killed.

MQ_MIXED_SECONDS: for how long (15).
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.store.check import problems
from tests.support.cluster.java_clients import JavaClients
from tests.support.cluster.ports import free_port
from tests.support.eventually import eventually
from tests.support.serving import Serving

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(900)]

SECONDS = float(os.environ.get("MQ_MIXED_SECONDS", "15"))
WAIT = 240.0
KEYS = 4


class Servers:
    """Two processes that serve on the same ports; one or the other is killed now and then."""

    def __init__(self, directory: Path) -> None:
        port, name_server_port = free_port(), free_port()
        self._directory = directory
        self._options = ["--share-ports", "--port", str(port), "--name-server-port", str(name_server_port)]
        self._running = [Serving(directory, *self._options) for _ in range(2)]
        self.name_server = self._running[0].name_server

    def kill_one(self) -> None:
        place = random.randrange(2)
        self._running[place].end(signal.SIGKILL)
        self._running[place] = Serving(self._directory, *self._options)

    def close(self) -> None:
        for each in self._running:
            each.end(signal.SIGKILL)


@pytest.fixture
def servers(directory: Path) -> Iterator[Servers]:
    opened = Servers(directory)
    yield opened
    opened.close()


@pytest.mark.parametrize("ordered", [False, True])
def test_nothing_is_lost_while_servers_are_killed(directory: Path, servers: Servers, ordered: bool) -> None:
    lock, ours = threading.Lock(), list[str]()

    def bill(message: mq.MessageExt) -> None:
        with lock:
            ours.append(message.body.decode())

    with mq.open(directory) as store, JavaClients(servers.name_server) as java:
        store.create_topic("orders", KEYS)
        with mq.PushConsumer(store, "billing", ordered=ordered) as consumer:
            consumer.subscribe("orders", listener=bill)
            consumer.start()
            java.consume("billing", ["orders"], orderly=ordered, heartbeat_ms=1000, route_ms=1000)
            java.start_load("orders", "n", 50, keys=KEYS)
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                time.sleep(random.uniform(2, 8))
                servers.kill_one()
            acknowledged, _ = java.end_load()
            assert len(acknowledged) > 100

            def missing() -> set[str]:
                theirs = {message.body.decode() for message in java.received("billing", 0, 0.0)}
                return set(acknowledged) - theirs - set(ours)

            eventually(lambda: not missing(), lambda: sorted(missing())[:20], WAIT, 1.0)
            java.stop_consumer("billing")
    assert list(problems(directory)) == []
