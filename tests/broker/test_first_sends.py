"""A topic that a send made, and that send fails: the topic goes, unless another producer needs it by then."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.topics.config import Topics
from mq.store.store import Store
from tests.support.appending import append_many, append_one
from tests.support.insides import catalog_of, queue_number, writer_of


class Failure(Exception):
    pass


@pytest.fixture
def brokers(directory: Path) -> Any:
    with mq.open(directory) as first, mq.open(directory) as second:
        yield first, second


def fail_after(broker: mq.LocalBroker, act: Callable[[], object]) -> None:
    with suppress(Failure), catalog_of(broker).first_send([("fresh", 0)]):
        assert "fresh" in broker.topics()
        act()
        raise Failure


def send(broker: mq.LocalBroker, body: bytes = b"x") -> mq.SendResult:
    return append_one(broker, "fresh", 0, mq.Message("fresh", body), body, 0)


def read(broker: mq.LocalBroker) -> list[bytes]:
    return [message.body for message in broker.topic("fresh").queues[0].read(0).messages]


def test_an_empty_topic_goes(brokers: tuple[mq.LocalBroker, mq.LocalBroker]) -> None:
    first, second = brokers
    fail_after(first, lambda: first.topic("fresh").queues[0].max_offset)
    assert first.topics() == second.topics() == []
    assert not (first.path / "consumequeue" / "fresh").exists()


def test_a_topic_with_a_message_of_another_process_stays(
    brokers: tuple[mq.LocalBroker, mq.LocalBroker],
) -> None:
    first, second = brokers
    fail_after(first, lambda: send(second, b"theirs"))
    assert first.topics() == second.topics() == ["fresh"]
    assert read(first) == [b"theirs"]


def test_a_message_that_comes_while_the_topic_goes_is_kept(
    brokers: tuple[mq.LocalBroker, mq.LocalBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = brokers
    real = Store.delete_queues
    number = -1

    def late(store: Store, topic: str, **options: bool) -> bool:
        # As a process does that looked the queue up before the topic went.
        writer_of(second).append_to(number, b"late", b"")
        return real(store, topic, **options)

    def look_up() -> None:
        nonlocal number
        number = queue_number(second, mq.MessageQueue("fresh", "mq", 0))
        monkeypatch.setattr(Store, "delete_queues", late)

    fail_after(first, look_up)
    assert first.topics() == second.topics() == ["fresh"]
    assert read(second) == [b"late"]


def test_a_queue_that_was_looked_up_before_the_topic_went_is_not_sent_to(
    brokers: tuple[mq.LocalBroker, mq.LocalBroker],
) -> None:
    """By an appender, and by a batch: both find out, and make the topic anew."""
    first, second = brokers
    appenders: list[Any] = []
    fail_after(first, lambda: appenders.append(second.appender(mq.MessageQueue("fresh", second.name, 0))))
    assert appenders[0](mq.Message("fresh", b"x"), b"x", 0) is None
    append_many(second, "fresh", 0, [mq.Message("fresh", b"one"), mq.Message("fresh", b"two")])
    assert read(first) == [b"one", b"two"]


def test_a_topic_that_was_used_meanwhile_stays(
    brokers: tuple[mq.LocalBroker, mq.LocalBroker],
) -> None:
    first, second = brokers
    fail_after(first, lambda: second.create_topic("fresh"))
    assert first.topics() == second.topics() == ["fresh"]
    version = first.route_version()
    second.create_topic("fresh")
    assert first.route_version() == version


def test_a_topic_that_another_process_made_first_keeps_its_settings(
    brokers: tuple[mq.LocalBroker, mq.LocalBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at what there is and the lock."""
    first, second = brokers
    real = Topics.changing

    def late(topics: Topics) -> Any:
        monkeypatch.undo()
        second.create_topic("fresh", 8)
        return real(topics)

    monkeypatch.setattr(Topics, "changing", late)
    send(first)
    assert len(first.topic("fresh").queues) == 8


@pytest.mark.parametrize("topic", ["orders", "fresh"])
def test_a_queue_of_another_broker_is_refused(
    brokers: tuple[mq.LocalBroker, mq.LocalBroker], topic: str
) -> None:
    first, _ = brokers
    first.create_topic("orders", 1)
    theirs, message = mq.MessageQueue(topic, "elsewhere", 0), mq.Message(topic, b"x")
    keyed = mq.Producer(first, "keyed", dedup_window=60)
    with (
        mq.Producer(first) as producer,
        keyed,
        mq.TransactionProducer(first, "writers", lambda _: mq.TransactionState.UNKNOWN) as transactions,
    ):
        for send_there in (
            lambda: producer.send(message, queue=theirs),
            lambda: producer.send_batch([message], queue=theirs),
            lambda: producer.send_async(message, queue=theirs).result(),
            lambda: producer.send_oneway(message, queue=theirs),
            lambda: keyed.send(message, queue=theirs, dedup_key="key"),
            lambda: transactions.begin(message, queue=theirs),
        ):
            with pytest.raises(ValueError, match="a queue of another broker: this one's name is 'mq'"):
                send_there()
    assert first.topics() == ["orders"]
    assert first.topic("orders").queues[0].max_offset == 0
