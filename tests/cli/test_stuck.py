"""Each reason for which a queue does not move is shown by `groups`, and explained in the documents."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.cli.verbs.groups import SILENT
from mq.client.engine import dispatcher
from tests.cli.conftest import ROOT, Run
from tests.support import assigned

EXPLAINED = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
PATIENCE = 60.0


@pytest.fixture
def broker(directory: Path) -> Iterator[mq.LocalBroker]:
    with mq.open(directory) as broker:
        topic = broker.create_topic("orders", 1)
        for number in range(10):
            topic.send(b"order %d" % number)
        yield broker


@contextmanager
def consumer(broker: mq.Broker, listener: Any, **options: Any) -> Iterator[mq.PushConsumer]:
    with mq.PushConsumer(broker, "billing", **options) as consumer:
        consumer.subscribe("orders", listener=listener)
        consumer.start()
        yield consumer


def reason(run: Run, broker: mq.Broker, beginning: str) -> str:
    """The reason that `groups` gives once there is one that begins so; it must be explained."""
    group = broker.group("billing")
    deadline = time.monotonic() + PATIENCE
    while not any(state.reason.startswith(beginning) for state in group.states("orders")):
        assert time.monotonic() < deadline, group.states("orders")
        time.sleep(0.02)
    answer = run("groups", "billing", "--json")
    assert answer.status == 0, answer.err
    [shown] = [queue for queue in answer.objects[0]["queues"] if queue["topic"] == "orders"]
    explained = "|".join(re.escape(part) for cell in EXPLAINED for part in re.findall(r"`(.*?)`", cell))
    pattern = explained.replace("…", ".*").replace(r"\ N\ ", r"\ \d+\ ")
    pattern = pattern.replace(r"process\ A", r"process\ \d+").replace(r"pid\ B", r"pid\ \d+")
    assert re.fullmatch(pattern, shown["reason"]), shown["reason"]
    return str(shown["reason"])


def test_a_listener_that_hangs(run: Run, broker: mq.LocalBroker) -> None:
    done = threading.Event()
    with consumer(broker, lambda _: done.wait()):
        assert "test_stuck.py:" in reason(run, broker, "listener running since")
        done.set()


def test_listeners_that_hang_in_all_threads(run: Run, broker: mq.LocalBroker) -> None:
    done = threading.Event()
    with consumer(broker, lambda _: done.wait(), threads=2, consume_timeout=0.5):
        # Their messages are sent back, and no thread is left for the others.
        assert "test_stuck.py:" in reason(run, broker, "all 2 threads are in listeners")
        done.set()


def test_an_owner_that_is_stopped(run: Run, broker: mq.LocalBroker, directory: Path) -> None:
    script = (
        f"import mq, sys; broker = mq.open({str(directory)!r}, duties=False)\n"
        "consumer = mq.PullConsumer(broker, 'billing'); consumer.subscribe('orders')\n"
        "print(len(consumer.poll(60.0)), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline()
            other.send_signal(signal.SIGSTOP)
            assert f"kill -CONT {other.pid}" in reason(run, broker, f"process {other.pid}")
        finally:
            other.kill()


def test_what_failed_is_shown_until_it_is_consumed(run: Run, broker: mq.LocalBroker) -> None:
    def fail(_: mq.MessageExt) -> None:
        raise mq.Retry(delay_level=18)

    with consumer(broker, fail):
        group = broker.group("billing")
        deadline = time.monotonic() + PATIENCE
        while group.retrying() != {"orders": 10} or group.lag("orders") != 10:
            assert time.monotonic() < deadline, (group.retrying(), group.lag("orders"))
            time.sleep(0.02)
        [shown] = run("groups", "billing", "--json").objects
        assert (shown["lag"], shown["retrying"]) == (10, {"orders": 10})
        assert "lag 10, 10 of which failed and wait for another attempt" in run("groups", "billing").out
        [listed] = run("groups", "--json").objects
        assert (listed["lag"], listed["topics"]["orders"], listed["retrying"]) == (10, 10, {"orders": 10})
        assert run("groups").out.split("orders")[1].split()[:2] == ["10", "10"]
        [looked] = run("top", "--json", "--count", "1").objects
        assert {each["topic"]: each["retrying"] for each in looked["groups"]}["orders"] == 10


def test_a_queue_that_does_not_move_without_a_word(run: Run, broker: mq.LocalBroker) -> None:
    membership = broker.consumer_groups.join(
        "billing",
        client_id="silent",
        model="clustering",
        consume_type="push",
        ordered=False,
        subscriptions=[mq.Subscription("orders")],
    )
    assert membership.claim(broker.readable("orders")[0])
    [shown] = run("groups", "billing", "--json").objects
    assert [(each["reason"], each["consumed_per_s"]) for each in shown["queues"]] == [(SILENT, 0.0)]
    assert SILENT in " ".join(run("groups", "billing").out.split())  # On two lines of 80 columns.


def test_a_listener_that_fails_in_order(run: Run, broker: mq.LocalBroker) -> None:
    def fail(_: mq.MessageExt) -> None:
        raise mq.Retry(suspend_ms=30_000)

    with consumer(broker, fail, ordered=True):
        assert "attempt 1 failed" in reason(run, broker, "suspended until")


def test_a_consumer_that_is_paused(run: Run, broker: mq.LocalBroker) -> None:
    with mq.PushConsumer(broker, "billing") as paused:
        paused.subscribe("orders", listener=print)
        paused.suspend()
        paused.start()
        assert reason(run, broker, "paused") == "paused"


def test_a_pull_consumer_that_is_paused_or_does_not_ask(run: Run, broker: mq.LocalBroker) -> None:
    with mq.PullConsumer(broker, "billing") as reports:
        reports.subscribe("orders")
        assert reports.poll(PATIENCE, count_max=1)
        reason(run, broker, "its consumer asked for messages last at")
        reports.pause(broker.topic("orders").queues)
        assert reason(run, broker, "paused") == "paused by its consumer"


def test_more_in_memory_than_may_be(
    run: Run, broker: mq.LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "NOTE_SECONDS", 3600.0)  # From then on its listener is what it waits for.
    done = threading.Event()
    for number in range(10):
        broker.topic("orders").send(b"order %d" % number)
    with consumer(broker, lambda _: done.wait(), threads=1, pull_threshold_for_queue=1):
        try:
            assert reason(run, broker, "flow control").endswith(" messages")
        finally:
            done.set()


def test_a_topic_without_users_is_no_longer_refreshed(run: Run, broker: mq.LocalBroker) -> None:
    broker.create_topic("others")
    with consumer(broker, print) as billing:
        billing.subscribe("others", listener=print)
    broker.group("billing").reset("orders", to="earliest")
    assert reason(run, broker, "no member").endswith("no live consumer")
    with mq.PushConsumer(broker, "billing") as billing:
        billing.subscribe("others", listener=print)
        billing.start()
        assert reason(run, broker, "no member subscribes") == "no member subscribes"


def test_a_queue_that_is_allocated_to_no_member(run: Run, broker: mq.LocalBroker) -> None:
    with consumer(broker, print, allocate=lambda *_: []):
        reason(run, broker, "no member has taken it yet")


def test_a_function_that_shares_out_nonsense(run: Run, broker: mq.LocalBroker) -> None:
    def nonsense(*_: object) -> list[object]:
        return ["nonsense"]

    with consumer(broker, print, allocate=nonsense):
        reason(run, broker, "no member has taken it yet")


def test_a_queue_that_another_one_has_to_release(run: Run, broker: mq.LocalBroker) -> None:
    queue = broker.readable("orders")[0]
    has_it, wants_it = (
        broker.consumer_groups.join(
            "billing",
            client_id=client_id,
            model="clustering",
            consume_type="push",
            ordered=False,
            subscriptions=[mq.Subscription("orders")],
        )
        for client_id in "ab"
    )
    assert has_it.claim(queue)
    assert wants_it.claim(queue) is None
    pid = os.getpid()
    assert reason(run, broker, "process") == f"process {pid} is waiting for pid {pid} to release it"


def test_an_offset_beyond_the_end(run: Run, broker: mq.LocalBroker) -> None:
    queue = broker.readable("orders")[0]
    assigned.commit(broker, "billing", queue, 1000)
    [state] = broker.group("billing").states("orders")
    assert state.reason.startswith("committed 1,000 is beyond the end 10")
    assert "beyond the end" in run("groups", "billing").out
