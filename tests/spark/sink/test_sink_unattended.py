"""Spark's processes perform no duties of the application: they do not deliver, delete, or the like.
Without another process, the commit flushes what must be on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mq.broker.local import LocalBroker
from mq.spark.target import broker, locate
from mq.store.native import lib
from mq.store.shared.leader_lock import is_taken
from tests.spark.reading import forget_brokers
from tests.spark.writing import batches, writer
from tests.support.insides import store_of
from tests.support.store.small_store import open_small

SECONDS_MAX = 60


@pytest.fixture
def unattended(directory: Path) -> Iterator[Path]:
    """A store that no process has open."""
    with open_small(directory) as application:
        application.create_topic("orders", 2)
    yield directory
    forget_brokers()


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_duties_are_the_application_s(unattended: Path) -> None:
    spark = broker(locate(str(unattended)), writable=True)
    with open_small(unattended):
        wait_until(lambda: is_taken(unattended))  # By a thread, when it has begun.
        assert broker(locate(str(unattended)), writable=True) is spark
    assert not is_taken(unattended)


@pytest.mark.parametrize("semantics", ["exactly_once", "at_least_once"])
def test_a_commit_flushes_without_a_leader(unattended: Path, semantics: str) -> None:
    sink = writer(unattended, semantics=semantics)
    written = sink.write_task(batches(b"a", b"b", b"c"), "query", 0, 0, 0)
    here = broker(locate(str(unattended)), writable=True)
    assert isinstance(here, LocalBroker)
    word = store_of(here).word
    if semantics == "at_least_once":
        assert word(lib.MQ_FLUSHED_END) < word(lib.MQ_LOG_END)
    sink.commit([written], 0)
    wait_until(lambda: word(lib.MQ_FLUSHED_END) == word(lib.MQ_LOG_END))
    wait_until(lambda: word(lib.MQ_QUEUES_FLUSHED_TIME) >= word(lib.MQ_FLUSHED_STORE_TIME) > 0)
