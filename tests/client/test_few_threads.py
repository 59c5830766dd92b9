"""There can be no more threads: an error of its own, after which the same call works once there can."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with mq.open(directory) as broker:
        broker.create_topic("orders", 1)
        yield broker


def no_more(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_send_in_the_background_is_refused_and_goes_through_later(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mq.Producer(broker) as producer:
        monkeypatch.setattr(threading.Thread, "start", no_more)
        with pytest.raises(mq.InsufficientResources, match="threads") as caught:
            producer.send_async(mq.Message("orders", b"refused"))
        monkeypatch.undo()
        assert caught.value.resource == "threads"
        assert producer.send_async(mq.Message("orders", b"sent")).result(60).queue_offset == 0


def test_a_store_that_cannot_be_opened_for_lack_of_threads_says_so(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_more)
    with pytest.raises(mq.InsufficientResources):
        mq.open(directory)
    monkeypatch.undo()
    mq.open(directory).close()
