"""There can be no more threads: an error of its own, after which the same call works once there can."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker

SOON = 60.0


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


def test_a_transaction_producer_that_cannot_have_its_threads_leaves_its_group(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def only_two(thread: threading.Thread) -> None:
        if thread.name.startswith("mq-check"):
            started.append(thread)
            if len(started) > 2:
                no_more(thread)
        start(thread)

    def unknown(_message: mq.MessageExt) -> mq.TransactionState:
        return mq.TransactionState.UNKNOWN

    monkeypatch.setattr(threading.Thread, "start", only_two)
    with pytest.raises(mq.InsufficientResources, match="threads"):
        mq.TransactionProducer(broker, "bank", unknown, threads=3)
    monkeypatch.undo()
    assert not any(thread.is_alive() for thread in started)
    mq.TransactionProducer(broker, "bank", unknown, threads=3).close()


@pytest.mark.parametrize("missing", ["mq-lease", "mq-delay", "mq-upkeep"])
def test_the_duties_are_done_once_there_can_be_threads_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    start, is_refused = threading.Thread.start, threading.Event()

    def first_fails(thread: threading.Thread) -> None:
        if thread.name == missing and not is_refused.is_set():
            is_refused.set()
            no_more(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", first_fails)
    with mq.open(directory) as broker:
        assert is_refused.wait(SOON)
        broker.create_topic("orders", 1).send(b"late", delay_level=1)
        (message,) = broker.topic("orders").queues[0].read(0, wait=SOON).messages
        assert message.body == b"late"
    assert "threads" in caplog.text


def test_a_send_of_asyncio_is_refused_by_an_error_of_ours(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send() -> None:
        async with mq.aio.Producer(broker, dedup_window=600) as producer:
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", no_more)
                with pytest.raises(mq.InsufficientResources, match="executor"):
                    await producer.send(mq.Message("orders", b"keyed"), dedup_key="key")
            await producer.send(mq.Message("orders", b"keyed"), dedup_key="key")

    asyncio.run(send())
    assert broker.topic("orders").queues[0].max_offset == 1
