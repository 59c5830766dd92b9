"""A group of Java and local members: members of both kinds, and the processes that serve the directory, are
killed and started in random order under load.

Nothing is lost. In an ordered group each queue comes in order, and has one owner at a time. A Java member
begins no listener call with a lock that it renewed over 30 s ago; the server keeps the lock for 60 s. So
another member may begin during a call only if that call runs for more than the 30 s between.

MQ_MIXED_SECONDS: for how long (15).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

import mq
from mq.store.check import problems
from tests.support.cluster import journal
from tests.support.cluster.java_clients import JavaClients
from tests.support.cluster.journal import Event, out_of_order, overlaps
from tests.support.cluster.ports import free_port
from tests.support.cluster.shared import ROOT
from tests.support.eventually import eventually
from tests.support.serving import Serving

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(900)]

SECONDS = float(os.environ.get("MQ_MIXED_SECONDS", "15"))
WAIT = 240.0
QUEUE_COUNT = 4
PER_SECOND = 100
BURST = 400  # messages, half a second's work
WORK_MS = 5  # of a listener, as in mq_member: without it, two owners of a queue would hardly be seen
LOCK_GRACE_MS = 30_000


class Servers:
    """Two processes that serve on the same ports; one or the other is killed now and then."""

    def __init__(self, directory: Path) -> None:
        port, name_server_port = free_port(), free_port()
        self._directory, self._bursts = directory, count()
        self._options = ["--share-ports", "--port", str(port), "--name-server-port", str(name_server_port)]
        self._running = [Serving(directory, *self._options) for _ in range(2)]
        self.name_server = self._running[0].name_server

    def kill_one(self) -> None:
        """While its clients hold more than they have consumed: they go on with that."""
        with mq.open(self._directory) as store:
            for _ in range(BURST):
                store.topic("orders").send(b"burst%d" % next(self._bursts))
        place = random.randrange(2)
        self._running[place].end(signal.SIGKILL)
        self._running[place] = Serving(self._directory, *self._options)

    def close(self) -> None:
        for each in self._running:
            each.end(signal.SIGKILL)


class Members:
    """Processes of both kinds in one group, and the journal of what came to them."""

    def __init__(self, directory: Path, name_server: str, group: str, path: Path, stack: ExitStack) -> None:
        self._directory, self._name_server, self.group, self._path = directory, name_server, group, path
        self._stack = stack
        self._numbers = count(1)
        self._java = dict[str, JavaClients]()
        self._local = dict[str, subprocess.Popen[str]]()
        path.touch()

    def add_java(self) -> None:
        name = f"java{next(self._numbers)}"
        java = self._stack.enter_context(JavaClients(self._name_server))
        java.consume(
            self.group,
            ["orders"],
            consumer=f"{name}-{self.group}",
            orderly=self.group.startswith("ordered"),
            heartbeat_ms=1000,
            route_ms=1000,
            slow_ms=WORK_MS,
            thread_count=4,
            journal=str(self._path),
        )
        self._java[name] = java

    def add_local(self) -> None:
        name = f"local{next(self._numbers)}"
        command = [sys.executable, "-m", "tests.support.cluster.mq_member", str(self._directory), "orders"]
        member = self._stack.enter_context(
            subprocess.Popen(
                [*command, name, f"{self.group}={self._path}"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        self._stack.callback(member.kill)
        assert member.stdout is not None
        assert member.stdout.readline() == "started\n"
        self._local[name] = member

    def replace_java(self) -> None:
        name = random.choice(list(self._java))
        self._kill(name, self._java.pop(name))
        self.add_java()

    def replace_local(self) -> None:
        name = random.choice(list(self._local))
        self._kill(name, self._local.pop(name))
        self.add_local()

    def _kill(self, name: str, member: JavaClients | subprocess.Popen[str]) -> None:
        """The journal has it before the server is told: another member may begin at once. The member is
        stopped meanwhile, so it begins nothing after that line."""
        os.kill(member.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, member.pid, os.WSTOPPED | os.WNOWAIT)
        journal.write(self._path, "killed", f"{name}-{self.group}")
        member.kill()
        if isinstance(member, subprocess.Popen):
            member.wait()

    def begun(self) -> list[Event]:
        return [event for event in self.events() if event.kind == "begin"]

    def events(self) -> list[Event]:
        return journal.read(self._path)


@pytest.fixture
def servers(directory: Path) -> Iterator[Servers]:
    opened = Servers(directory)
    yield opened
    opened.close()


@pytest.fixture(params=["concurrent", "ordered"])
def members(
    request: pytest.FixtureRequest, directory: Path, servers: Servers, tmp_path: Path
) -> Iterator[Members]:
    with mq.open(directory) as store:
        store.create_topic("orders", QUEUE_COUNT, ordered=request.param == "ordered")
    with ExitStack() as stack:
        yield Members(directory, servers.name_server, request.param, tmp_path / "journal", stack)


def test_nothing_is_lost_and_the_order_holds_while_servers_and_members_are_killed(
    directory: Path, servers: Servers, members: Members
) -> None:
    changes = [servers.kill_one, members.replace_java, members.replace_local]
    made = Counter[str]()
    for _ in range(2):
        members.add_local()
    members.add_java()
    with JavaClients(servers.name_server) as java:
        java.start_load("orders", "n", PER_SECOND, keys=QUEUE_COUNT)
        eventually(lambda: kinds(members.begun()) == {"java", "local"}, members.begun, WAIT, 0.2)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until or len(made) < len(changes):
            # Each kind of change in turn at first, so that a short run has all of them.
            for change in random.sample(changes, len(changes)):
                time.sleep(random.uniform(0.5, 3))
                change()
                made[change.__name__] += 1
        acknowledged, failed = java.end_load()
    assert len(acknowledged) > 100
    eventually(lambda: not lost(members, acknowledged), lambda: f"{lost(members, acknowledged)}", WAIT, 0.5)
    events, begun = members.events(), members.begun()
    met = overlaps(events)
    print(
        f"{members.group}: {dict(made)}; {len(acknowledged):,} acknowledged, {len(failed):,} failed,"
        f" {len(begun) - len({each.body for each in begun}):,} came again, {len(met):,} while another"
        " member worked on the queue"
    )
    if members.group == "ordered":
        assert late(begun) == []
        assert [each for each in met if each.running_ms <= LOCK_GRACE_MS] == []
    assert list(problems(directory)) == []


def kinds(begun: list[Event]) -> set[str]:
    return {event.member.partition("-")[0].rstrip("0123456789") for event in begun}


def lost(members: Members, acknowledged: list[str]) -> list[str]:
    return sorted(set(acknowledged) - {event.body for event in members.begun()})[:20]


def late(begun: list[Event]) -> list[Event]:
    """Messages that came for the first time after a later one of their queue had come."""
    found = []
    for queue in {event.queue for event in begun}:
        of_queue = [each for each in begun if each.queue == queue]
        found += out_of_order((each._replace(body=f"n{each.queue_offset}") for each in of_queue), str.isalpha)
    return found
