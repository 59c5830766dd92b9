"""Commits of several queries and batch writes, any of whose steps may be the last of a driver: whatever was
staged, replayed with other rows, aborted, swept, deleted for its age or left behind, every epoch that was
committed is in the log once, whole, and of one attempt; and of an attempt that failed all or nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import mq
from mq.spark.errors import SparkError
from mq.spark.sink import commit
from mq.spark.sink.staging import Staged
from mq.store.check import problems
from tests.spark.committers import TOPIC, stage_epoch
from tests.support.store.small_store import expire_at, fill, open_small

QUERIES = ["one", "two"]
STEPS = ["last_entry", "sync_files", "append_batches", "clear_marks", "remove_files", "sweep"]
DAYS_MS = 2 * 24 * 3_600_000

deaths = st.none() | st.tuples(st.sampled_from(STEPS), st.booleans(), st.integers(1, 3))
tasks = st.lists(st.integers(0, 7), min_size=1, max_size=3)
chunks = st.sampled_from([1, 500, 1 << 20])
Death = tuple[str, bool, int] | None


class Dies(Exception):
    """In place of a kill -9."""


@contextmanager
def mortal(death: Death) -> Iterator[None]:
    """Inside, before or after the so manieth time of a step, it is over."""
    if death is None:
        yield
        return
    step, is_before, passage = death
    real, left = getattr(commit, step), [passage]

    def fatal(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and is_before:
            raise Dies
        found = real(*arguments, **options)
        if left[0] == 0:
            raise Dies
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, step, fatal)
        yield


class Epochs(RuleBasedStateMachine):
    """By (transaction id, epoch): the rows of each attempt that was committed or tried to."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="mq-sink-model-"))
        self.broker = open_small(self.directory)
        self.broker.create_topic(TOPIC, 2)
        self.broker.create_topic("others", 1)
        self.epochs = dict.fromkeys(QUERIES, 0)
        self.attempts: dict[tuple[str, int], list[list[bytes]]] = {}
        self.committed: set[tuple[str, int]] = set()
        self.seen: list[tuple[int, bytes]] = []
        self.offsets = dict.fromkeys(range(2), 0)
        self.number = 0
        self.is_new_driver()

    def is_new_driver(self) -> None:
        commit.known_entries.clear()

    def attempt(self, txn: str, epoch: int, sizes: list[int]) -> tuple[list[Staged], list[bytes]]:
        self.number += 1
        rows = [
            [f"{txn}/{epoch}/{self.number}/{task}/{number}".encode() for number in range(size)]
            for task, size in enumerate(sizes)
        ]
        return stage_epoch(self.directory, epoch, rows, txn), [row for task in rows for row in task]

    def survives(self, death: Death, step: Callable[[], object]) -> bool:
        try:
            with mortal(death):
                step()
        except Dies:
            self.is_new_driver()
            return False
        except SparkError as error:  # What was staged was swept: Spark sees an error, and tries again.
            if error.code != "MQ_STAGING_LOST":
                raise
            return False
        return True

    @rule(txn=st.sampled_from(QUERIES), sizes=tasks, chunk_bytes=chunks, death=deaths, aborts=st.booleans())
    def commit(self, txn: str, sizes: list[int], chunk_bytes: int, death: Death, aborts: bool) -> None:
        epoch = self.epochs[txn]
        staged, rows = self.attempt(txn, epoch, sizes)
        self.attempts.setdefault((txn, epoch), []).append(rows)
        if self.survives(
            death,
            lambda: commit.commit_epoch(self.broker, txn, txn, epoch, staged, chunk_bytes=chunk_bytes),
        ):
            self.committed.add((txn, epoch))
            self.epochs[txn] += 1
            self.look()
            self.check(txn, epoch)
        elif aborts:
            self.survives(None, lambda: commit.discard_epoch(self.broker, txn, staged))

    @rule(sizes=tasks, chunk_bytes=chunks, death=deaths, aborts=st.booleans())
    def batch_write(self, sizes: list[int], chunk_bytes: int, death: Death, aborts: bool) -> None:
        """It is not repeated."""
        txn = f"batch-{self.number}"
        staged, rows = self.attempt(txn, 0, sizes)
        self.attempts[txn, 0] = [rows]
        if self.survives(
            death,
            lambda: commit.commit_epoch(
                self.broker, txn, txn, 0, staged, lasting=False, chunk_bytes=chunk_bytes
            ),
        ):
            self.committed.add((txn, 0))
        elif aborts:
            self.survives(None, lambda: commit.discard_epoch(self.broker, txn, staged))

    @rule(txn=st.sampled_from(QUERIES), sizes=tasks, back=st.integers(0, 2))
    def zombie(self, txn: str, sizes: list[int], back: int) -> None:
        """Tasks that go on after stop(), or after their epoch was committed: no commit names their files."""
        self.attempt(txn, max(0, self.epochs[txn] - back), sizes)

    @rule(txn=st.sampled_from(QUERIES), sizes=tasks)
    def abort(self, txn: str, sizes: list[int]) -> None:
        """A job that failed, without any commit."""
        staged, _ = self.attempt(txn, self.epochs[txn], sizes)
        self.survives(None, lambda: commit.discard_epoch(self.broker, txn, staged))

    @rule(death=deaths, days_later=st.booleans())
    def another_sink_is_planned(self, death: Death, days_later: bool) -> None:
        if days_later:
            moment = time.time() - DAYS_MS / 1000
            for path in (self.directory / "mq" / "spark").rglob("*"):
                os.utime(path, (moment, moment))
        if self.survives(death, lambda: commit.tidy(self.directory, lambda: self.broker)):
            self.look()
            for txn, epoch in self.attempts:
                self.check(txn, epoch)

    @rule()
    def what_is_old_is_deleted(self) -> None:
        self.look()
        fill(self.broker, "others", 40)
        now_ms = time.time_ns() // 1_000_000 + DAYS_MS
        expire_at(self.broker, now_ms)

    @rule()
    def all_are_new(self) -> None:
        self.look()
        self.broker.close()
        self.broker = open_small(self.directory)

    def look(self) -> None:
        """Read on, as a consumer would."""
        fresh: list[mq.MessageExt] = []
        for queue in self.broker.topic(TOPIC).queues:
            at = self.offsets[queue.queue_id]
            while messages := queue.read(at, count_max=1000).messages:
                fresh += messages
                at += len(messages)
            self.offsets[queue.queue_id] = at
        self.seen += [(message.log_offset, message.body) for message in fresh]
        self.seen.sort()

    def check(self, txn: str, epoch: int) -> None:
        found = [body for _, body in self.seen if body.startswith(f"{txn}/{epoch}/".encode())]
        allowed = self.attempts[txn, epoch]
        assert found in allowed or (found == [] and (txn, epoch) not in self.committed)

    def teardown(self) -> None:
        if not hasattr(self, "broker"):
            return
        for txn in QUERIES:
            self.commit(txn, [1], 500, None, False)
        commit.tidy(self.directory, lambda: self.broker)
        self.look()
        for txn, epoch in self.attempts:
            self.check(txn, epoch)
        assert max(Counter(body for _, body in self.seen).values()) == 1
        assert list(problems(self.directory)) == []
        self.broker.close()
        shutil.rmtree(self.directory)


TestEpochs = Epochs.TestCase
TestEpochs.settings = settings(max_examples=25, stateful_step_count=12)
