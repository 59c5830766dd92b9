"""Java push consumers and those of mq in the same groups, members of either kind killed and added under load.

MQ_MIXED_SECONDS: for how long (20).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

import mq
from tests.support.cluster.java_clients import JavaClients
from tests.support.cluster.shared import ROOT, SharedCluster, unique_name
from tests.support.eventually import eventually

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(900)]

SECONDS = float(os.environ.get("MQ_MIXED_SECONDS", "20"))
PER_SECOND = 100.0  # of each producer
KEY_COUNT = 16
# A broker keeps the queue locks of a killed member for 35 s here.
DRAINED_SECONDS = 240.0


class Delivery(NamedTuple):
    """A line of a journal."""

    member: str
    broker: str
    queue_id: int
    queue_offset: int
    body: str


class Load(threading.Thread):
    """Sends m0, m1 and so on, each to the queue of its key, until it is ended."""

    def __init__(self, address: str, topic: str) -> None:
        super().__init__()
        self.acknowledged: list[str] = []
        self._address = address
        self.topic = topic
        self._ending = threading.Event()

    def run(self) -> None:
        with mq.open(self._address) as broker, mq.Producer(broker) as producer:
            number = 0
            while not self._ending.wait(1 / PER_SECOND):
                body = f"m{number}"
                message = mq.Message(self.topic, body.encode())
                producer.send(message, shard_key=number % KEY_COUNT)
                self.acknowledged.append(body)
                number += 1

    def end(self) -> list[str]:
        self._ending.set()
        self.join()
        return self.acknowledged


class Members:
    """Processes of both kinds, each a member of the same two groups, and what came to all of them."""

    def __init__(self, cluster: SharedCluster, topic: str, directory: Path, stack: ExitStack) -> None:
        self._cluster = cluster
        self.topic = topic
        self._stack = stack
        self.journals = {
            group: directory / group for group in (unique_name("ordered"), unique_name("concurrent"))
        }
        for journal in self.journals.values():
            journal.touch()

    def add_java(self, name: str) -> JavaClients:
        """A member in a JVM."""
        java = self._stack.enter_context(self._cluster.clients())
        for group, journal in self.journals.items():
            java.consume(
                group,
                [self.topic],
                consumer=f"{name}-{group}",
                orderly=group.startswith("ordered"),
                journal=str(journal),
                thread_count=4,
            )
        return java

    def add_mq(self, name: str) -> subprocess.Popen[str]:
        """A member in a Python process."""
        address = f"rocketmq://{self._cluster.name_server}"
        journals = [f"{group}={journal}" for group, journal in self.journals.items()]
        process = self._stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.mq_member", address, self.topic, name, *journals],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        self._stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        return process

    def deliveries(self, group: str) -> list[Delivery]:
        found = []
        for line in self.journals[group].read_text().splitlines():
            member, broker, queue_id, queue_offset, body = line.split(" ")
            found.append(Delivery(member, broker, int(queue_id), int(queue_offset), body))
        return found


@pytest.fixture
def members(cluster: SharedCluster, java: JavaClients, tmp_path: Path) -> Iterator[Members]:
    topic = unique_name("orders")
    java.create_topic(topic, 4)
    with ExitStack() as stack:
        yield Members(cluster, topic, tmp_path, stack)


def test_members_of_both_kinds_lose_nothing_and_keep_the_order(
    cluster: SharedCluster, java: JavaClients, members: Members
) -> None:
    address, topic = f"rocketmq://{cluster.name_server}", members.topic
    begin = time.monotonic()
    first_java, first_mq = members.add_java("java1"), members.add_mq("mq1")
    load = Load(address, topic)
    load.start()
    java.start_load(topic, "j", PER_SECOND, keys=KEY_COUNT)
    changes: list[Callable[[], object]] = [
        lambda: members.add_mq("mq2"),
        lambda: members.add_java("java2"),
        first_java.kill,
        first_mq.kill,
        lambda: members.add_mq("mq3"),
        lambda: members.add_java("java3"),
    ]
    for change in changes:
        time.sleep(SECONDS / (len(changes) + 1))
        change()
    time.sleep(max(0.0, begin + SECONDS - time.monotonic()))
    sent = load.end() + java.end_load()[0]
    for group in members.journals:
        eventually(
            lambda group=group: not lost(members, group, sent),  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            lambda group=group: f"{group} lacks {sorted(lost(members, group, sent))[:20]}",  # type: ignore[misc]  # as above
            DRAINED_SECONDS,
            pause=0.5,
        )
        deliveries = members.deliveries(group)
        assert {delivery.member.partition("-")[0] for delivery in deliveries} >= {"java1", "mq1"}
        if group.startswith("ordered"):
            assert out_of_order(deliveries) == []
        print(f"{group}: {len(sent):,} sent, {len(deliveries) - len(sent):,} came again")


def lost(members: Members, group: str, sent: list[str]) -> set[str]:
    return set(sent) - {delivery.body for delivery in members.deliveries(group)}


def out_of_order(deliveries: list[Delivery]) -> list[Delivery]:
    """Those that came for the first time after a later one of their key had come."""
    newest: dict[tuple[str, int], int] = defaultdict(lambda: -1)
    seen: set[str] = set()
    found = []
    for delivery in deliveries:
        if delivery.body in seen:
            continue
        seen.add(delivery.body)
        number = int(delivery.body[1:])
        key = delivery.body[0], number % KEY_COUNT
        if number < newest[key]:
            found.append(delivery)
        newest[key] = number
    return found
