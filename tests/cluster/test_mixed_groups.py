"""Java push consumers and those of mq in the same groups, members of either kind killed and added under load.

Nothing is lost. In the ordered group the order holds, and no queue has two owners at a time: the owner has
the broker's lock, which expires 35 s after it was renewed (lockMaxLiveTime; a killed member keeps it as
long). A member begins no listener call with a lock older than 30 s. So another member may begin during a call
only if that one runs for more than the 5 s between.

MQ_MIXED_SECONDS: for how long (20).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import mq
from tests.support.cluster import journal
from tests.support.cluster.java_clients import JavaClients
from tests.support.cluster.journal import Event, out_of_order, overlaps
from tests.support.cluster.shared import ROOT, SharedCluster, unique_name
from tests.support.eventually import eventually

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(900)]

SECONDS = float(os.environ.get("MQ_MIXED_SECONDS", "20"))
PER_SECOND = 100.0  # of each producer
KEY_COUNT = 16
WORK_MS = 5  # of a listener: without it, two owners of a queue would hardly be seen
LOCK_GRACE_MS = 5000  # for how long a broker keeps a lock that its owner does not count on any more
DRAINED_SECONDS = 240.0


class Load(threading.Thread):
    """Sends m0, m1 and so on, each to the queue of its key, until it is ended."""

    def __init__(self, address: str, topic: str) -> None:
        super().__init__()
        self.acknowledged: list[str] = []
        self._address = address
        self.topic = topic
        self._ending = threading.Event()

    def run(self) -> None:
        # One attempt for each message, since it has a shard key.
        with mq.open(self._address) as broker, mq.Producer(broker, timeout=60.0) as producer:
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
        self._running: dict[str, JavaClients | subprocess.Popen[str]] = {}
        for path in self.journals.values():
            path.touch()

    def add_java(self, name: str) -> None:
        """A member in a JVM."""
        java = self._stack.enter_context(self._cluster.clients())
        for group, path in self.journals.items():
            java.consume(
                group,
                [self.topic],
                consumer=f"{name}-{group}",
                slow_ms=WORK_MS,
                orderly=group.startswith("ordered"),
                journal=str(path),
                thread_count=4,
            )
        self._running[name] = java

    def add_mq(self, name: str) -> None:
        """A member in a Python process."""
        address = f"rocketmq://{self._cluster.name_server}"
        command = [sys.executable, "-m", "tests.support.cluster.mq_member", address, self.topic, name]
        journals = [f"{group}={path}" for group, path in self.journals.items()]
        process = self._stack.enter_context(
            subprocess.Popen(
                [*command, *journals],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        self._stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        self._running[name] = process

    def kill(self, name: str) -> None:
        """Kill a member and note in the journals that it has ended."""
        member = self._running.pop(name)
        member.kill()
        if isinstance(member, subprocess.Popen):
            member.wait()
        for group, path in self.journals.items():
            journal.write(path, "killed", f"{name}-{group}")

    def events(self, group: str) -> list[Event]:
        return journal.read(self.journals[group])


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
    members.add_java("java1")
    members.add_mq("mq1")
    load = Load(address, topic)
    load.start()
    java.start_load(topic, "j", PER_SECOND, keys=KEY_COUNT)
    changes: list[Callable[[], object]] = [
        lambda: members.add_mq("mq2"),
        lambda: members.add_java("java2"),
        lambda: members.kill("java1"),
        lambda: members.kill("mq1"),
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
        events = members.events(group)
        begun = [event for event in events if event.kind == "begin"]
        assert {event.member.partition("-")[0] for event in begun} >= {"java1", "mq1"}
        met = overlaps(events)
        if group.startswith("ordered"):
            assert out_of_order(events, key_of) == []
            assert [each for each in met if each.running_ms <= LOCK_GRACE_MS] == []
        print(
            f"{group}: {len(sent):,} sent, {len(begun) - len(sent):,} came again,"
            f" {len(met):,} while another member worked on the queue"
        )


def lost(members: Members, group: str, sent: list[str]) -> set[str]:
    return set(sent) - {event.body for event in members.events(group) if event.kind == "begin"}


def key_of(body: str) -> tuple[str, int]:
    """Of a body: its producer, and its key there."""
    return body[0], int(body[1:]) % KEY_COUNT
