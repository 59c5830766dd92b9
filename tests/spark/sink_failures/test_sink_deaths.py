"""The committing process is killed before or after each step; the next one completes the epoch, once.

The next one is the same query, which repeats the epoch with other rows, or another process that wants to
write, and finds what lies there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.spark.sink import commit, staging
from tests.spark.committers import TOPIC, TXN, bodies_of, rows_of, stage_epoch, wrong_with
from tests.support.processes.fail_build import TREE
from tests.support.processes.nursery import Nursery
from tests.support.store.small_store import SMALL, open_small

pytestmark = pytest.mark.crash

ONE, SEVERAL = 1 << 20, 500  # bytes of a chunk: of the epoch's eight rows it holds three
STEPS = [
    (ONE, "append_batches", "before", 1),
    (ONE, "append_batches", "after", 1),
    (ONE, "remove_files", "after", 1),
    (ONE, "sweep", "after", 1),
    (SEVERAL, "sync_files", "before", 1),
    (SEVERAL, "sync_files", "after", 1),
    (SEVERAL, "append_batches", "after", 1),
    (SEVERAL, "append_batches", "before", 3),
    (SEVERAL, "append_batches", "after", 3),
    (SEVERAL, "clear_marks", "after", 1),
    (SEVERAL, "remove_files", "after", 1),
    (SEVERAL, "sweep", "after", 1),
]
UNSEEN = [("append_batches", "before"), ("sync_files", "before"), ("sync_files", "after")]


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    assert mq.__file__ is not None
    report = tmp_path_factory.mktemp("crew") / "report"
    with Nursery(TREE, report, Path(mq.__file__).parents[1], "tests.spark.committers") as nursery:
        yield nursery


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory) as broker:
        broker.create_topic(TOPIC, 2)
        yield broker


def commit_one(broker: LocalBroker, epoch: int, attempt: int, chunk_bytes: int = SEVERAL) -> None:
    staged = stage_epoch(Path(broker.path), epoch, rows_of(epoch, attempt))
    commit.commit_epoch(broker, TXN, TXN, epoch, staged, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize(("chunk_bytes", "step", "place", "passage"), STEPS)
@pytest.mark.parametrize("next_one", ["same query", "another writer"])
def test_the_committing_process_dies(
    nursery: Nursery,
    broker: LocalBroker,
    directory: Path,
    chunk_bytes: int,
    step: str,
    place: str,
    passage: int,
    next_one: str,
) -> None:
    commit_one(broker, 0, 0)
    lasting = next_one == "same query"  # Otherwise a batch write, which is not repeated.
    victim = nursery.start(
        "dies",
        root=directory,
        sizes=SMALL,
        epoch=1,
        step=step,
        place=place,
        passage=passage,
        chunk_bytes=chunk_bytes,
        lasting=lasting,
    )
    assert victim.wait(120)
    nursery.forget(victim)
    assert nursery.failures() == ""
    if lasting:
        commit_one(broker, 1, 1)
        commit_one(broker, 2, 2)
        assert wrong_with(bodies_of(broker), 3) == []
    else:
        commit.tidy(directory, lambda: broker)
        found = bodies_of(broker)
        is_there = any(body.startswith(b"1-") for body in found)
        assert wrong_with(found, 1 + is_there) == []
        # All of it, once a reader may have seen a part.
        assert is_there == ((step, place) not in UNSEEN or passage > 1)
    assert not staging.is_unfinished(staging.sink_directory(directory, TXN))
    if lasting:
        assert list((directory / "mq" / "spark").rglob("*.arrow")) == []
