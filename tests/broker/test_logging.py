"""What is logged of groups and of the leader: rare events, each once."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import mq
from mq.errors import StoreFull
from mq.store.store import Store
from tests.support import assigned

PATIENCE = 60.0

CHILD = """
import sys, mq
with mq.open(sys.argv[1]) as broker:
    consumer = mq.PushConsumer(broker, "billing", client_id="child")
    consumer.subscribe("orders", listener=print)
    consumer.start()
    print("started", flush=True)
    sys.stdin.read()
"""


def eventually(is_true: Callable[[], object]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if is_true():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mq")


def told(caplog: pytest.LogCaptureFixture, logger: str) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage()) for record in list(caplog.records) if record.name == logger
    ]


def test_members_that_join_leave_and_die_are_logged_with_their_queues(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mq.open(directory) as broker:
        broker.create_topic("orders", 1)
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as child:
            assert child.stdout
            assert child.stdout.readline() == "started\n"
            eventually(lambda: any(state.owner for state in broker.group("billing").states("orders")))
            consumer = mq.PushConsumer(broker, "billing", client_id="survivor")
            consumer.subscribe("orders", listener=print)
            consumer.start()
            child.kill()
        owns = ("INFO", "group billing: survivor owns orders/0")
        died = (
            "WARNING",
            f"group billing: child (pid {child.pid}) died without leaving: others take over its queues",
        )
        eventually(lambda: {owns, died} <= set(told(caplog, "mq.groups")))
        consumer.close()
    lines = told(caplog, "mq.groups")
    assert lines[0] == (
        "INFO",
        f"group billing: survivor (pid {os.getpid()}) joined, clustering, subscribed to orders by TAG '*'",
    )
    assert lines.count(died) == 1
    assert ("INFO", "group billing: survivor gave orders/0 up") in lines
    assert lines[-1] == ("INFO", "group billing: survivor left")


def test_a_reset_is_logged(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mq.open(directory) as broker:
        broker.create_topic("orders", 1).send(b"one")
        broker.group("billing").reset("orders", to="latest")
    assert told(caplog, "mq.groups") == [("INFO", "group billing: orders/0 goes on at 1")]


def test_a_change_of_the_leader_is_logged(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    begins = ("INFO", f"{directory}: this process leads from now on")
    ends = ("INFO", f"{directory}: this process leads no more")
    first = mq.open(directory)
    eventually(lambda: begins in told(caplog, "mq.leader"))
    with mq.open(directory):
        first.close()
        eventually(lambda: told(caplog, "mq.leader") == [begins, ends, begins])
    assert told(caplog, "mq.leader") == [begins, ends, begins, ends]


def test_what_the_leader_fails_at_is_logged_once(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def full(_store: Store) -> None:
        nonlocal calls
        calls += 1
        raise StoreFull("no space left on device", path=str(directory))

    monkeypatch.setattr(Store, "flush_log", full)
    with mq.open(directory, flush_interval=0.01):
        eventually(lambda: calls > 3)
        monkeypatch.undo()
    failed = [each for each in told(caplog, "mq.leader") if each[0] == "WARNING"]
    assert len(failed) == 1
    assert failed[0][1].startswith(f"{directory}: ")
    assert failed[0][1].endswith("failed, and is tried again: no space left on device")


def test_a_smaller_commit_is_told(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mq.open(directory) as broker:
        topic = broker.create_topic("orders", 1)
        for _ in range(5):
            topic.send(b"x")
        (queue,) = topic.queues
        assigned.commit(broker, "billing", queue.message_queue, 4)
        claim = assigned.claimed(broker, "billing", queue.message_queue)
        for offset in (4, 3, 2):
            assert claim.commit(offset)
        assert claim.committed() == 4
    text = "group billing: a commit of offset 3 of orders/0 is ignored: 4 is committed, and reset() goes back"
    assert told(caplog, "mq.groups") == [("WARNING", text)]
