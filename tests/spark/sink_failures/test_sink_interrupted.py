"""Commits of the sink that an alarm ends at any moment, and that are made again: each epoch is there once.

MQ_INTERRUPT_SECONDS is how long.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from mq.spark.sink import commit, staging
from mq.store.check import problems
from tests.spark.committers import TOPIC, TXN, bodies_of, rows_of, stage_epoch, wrong_with
from tests.support.interrupting import Interrupted, alarms
from tests.support.store.small_store import open_small

# What is cut short in the middle of writing a file leaves it to the collector, which says so.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("dropped_here"),
]

PATIENCE = 60.0
SECONDS = float(os.environ.get("MQ_INTERRUPT_SECONDS", "2"))
ONE, SEVERAL = 1 << 20, 500  # bytes of a chunk: of the epoch's eight rows it holds three


def test_an_epoch_whose_commit_is_interrupted_is_there_once_it_is_committed_again(directory: Path) -> None:
    chance = random.Random(5)
    with open_small(directory) as broker:
        broker.create_topic(TOPIC, 2)
        epoch = cuts = attempt = 0

        def commit_next() -> None:
            """Another attempt, with rows of its own, as Spark makes it."""
            nonlocal epoch, attempt
            attempt += 1
            staged = stage_epoch(Path(broker.path), epoch, rows_of(epoch, attempt))
            chunk_bytes = chance.choice((ONE, SEVERAL))
            set_alarm(longest if longest == PATIENCE else chance.uniform(2e-5, longest))
            commit.commit_epoch(broker, TXN, TXN, epoch, staged, chunk_bytes=chunk_bytes)
            set_alarm(0.0)
            epoch += 1

        with alarms() as set_alarm:
            longest, took = PATIENCE, []
            for _ in range(5):
                began = time.monotonic()
                commit_next()
                took.append(time.monotonic() - began)
            longest = 1.5 * min(took)
            while time.monotonic() < began + SECONDS or cuts < 20:
                try:
                    commit_next()
                except Interrupted:
                    cuts += 1
            longest = PATIENCE
            set_alarm(0.0)
            commit_next()
        print(f"  {epoch} epochs, {cuts} cut short")
        assert wrong_with(bodies_of(broker), epoch) == []
        assert not staging.is_unfinished(staging.sink_directory(directory, TXN))
    assert list(problems(directory)) == []
