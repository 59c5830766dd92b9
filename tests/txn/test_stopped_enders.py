"""A producer is stopped at a chosen point inside a half message or its end, and goes on later.

While it is stopped, the end of its transaction by another process succeeds or fails within its limit, with an
error that names the stopped process. Everything else goes on. The message is there once, or never.
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
from tests.support.processes.fail_build import TREE, fail_build, fail_points
from tests.support.processes.nursery import Nursery, Process
from tests.support.processes.outcomes import Calls, outcomes
from tests.txn.half_messages import COMMIT, GROUP, OFTEN, ROLLBACK, SIZES, answer_all, prepared, stored

pytestmark = pytest.mark.crash

POINT = fail_points()
LIMIT, PATIENCE = 0.2, 60.0  # seconds: of a call, and of this test


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    report = tmp_path_factory.mktemp("enders") / "report"
    with Nursery(TREE, report, fail_build(), "tests.txn.enders") as made:
        yield made
    assert made.failures() == ""


def stopped_ender(nursery: Nursery, directory: Path, state: mq.TransactionState, point: str) -> Process:
    place, fail = directory.with_name("place"), f"{POINT[point]}:1:stop"
    process = nursery.start("ender", root=directory, place=place, state=state.name, flush="async", fail=fail)
    deadline = time.monotonic() + PATIENCE
    while not process_state(process.pid).is_stopped:
        assert not process.wait(0.002), f"it did not pass the point {nursery.failures()}"
        assert time.monotonic() < deadline
    return process


def end_by_continuing(nursery: Nursery, process: Process) -> None:
    process.go_on()
    assert process.wait(PATIENCE)
    assert nursery.failures() == ""
    nursery.forget(process)


def other_outcomes(broker: LocalBroker, limit: float) -> None:
    """Every other call succeeds: nothing but this one transaction is in the hands of the stopped process."""

    def another_transaction() -> None:
        place = prepared(broker, mq.Message("orders", b"another"))
        broker.transactions.ender(GROUP)(*place, COMMIT)

    calls: Calls = {
        "send": lambda: broker.topic("orders").send(b"plain"),
        "another transaction": another_transaction,
        "undecided": broker.transactions.undecided,
        "read": lambda: stored(broker),
        "flush": broker.flush,
        "verify": lambda: list(problems(broker.path)),
    }
    for name, (text, seconds) in outcomes(calls, limit).items():
        assert not text, (name, text)
        assert seconds < PATIENCE / 2, name


# A rollback stores nothing, and never passes COMMITTED.
@pytest.mark.parametrize(
    ("point", "state"),
    [
        *((point, COMMIT) for point in ("CLAIMED", "COMMITTED", "SETTLED")),
        *((point, ROLLBACK) for point in ("CLAIMED", "SETTLED")),
    ],
    ids=str,
)
def test_the_end_of_a_transaction_is_stopped_at_each_point(
    nursery: Nursery, directory: Path, point: str, state: mq.TransactionState
) -> None:
    with mq.open(directory, **SIZES) as broker:
        broker.create_topic("orders", 1)
        process = stopped_ender(nursery, directory, state, point)
        log_offset, queue_offset = map(int, directory.with_name("place").read_text().split())
        end = broker.transactions.ender(GROUP)
        ends: Calls = {
            "usual": lambda: end(log_offset, queue_offset, state),
            "asked": lambda: end(log_offset, queue_offset, state, True),
        }
        holder = rf"process {process.pid} \(.*\), which is stopped"
        limit = PATIENCE if point == "SETTLED" else LIMIT
        for name, (text, seconds) in outcomes(ends, limit).items():
            if point == "SETTLED":
                assert not text, (name, text)
            else:
                assert re.search(holder, text), (name, text)
            assert seconds < PATIENCE / 2, name
        other_outcomes(broker, PATIENCE)
        end_by_continuing(nursery, process)
        for _ in range(2):
            end(log_offset, queue_offset, state)
        with pytest.raises(mq.NotPermitted, match=state.name):
            end(log_offset, queue_offset, ROLLBACK if state is COMMIT else COMMIT)
        assert stored(broker).count(b"one") == (state is COMMIT)
        assert sorted(set(stored(broker)) - {b"one"}) == [b"another", b"plain"]
        assert broker.transactions.undecided() == []
        assert list(problems(directory)) == []


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK], ids=lambda state: state.name)
def test_a_half_message_of_a_stopped_producer_is_asked_about(
    nursery: Nursery, directory: Path, state: mq.TransactionState
) -> None:
    """Another producer of the group ends it; the stopped one goes on, and its own end counts no more."""
    with mq.open(directory, **SIZES, **OFTEN) as broker:
        broker.create_topic("orders", 1)
        process = stopped_ender(nursery, directory, state, "HALF")
        other_outcomes(broker, PATIENCE)
        answer_all(broker, state)
        assert stored(broker).count(b"one") == (state is COMMIT)
        end_by_continuing(nursery, process)
        assert stored(broker).count(b"one") == (state is COMMIT)
        assert broker.transactions.undecided() == []
        assert list(problems(directory)) == []
