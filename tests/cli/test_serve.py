"""`serve`: its live table, and what `groups`, `topics` and `top` show of remote members."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

import mq
from tests.cli.conftest import Run, Start
from tests.support.eventually import eventually
from tests.support.serving import serving

LIMIT = 120.0
STYLING = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
# As `serve` names the client of this test: address, language, version.
CLIENT = r"127\.0\.0\.1:\d+ \(PYTHON, \d+\.\d+\.\d+\)"


class Screen:
    """What a program has written to a terminal, without its styling."""

    def __init__(self, terminal: BinaryIO) -> None:
        self._terminal = terminal
        self._written = b""

    @property
    def text(self) -> str:
        return STYLING.sub(b"", self._written).decode("utf-8", "replace")

    def wait_for(self, pattern: str, begin: int = 0) -> re.Match[str]:
        """The first match in the text from `begin` on."""
        until = time.monotonic() + LIMIT
        while not (found := re.compile(pattern).search(self.text, begin)):
            assert time.monotonic() < until, self.text[begin:]
            if select.select([self._terminal], [], [], 1.0)[0]:
                self._written += self._terminal.read(1 << 16)
        return found


@contextmanager
def remote_members(name_server: str, count: int = 1) -> Iterator[list[mq.PushConsumer]]:
    """Members of the group "billing", each with a connection of its own, which consume from "orders"."""
    brokers = [mq.open(f"rocketmq://{name_server}", timeout=60.0) for _ in range(count)]
    consumers = [mq.PushConsumer(broker, "billing") for broker in brokers]
    try:
        for consumer in consumers:
            consumer.subscribe("orders", "paid", listener=lambda _message: None)
            consumer.start()
        yield consumers
    finally:
        for consumer in consumers:
            consumer.close()
        for broker in brokers:
            broker.close()


@pytest.fixture
def store(directory: Path) -> Iterator[mq.LocalBroker]:
    with mq.open(directory) as opened:
        opened.create_topic("orders", 4).send(b"one", tags="paid")
        yield opened


def test_groups_names_remote_members_beside_local_ones(run: Run, store: mq.LocalBroker) -> None:
    group = store.group("billing")
    with (
        serving(store.path) as server,
        remote_members(server.name_server, 2),
        mq.PushConsumer(store, "billing") as local,
    ):
        local.subscribe("orders", "paid", listener=lambda _message: None)
        local.start()

        def owners() -> set[str]:
            return {state.owner.client_id for state in group.states("orders") if state.owner}

        eventually(
            lambda: len(owners()) == 3 and group.lag("orders") == 0, lambda: group.states("orders"), LIMIT
        )
        said = run("groups", "billing")
        assert (said.status, said.err) == (0, "")
        assert said.out.startswith("billing: 3 members (clustering), lag 0\n")
        assert len(set(re.findall(CLIENT, said.out))) == 2, said.out
        # Both are members by the process that serves: its id would not tell one from the other.
        remote = [member for member in group.members() if member.pid == server.process.pid]
        assert len(remote) == 2
        queues = said.out[said.out.index("\nqueue ") :]
        assert all(member.client_id in queues for member in remote), queues
        assert f"pid {os.getpid()}" in queues
        [facts] = run("groups", "billing", "--json").objects
        assert [each["pid"] for each in facts["members"]].count(server.process.pid) == 2
        hosts = [each["host"] for each in facts["members"] if each["pid"] == server.process.pid]
        assert all(re.fullmatch(CLIENT, host) for host in hosts), hosts
        assert [each["members"] for each in run("groups", "--json").objects] == [3]
        assert {each["topic"]: each["messages"] for each in run("topics", "--json").objects}["orders"] == 1
        [look] = run("top", "--json", "--count", "1").objects
        shown = [each["member"]["host"] for each in look["members"] if each["member"]]
        assert sum(bool(re.fullmatch(CLIENT, host)) for host in shown) == 2


def test_serve_shows_its_clients_in_a_live_table(start: Start, store: mq.LocalBroker) -> None:
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 150, 0, 0))
    with os.fdopen(ours, "r+b", buffering=0) as terminal:
        options = "--port", "0", "--name-server-port", "0"
        served = start("serve", *options, stdin=its, stdout=its, stderr=its)
        os.close(its)
        screen = Screen(terminal)
        name_server = screen.wait_for(r"name server (\S+), broker")[1]
        screen.wait_for(r"0 connections +requests 0/s")
        with (
            remote_members(name_server),
            mq.open(f"rocketmq://{name_server}", timeout=60.0) as client,
            mq.Producer(client) as producer,
        ):
            producer.send(mq.Message("orders", b"two", tags="paid"))
            address, language, version = r"127\.0\.0\.1:\d+", "PYTHON", r"\d+\.\d+\.\d+"
            screen.wait_for(rf"{address}[ │]+{language}[ │]+{version}[ │]+billing")
            screen.wait_for(r"[1-9]\d* connections? +requests [1-9][\d,]*/s")
        seen = len(screen.text)
        screen.wait_for("0 connections", seen)
        served.send_signal(signal.SIGINT)
        assert served.wait(LIMIT) == 0
