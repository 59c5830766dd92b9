"""Epochs of one sink, committed in turn, cut short, and looked at."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mq.broker.local import LocalBroker
from mq.errors import StoreFull
from mq.spark.sink import commit, staging
from mq.spark.sink.append import append_batches
from mq.spark.sink.ledger import Step, key_of
from mq.spark.sink.staging import sink_directory
from tests.spark.committers import TXN, bodies_of, rows_of, stage_epoch

SEVERAL = 500  # bytes of a chunk: it holds three rows
BATCH = "batch-1"


def commit_one(
    broker: LocalBroker, epoch: int, attempt: int = 0, chunk_bytes: int = SEVERAL, txn: str = TXN
) -> list[Step]:
    staged = stage_epoch(Path(broker.path), epoch, rows_of(epoch, attempt), txn)
    return commit.commit_epoch(broker, txn, txn, epoch, staged, chunk_bytes=chunk_bytes, lasting=txn != BATCH)


@contextmanager
def full_after(appends: int) -> Iterator[None]:
    """Of the appends inside the first ones work, and for the next one there is no room."""
    left = [appends]

    def append(*arguments: Any, **options: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise StoreFull("no room", path="commitlog")
        append_batches(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "append_batches", append)
        yield


def half_done(broker: LocalBroker, txn: str = TXN) -> None:
    with full_after(1), pytest.raises(StoreFull):
        commit_one(broker, 0, txn=txn)
    assert len(bodies_of(broker)) == 3
    assert staging.is_unfinished(sink_directory(broker.path, key_of(txn)))


def staged_files(broker: LocalBroker) -> list[Path]:
    return list((broker.path / "mq" / "spark").rglob("*.arrow"))


def grow_old(path: Path) -> None:
    moment = time.time() - 2 * staging.AGE_MAX
    for each in (path, *path.rglob("*")):
        os.utime(each, (moment, moment))
