"""A topic that is copied from one directory to another: all of it, in order, once, also after a death."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.api.broker import Appender
from mq.broker.local import LocalBroker
from mq.client.topic_copy import TopicCopy
from tests.support.store.small_store import fill, open_small


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


Appending = Callable[[mq.LocalBroker, mq.MessageQueue], Appender]


def mortal(usual: Appending, last: int) -> Appending:
    """What appends so many messages to a queue, and then the process dies."""

    def appender(broker: mq.LocalBroker, queue: mq.MessageQueue) -> Appender:
        append, left = usual(broker, queue), [last]

        def dying(
            message: mq.Message, body: bytes, sys_flag: int, unique_id: str | None = None, /
        ) -> mq.SendResult | None:
            if not left[0]:
                raise OSError("the process dies here")
            left[0] -= 1
            return append(message, body, sys_flag, unique_id)

        return dying

    return appender


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
    with monkeypatch.context() as patched:
        patched.setattr(mq.LocalBroker, "appender", mortal(mq.LocalBroker.appender, last))
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


def copied(source: mq.Broker, target: mq.Broker) -> tuple[int, int]:
    """How many messages a copy copies, and how many it finds deleted."""
    queues = TopicCopy(source, target, "orders", group="copy").run()
    return sum(queue.copied for queue in queues), sum(queue.lost for queue in queues)


@pytest.fixture
def small_source(tmp_path: Path) -> Iterator[mq.LocalBroker]:
    """Of which retention takes what is old."""
    with open_small(tmp_path / "small") as broker:
        broker.create_topic("orders", 1)
        yield broker


def expire(broker: LocalBroker) -> None:
    """Have all messages of the topic deleted."""
    fill(broker, "other", 150)
    broker.expire(retention_hours=0)
    queue = broker.topic("orders").queues[0]
    assert queue.min_offset == queue.max_offset


def bodies(broker: mq.Broker) -> list[bytes]:
    queue = broker.topic("orders").queues[0]
    return [message.body for message in queue.read(queue.min_offset, count_max=1000).messages]


def test_it_goes_on_where_the_source_has_deleted_what_was_copied(
    small_source: LocalBroker, target: mq.LocalBroker
) -> None:
    fill(small_source, "orders", 5)
    assert copied(small_source, target) == (5, 0)
    expire(small_source)
    assert copied(small_source, target) == (0, 0)
    fill(small_source, "orders", 3, prefix="new")
    assert copied(small_source, target) == (3, 0)
    assert bodies(target)[4:] == [b"message 4", b"new 0", b"new 1", b"new 2"]


def test_what_the_source_deletes_uncopied_is_counted(
    small_source: LocalBroker, target: mq.LocalBroker
) -> None:
    fill(small_source, "orders", 5)
    assert copied(small_source, target) == (5, 0)
    fill(small_source, "orders", 4, prefix="missed")
    expire(small_source)
    fill(small_source, "orders", 1, prefix="new")
    assert copied(small_source, target) == (1, 4)
    assert copied(small_source, target) == (0, 0)
    assert bodies(target)[4:] == [b"message 4", b"new 0"]


def test_what_the_source_deletes_meanwhile_is_counted(
    small_source: LocalBroker, target: mq.LocalBroker
) -> None:
    fill(small_source, "orders", 40)
    copy = TopicCopy(small_source, target, "orders", group="copy")
    expire(small_source)
    [queue] = copy.run()
    assert (queue.copied, queue.lost) == (0, 40)


def test_nothing_is_repeated_where_the_target_has_deleted_all(
    small_source: LocalBroker, tmp_path: Path
) -> None:
    fill(small_source, "orders", 5)
    with open_small(tmp_path / "small target") as target:
        assert copied(small_source, target) == (5, 0)
        expire(target)
        assert copied(small_source, target) == (0, 0)
        fill(small_source, "orders", 1, prefix="new")
        assert copied(small_source, target) == (1, 0)
        assert bodies(target) == [b"new 0"]


@pytest.mark.parametrize("stored", [3, 4, 5, 6])
def test_an_id_that_comes_twice_is_found_where_the_copy_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: int
) -> None:
    """The process died before it had noted any of it."""
    with mq.open(tmp_path / "twice") as source, mq.open(tmp_path / "there") as target:
        source.create_topic("orders", 1)
        [queue] = source.publishable("orders")
        append = source.appender(queue)
        for number in range(8):
            sent = mq.Message("orders", b"q%d" % (number % 3))
            assert append(sent, sent.body, 0, f"{number % 3:032X}") is not None
        monkeypatch.setattr(LocalBroker, "appender", mortal(LocalBroker.appender, stored))
        with pytest.raises(OSError, match="dies here"):
            TopicCopy(source, target, "orders", group="copy").run()
        monkeypatch.undo()
        assert copied(source, target) == (8 - stored, 0)
        assert bodies(target) == bodies(source)
