"""Commits of the sink without Spark, in processes that are killed; see tests/support/processes/nursery.py.
Paths are strings where arguments travel as JSON.

A row says of which epoch, attempt and task it is: another attempt at an epoch has other rows.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import mq
from mq.broker.local import LocalBroker
from mq.spark.sink import commit
from mq.spark.sink.ledger import key_of
from mq.spark.sink.staging import Staged, StagedBatch, sink_directory, stage
from mq.store.check import problems
from tests.support.appending import append_one
from tests.support.power.recorder import record as start_recording
from tests.support.processes.nursery import stopping

__all__ = ["TOPIC", "bodies_of", "commits", "dies", "inspects", "rows_of", "stage_epoch", "wrong_with"]

TOPIC, TXN = "results", "query"
TASKS, ROWS = 2, 4


def rows_of(epoch: int, attempt: int, rows: int = ROWS) -> list[list[bytes]]:
    """By task."""
    return [
        [b"%d-%d-%d-%d-%d" % (epoch, attempt, rows, task, number) for number in range(rows)]
        for task in range(TASKS)
    ]


def wrong_with(found: Sequence[bytes], epochs: int) -> list[str]:
    """What is wrong if of each epoch all rows of one attempt should be there, once, in their order."""
    wrong = []
    for epoch in range(epochs):
        mine = [body for body in found if body.startswith(b"%d-" % epoch)]
        if not mine:
            wrong.append(f"epoch {epoch} of {epochs} is lost")
            continue
        _, attempt, rows, _, _ = map(int, mine[0].split(b"-"))
        if mine != [row for task in rows_of(epoch, attempt, rows) for row in task]:
            wrong.append(f"epoch {epoch} of {epochs}: {mine}")
    if beyond := [body for body in found if int(body.split(b"-")[0]) >= epochs]:
        wrong.append(f"not committed: {beyond}")
    return wrong


def stage_epoch(root: Path, epoch: int, tasks: Sequence[Sequence[bytes]], txn: str = TXN) -> list[Staged]:
    """What the tasks of an epoch do; each row is a batch of its own, and so can be a chunk."""
    place = sink_directory(root, key_of(txn))
    return [
        stage(
            place,
            epoch,
            f"{number}-0",
            [
                StagedBatch(
                    mq.MessageQueue(TOPIC, "mq", at % 2),
                    pa.record_batch({"body": pa.array([row]), "properties": pa.array([b""])}),
                )
                for at, row in enumerate(rows)
            ],
        )
        for number, rows in enumerate(tasks)
    ]


def bodies_of(broker: LocalBroker, topic: str = TOPIC) -> list[bytes]:
    """All messages in the order of the log."""
    found: list[mq.MessageExt] = []
    for queue in broker.topic(topic).queues:
        at = queue.min_offset
        while messages := queue.read(at, count_max=1000).messages:
            found += messages
            at += len(messages)
    return [message.body for message in sorted(found, key=lambda message: message.log_offset)]


def dies(
    root: str,
    sizes: dict[str, Any],
    epoch: int,
    step: str,
    place: str,
    passage: int,
    chunk_bytes: int,
    lasting: bool,
) -> None:
    """Commits an epoch, and is killed before or after it does a step for the so manieth time."""
    real, left = getattr(commit, step), [passage]

    def fatal(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and place == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = real(*arguments, **options)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(commit, step, fatal)
    broker = mq.open(root, **sizes)
    staged = stage_epoch(Path(root), epoch, rows_of(epoch, 0))
    commit.commit_epoch(broker, TXN, TXN, epoch, staged, lasting=lasting, chunk_bytes=chunk_bytes)
    raise AssertionError(f"{step} was not done {passage} times")


def commits(
    root: str, record: dict[str, Any], sizes: dict[str, Any], trace: str, seed: int, chunk_bytes: int
) -> None:
    """Commits one epoch after the other, from the first that is not known to be done, until it is killed."""
    start_recording(root, **record)
    chance = random.Random(seed)
    with mq.open(root, flush_interval=chance.choice((0.005, 0.05)), **sizes) as broker:
        broker.create_topic(TOPIC, 2)
        broker.create_topic("others", 1)
        queue = mq.MessageQueue("others", broker.name, 0)
        while not stopping:
            _commit_next(broker, Path(trace), chunk_bytes, chance.choice((1, 9)))
            for _ in range(chance.choice((0, 3))):
                append_one(broker, "others", 0, mq.Message("others", b"x" * 300), b"x" * 300, 0)
            assert broker.max_offset(queue) >= 0


def inspects(
    root: str, record: dict[str, Any], sizes: dict[str, Any], trace: str, chunk_bytes: int, answer: str
) -> None:
    """Does the epoch again that is not known to be done, and writes down what is wrong with any of them."""
    start_recording(root, **record)
    with mq.open(root, flush_interval=3600.0, **sizes) as broker:
        broker.create_topic(TOPIC, 2)
        done = _commit_next(broker, Path(trace), chunk_bytes, 1)
        found = bodies_of(broker)
        wrong = [*problems(root), *wrong_with(found, done + 1)]
        Path(answer + ".new").write_text(json.dumps({"wrong": wrong, "epochs": done, "rows": len(found)}))
        Path(answer + ".new").rename(answer)
        signal.pause()


def _commit_next(broker: LocalBroker, trace: Path, chunk_bytes: int, rows: int) -> int:
    lines = trace.read_text().split() if trace.exists() else []
    epoch = sum(line == "done" for line in lines)
    attempt = len(lines)
    with trace.open("a") as file:
        file.write("begun\n")
        file.flush()
        staged = stage_epoch(Path(broker.path), epoch, rows_of(epoch, attempt, rows))
        commit.commit_epoch(broker, TXN, TXN, epoch, staged, chunk_bytes=chunk_bytes)
        file.write("done\n")
        file.flush()
    return epoch
