"""A topic that is copied from one directory to another: all of it, in order, once, also after a death."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.api.broker import Appender
from mq.client.topic_copy import TopicCopy


@pytest.fixture
def source(tmp_path: Path) -> Iterator[mq.LocalBroker]:
    with mq.open(tmp_path / "source") as broker:
        broker.create_topic("orders", 2)
        with mq.Producer(broker) as producer:
            for number in range(100):
                message = mq.Message(
                    "orders",
                    b"%d" % number * (2000 if number % 10 == 0 else 1),
                    tags=f"t{number % 3}",
                    keys=[f"k{number}", "all"],
                    properties={"price": str(number)},
                    flag=number,
                )
                producer.send(message, shard_key=number % 2)
        yield broker


@pytest.fixture
def target(tmp_path: Path) -> Iterator[mq.LocalBroker]:
    with mq.open(tmp_path / "target") as broker:
        yield broker


def told(broker: mq.Broker) -> list[list[tuple[Any, ...]]]:
    """Every message of every queue, in order."""
    found = []
    for queue in broker.topic("orders").queues:
        messages: list[mq.MessageExt] = []
        offset = queue.min_offset
        while offset < queue.max_offset:
            read = queue.read(offset)
            messages += read.messages
            offset = read.next_offset
        found.append([(m.msg_id, m.body, m.tags, m.keys, m.properties["price"], m.flag) for m in messages])
    return found


def test_all_comes_over_in_order(source: mq.LocalBroker, target: mq.LocalBroker) -> None:
    steps: list[int] = []
    copy = TopicCopy(source, target, "orders", group="copy", progress=steps.append)
    assert copy.total == 100
    assert sum(queue.copied for queue in copy.run()) == sum(steps) == 100
    assert told(target) == told(source)


def test_what_came_since_is_copied_by_the_next_run(source: mq.LocalBroker, target: mq.LocalBroker) -> None:
    TopicCopy(source, target, "orders", group="copy").run()
    source.topic("orders").send(b"later", properties={"price": "0"})
    assert sum(queue.copied for queue in TopicCopy(source, target, "orders", group="copy").run()) == 1
    assert sum(queue.copied for queue in TopicCopy(source, target, "orders", group="copy").run()) == 0
    assert told(target) == told(source)


@pytest.mark.parametrize("last", [1, 7, 32, 33, 49])
def test_a_copy_that_died_goes_on_and_repeats_nothing(
    source: mq.LocalBroker, target: mq.LocalBroker, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """The messages up to there are stored, and the source does not know of those since the last commit."""
    usual = mq.LocalBroker.appender

    def mortal(broker: mq.LocalBroker, queue: mq.MessageQueue) -> Appender:
        append, left = usual(broker, queue), [last]

        def dying(
            message: mq.Message, body: bytes, sys_flag: int, unique_id: str | None = None, /
        ) -> mq.SendResult | None:
            if not left[0]:
                raise OSError("the process dies here")
            left[0] -= 1
            return append(message, body, sys_flag, unique_id)

        return dying

    with monkeypatch.context() as patched:
        patched.setattr(mq.LocalBroker, "appender", mortal)
        with pytest.raises(OSError, match="dies here"):
            TopicCopy(source, target, "orders", group="copy").run()
    TopicCopy(source, target, "orders", group="copy").run()
    assert told(target) == told(source)


def test_where_the_source_knows_less_than_was_stored_nothing_is_repeated(
    source: mq.LocalBroker, target: mq.LocalBroker
) -> None:
    """A cluster hears of offsets every few seconds: a killed copy may have stored many more messages."""
    TopicCopy(source, target, "orders", group="copy").run()
    for queue in source.readable("orders"):
        source.group("copy").reset("orders", to="earliest")
        assert source.min_offset(queue) == 0
    assert sum(queue.copied for queue in TopicCopy(source, target, "orders", group="copy").run()) == 0
    assert told(target) == told(source)


def test_a_target_that_is_empty_again_gets_everything(source: mq.LocalBroker, target: mq.LocalBroker) -> None:
    TopicCopy(source, target, "orders", group="copy").run()
    target.delete_topic("orders")
    assert sum(queue.copied for queue in TopicCopy(source, target, "orders", group="copy").run()) == 100
    assert told(target) == told(source)


def test_a_topic_with_other_messages_is_no_target(source: mq.LocalBroker, target: mq.LocalBroker) -> None:
    target.create_topic("orders", 2)
    for queue in target.publishable("orders"):
        with mq.Producer(target) as producer:
            producer.send(mq.Message("orders", b"of somebody else"), queue=queue)
    with pytest.raises(mq.NotPermitted, match="not of this copy"):
        TopicCopy(source, target, "orders", group="copy").run()


def test_too_few_queues_are_refused(source: mq.LocalBroker, target: mq.LocalBroker) -> None:
    target.create_topic("orders", 1)
    with pytest.raises(mq.NotPermitted, match="1 queues on the target and 2"):
        TopicCopy(source, target, "orders", group="copy")
