"""A process is stopped while it holds a dedup key, or a key that it handles, and goes on later.

Nothing can be taken from it. Whoever needs that key is told within its limit which process is stopped;
everything else goes on. What it was about to store or to mark counts once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.check import problems
from mq.store.shared.process_state import process_state
from tests.dedup.dedup_actors import SMALL, order
from tests.support.processes.fail_build import TREE, fail_build, fail_points
from tests.support.processes.nursery import Nursery, Process
from tests.support.processes.outcomes import Calls, outcomes

pytestmark = pytest.mark.crash

LIMIT, PATIENCE = 0.2, 60.0  # seconds: of a call, and of this test


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(TREE, tmp_path / "report", TREE, "tests.dedup.stopped_actors") as nursery:
        yield nursery
        assert nursery.failures() == ""


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with mq.open(directory, **SMALL) as broker:
        broker.create_topic("orders", 1)
        yield broker


def wait_until_stopped(process: Process, nursery: Nursery) -> None:
    deadline = time.monotonic() + PATIENCE
    while not process_state(process.pid).is_stopped:
        assert not process.wait(0.002), f"it is not stopped {nursery.failures()}"
        assert time.monotonic() < deadline


def go_on(process: Process, nursery: Nursery) -> None:
    process.go_on()
    assert process.wait(PATIENCE)
    assert nursery.failures() == ""
    nursery.forget(process)


def other_calls(broker: LocalBroker) -> Calls:
    return {
        "send": lambda: broker.topic("orders").send(b"plain"),
        "read": lambda: broker.topic("orders").queues[0].read(0),
        "query": lambda: broker.query("orders", "key"),
        "flush": broker.flush,
        "verify": lambda: list(problems(broker.path)),
    }


def check(calls: Calls, limit: float, expected: str) -> None:
    for name, (text, seconds) in outcomes(calls, limit).items():
        assert re.search(expected, text) if expected else not text, (name, text)
        assert seconds < PATIENCE / 2, name


@pytest.mark.parametrize("put", [1, 2], ids=["before the claim", "before the place"])
def test_a_sender_is_stopped_with_the_bucket_of_its_key(
    directory: Path, nursery: Nursery, broker: LocalBroker, put: int
) -> None:
    with mq.Producer(broker, dedup_window=3600, timeout=LIMIT, retries=0) as producer:
        producer.send(order(b"before"), dedup_key="before")  # The table is there.
        process = nursery.start("sender", root=directory, key="key", put=put)
        wait_until_stopped(process, nursery)
        refused: Calls = {
            "send": lambda: producer.send(order(b"refused"), dedup_key="key"),
            # Its time runs before the producer's thread begins with it.
            "asynchronous": lambda: producer.send_async(
                order(b"refused"), dedup_key="key", timeout=30 * LIMIT
            ).result(),
        }
        check(refused, LIMIT, rf"process {process.pid} \(.*\), which is stopped")
        check(other_calls(broker), PATIENCE, "")
        known: Calls = {
            "known": lambda: producer.send(order(b"before"), dedup_key="before", timeout=PATIENCE)
        }
        check(known, PATIENCE, "")
        go_on(process, nursery)
        results = [producer.send(order(b"late"), dedup_key="key", timeout=PATIENCE) for _ in range(2)]
    (stored,) = broker.query("orders", "key")
    assert stored.body == b"of the stopped"
    assert {result.offset_msg_id for result in results} == {stored.offset_msg_id}
    bodies = [message.body for message in broker.topic("orders").queues[0].read(0).messages]
    assert sorted(bodies) == [b"before", b"of the stopped", b"plain"]
    assert list(problems(directory)) == []


@pytest.mark.rounds
@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
@pytest.mark.parametrize("point", ["KEY_LOCKED", "KEY_CLAIMED", "KEY_APPENDED", "KEY_MARKED"])
def test_a_sender_is_stopped_in_the_one_call_that_sends(
    directory: Path, tmp_path: Path, broker: LocalBroker, point: str, dies: bool
) -> None:
    with (
        Nursery(TREE, tmp_path / "report", fail_build(), "tests.dedup.stopped_actors") as nursery,
        mq.Producer(broker, dedup_window=3600, timeout=LIMIT, retries=0) as producer,
    ):
        producer.send(order(b"before"), dedup_key="before")
        fail = f"{fail_points()[point]}:1:stop"
        process = nursery.start("usual_sender", root=directory, key="key", fail=fail)
        wait_until_stopped(process, nursery)
        said = rf"process {process.pid} \(.*\), which is stopped"
        check({"send": lambda: producer.send(order(b"refused"), dedup_key="key")}, LIMIT, said)
        check(other_calls(broker), PATIENCE, "")
        another: Calls = {
            "another": lambda: producer.send(order(b"another"), dedup_key="other", timeout=PATIENCE)
        }
        check(another, PATIENCE, "")
        if dies:
            process.kill()
        else:
            go_on(process, nursery)
        results = [producer.send(order(b"late"), dedup_key="key", timeout=PATIENCE) for _ in range(2)]
    (stored,) = broker.query("orders", "key")
    is_late = dies and point in ("KEY_LOCKED", "KEY_CLAIMED")
    assert stored.body == (b"late" if is_late else b"of the stopped")
    assert {result.offset_msg_id for result in results} == {stored.offset_msg_id}
    assert list(problems(directory)) == []


@pytest.mark.parametrize("point", ["body", "mark"])
def test_a_handler_is_stopped_with_its_key(
    directory: Path, tmp_path: Path, nursery: Nursery, broker: LocalBroker, point: str
) -> None:
    once, done = mq.Once(broker, "billing", wait=LIMIT), tmp_path / "done"

    def handle(key: str) -> None:
        try:
            with once(key) as is_fresh:
                if is_fresh:
                    with done.open("a") as file:
                        file.write(f"{key}\n")
        except mq.Retry as retry:
            if isinstance(retry.__cause__, mq.MQError):
                raise retry.__cause__ from None
            raise

    handle("known")
    process = nursery.start("handler", root=directory, key="key", done=done, point=point)
    wait_until_stopped(process, nursery)
    said = rf"process {process.pid} \(.*\), which is stopped"
    check({"handle": lambda: handle("key")}, LIMIT, said)
    check(other_calls(broker), PATIENCE, "")
    # Reading what is known needs no lock; a mark does need that of the file.
    check({"known": lambda: handle("known")}, PATIENCE, "")
    check({"another": lambda: handle("another")}, LIMIT, said if point == "mark" else "")
    go_on(process, nursery)
    handle("key")
    handle("another")
    assert once.seen("key")
    assert once.seen("another")
    lines = done.read_text().split()
    assert sorted(set(lines)) == ["another", "key", "known"]
    assert lines.count("key") == lines.count("known") == 1
    assert list(problems(directory)) == []
