"""An abort that comes because a commit has waited in vain does not wait as long once more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from mq.broker.local import LocalBroker
from mq.spark.errors import SparkError
from mq.spark.sink import commit, staging
from mq.spark.sink.ledger import Step
from mq.spark.sink.stage_lock import LOCK_TIMEOUT
from tests.spark.committers import TOPIC, TXN, bodies_of, rows_of, stage_epoch, wrong_with
from tests.support.store.small_store import open_small


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory, flush_interval=3600.0) as broker:
        broker.create_topic(TOPIC, 2)
        yield broker


def test_an_abort_does_not_wait_as_its_commit_did(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def in_vain(file: IO[bytes], timeout: float) -> bool:
        waited.append(timeout)
        return False

    staged = stage_epoch(broker.path, 0, rows_of(0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(staging, "take_lock", in_vain)
        with pytest.raises(SparkError, match=r"MQ_STAGING_LOCKED.* for 60 s there was no sign"):
            commit.commit_epoch(broker, TXN, TXN, 0, staged)
        with pytest.raises(SparkError, match=r"MQ_STAGING_LOCKED.* for 2 s there was no sign"):
            commit.discard_epoch(broker, TXN, staged)
    assert waited == [LOCK_TIMEOUT, commit.ABORT_TIMEOUT]
    assert commit.ABORT_TIMEOUT <= LOCK_TIMEOUT / 10
    # What was staged is there still, and another try writes it.
    assert commit.commit_epoch(broker, TXN, TXN, 0, staged) == [Step.APPEND]
    assert wrong_with(bodies_of(broker), 1) == []
