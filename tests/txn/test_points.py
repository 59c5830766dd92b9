"""A producer dies at a chosen point inside a half message or its end, while another process lives on.

A repeated end of the transaction, by the producer or by a check, counts once: the message is there once,
or never.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from tests.support.processes.fail_build import TREE, fail_build, fail_points
from tests.support.processes.nursery import Nursery
from tests.txn.half_messages import GROUP, OFTEN, SIZES, answer_all, stored

pytestmark = pytest.mark.crash

COMMIT, ROLLBACK = mq.TransactionState.COMMIT, mq.TransactionState.ROLLBACK
POINT = fail_points()
# The second append of the dying process is that of its END.
APPEND = ("LOCKED", "ARMED", "HALF_RECORD", "RECORD", "UNIT", "LOG_END", "PUBLISHED", "DISARMED")
IN_END = [("CLAIMED", 1), ("COMMITTED", 1), ("SETTLED", 1), *((point, 2) for point in APPEND)]


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    directory = tmp_path_factory.mktemp("enders")
    with Nursery(TREE, directory / "report", fail_build(), "tests.txn.enders") as made:
        yield made
    assert made.failures() == ""


def die(
    nursery: Nursery, directory: Path, state: str, flush: Any, point: str, passage: int
) -> tuple[int, int] | None:
    """The place of the half message whose producer died, if it recorded it."""
    place = directory.with_name("place")
    fail = f"{POINT[point]}:{passage}"
    process = nursery.start("ender", root=directory, place=place, state=state, flush=flush, fail=fail)
    assert process.wait(60)
    nursery.forget(process)
    if not place.exists():
        return None
    log_offset, queue_offset = place.read_text().split()
    return int(log_offset), int(queue_offset)


@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize(("point", "passage"), IN_END, ids=str)
def test_an_end_that_was_cut_short_is_done_by_the_next(
    nursery: Nursery, directory: Path, point: str, passage: int, flush: Any
) -> None:
    with mq.open(directory, flush=flush, **SIZES) as broker:
        broker.create_topic("orders", 1)
        place = die(nursery, directory, "COMMIT", flush, point, passage)
        assert place is not None
        for _ in range(2):
            broker.transactions.ender(GROUP)(*place, COMMIT)
            assert stored(broker) == [b"one"]
        with pytest.raises(mq.NotPermitted, match="COMMIT"):
            broker.transactions.ender(GROUP)(*place, ROLLBACK)
        assert broker.transactions.undecided() == []
    with mq.open(directory, **SIZES) as broker:
        assert stored(broker) == [b"one"]
        assert broker.transactions.undecided() == []


@pytest.mark.parametrize("state", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize(("point", "passage"), [("HALF", 1), *IN_END], ids=str)
def test_what_was_cut_short_is_asked_about(
    nursery: Nursery, directory: Path, point: str, passage: int, state: str
) -> None:
    with mq.open(directory, **SIZES, **OFTEN) as broker:
        broker.create_topic("orders", 1)
        die(nursery, directory, state, "async", point, passage)
        answer_all(broker, mq.TransactionState[state])
        assert stored(broker) == ([b"one"] if state == "COMMIT" else [])


@pytest.mark.parametrize(("point", "passage"), [("CLAIMED", 1), ("COMMITTED", 1)], ids=str)
def test_after_all_processes_died_the_next_one_knows_no_more(
    nursery: Nursery, directory: Path, point: str, passage: int
) -> None:
    with mq.open(directory, **SIZES) as broker:
        broker.create_topic("orders", 1)
    place = die(nursery, directory, "COMMIT", "async", point, passage)
    assert place is not None
    (directory / "mq" / "transactions").unlink()
    with mq.open(directory, **SIZES, **OFTEN) as broker:
        was_stored = stored(broker) == [b"one"]
        assert was_stored == (point == "COMMITTED")
        if was_stored:
            with pytest.raises(mq.NotPermitted, match="COMMIT"):
                broker.transactions.ender(GROUP)(*place, ROLLBACK)
        answer_all(broker, COMMIT)
        assert stored(broker) == [b"one"]
