"""Topics that get fewer queues: what the directory says meanwhile, and what ends it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.api.group import Subscription
from mq.broker.check import notes
from mq.broker.local import LocalBroker
from mq.broker.topics.registry import Catalog, UnreadIn
from mq.broker.topics.unread import Unread, in_words, unread
from tests.support import assigned
from tests.support.appending import append_one
from tests.support.insides import catalog_of, groups_of, store_of

SOON = 60.0


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    """A topic of eight queues with ten messages in each."""
    with mq.open(directory, duties=False) as broker:
        topic = broker.create_topic("orders", 8)
        for number in range(80):
            queue_id = topic.queues[number % 8].queue_id
            append_one(broker, "orders", queue_id, mq.Message("orders", b"x"), b"x", 0)
        yield broker


def written(directory: Path) -> dict[str, object]:
    table = json.loads((directory / "config" / "topics.json").read_text())
    settings: dict[str, object] = table["topicConfigTable"]["orders"]
    return settings


def queue_count(broker: mq.Broker) -> int:
    return len(broker.topic("orders").queues)


def test_a_group_gets_what_the_queues_to_go_hold_and_then_they_go(broker: LocalBroker) -> None:
    broker.create_topic("orders", 4, shrink=True)
    got, all_there = [], threading.Event()

    def listener(message: mq.MessageExt) -> None:
        got.append((message.queue_id, message.queue_offset))
        if len(got) == 80:
            all_there.set()

    consumer = mq.PushConsumer(broker, "billing")
    consumer.subscribe("orders", listener=listener)
    with consumer:
        consumer.start()
        assert all_there.wait(SOON)
    catalog_of(broker).finish_shrinking(groups_of(broker).unread)
    assert queue_count(broker) == 4
    assert len(set(got)) == 80
    assert broker.group("billing").lag("orders") == 0


def test_rocketmq_reads_all_queues_of_a_topic_that_shrinks(broker: LocalBroker, directory: Path) -> None:
    broker.create_topic("orders", 4, shrink=True)
    settings = written(directory)
    assert (settings["readQueueNums"], settings["writeQueueNums"], settings["mqReadQueueNums"]) == (8, 4, 4)
    for queue in broker.topic("orders").queues:
        assigned.commit(broker, "billing", queue.message_queue, 10)
    catalog_of(broker).finish_shrinking(groups_of(broker).unread)
    settings = written(directory)
    assert (settings["readQueueNums"], settings["writeQueueNums"]) == (4, 4)
    assert "mqReadQueueNums" not in settings


def test_the_process_that_has_the_duties_ends_it(
    broker: LocalBroker, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("orders", 4, shrink=True)
    monkeypatch.setattr("mq.broker.parts.OFFSETS_INTERVAL", 0.05)
    is_done = threading.Event()
    finish = Catalog.finish_shrinking

    def finished(catalog: Catalog, of_groups: UnreadIn) -> None:
        finish(catalog, of_groups)
        if queue_count(broker) == 4:
            is_done.set()

    monkeypatch.setattr(Catalog, "finish_shrinking", finished)
    with mq.open(directory):
        for queue in broker.topic("orders").queues:
            assigned.commit(broker, "billing", queue.message_queue, 10)
        assert is_done.wait(SOON)


def test_it_goes_on_after_the_store_was_closed(directory: Path, broker: LocalBroker) -> None:
    broker.create_topic("orders", 4, shrink=True)
    broker.close()
    with mq.open(directory, duties=False) as again:
        assert queue_count(again) == 8
        for queue in again.topic("orders").queues:
            assigned.commit(again, "billing", queue.message_queue, 10)
        catalog_of(again).finish_shrinking(groups_of(again).unread)
        assert queue_count(again) == 4


def test_a_live_broadcasting_group_keeps_the_queues(broker: LocalBroker) -> None:
    for queue in broker.topic("orders").queues:
        assigned.commit(broker, "billing", queue.message_queue, 10)
    membership = broker.consumer_groups.join(
        "caches",
        client_id="one",
        model="broadcasting",
        consume_type="push",
        ordered=False,
        subscriptions=[Subscription("orders")],
    )
    with pytest.raises(mq.NotPermitted, match="caches"):
        broker.create_topic("orders", 4)
    membership.leave()
    assert len(broker.create_topic("orders", 4).queues) == 4


def test_a_delayed_message_goes_to_a_queue_that_stays(broker: LocalBroker) -> None:
    broker.create_topic("orders", 4, shrink=True)
    assert catalog_of(broker).due_place("orders", 6) == ("orders", 2)


def test_verify_notes_messages_that_no_group_reads(broker: LocalBroker, directory: Path) -> None:
    assert list(notes(directory)) == []
    broker.create_topic("orders", 6, shrink=True)
    [note] = notes(directory)
    assert "being shrunk to 6 queues: queues 6, 7 hold 20 messages" in note
    path = directory / "config" / "topics.json"
    table = json.loads(path.read_text())
    table["topicConfigTable"]["orders"]["readQueueNums"] = 6
    path.write_text(json.dumps(table))
    [note] = notes(directory)
    assert "nobody reads it: the topic has 6 queues to read. mq DIR create orders --read-queues 8" in note
    store_of(broker).topics_changed()
    states = broker.group("billing").states("orders")
    assert [state.queue.queue_id for state in states if "nobody reads it" in state.reason] == [6, 7]
    assert broker.group("billing").lag("orders") == 80


def test_what_is_unread_is_of_the_group_that_is_furthest_behind() -> None:
    extents = {0: (0, 10), 1: (4, 10), 2: (3, 3), 3: (0, 5)}
    offsets = {"a": {0: 10, 1: 2, 3: 5}, "b": {0: 10, 1: 9, 3: 1}}
    assert unread(extents, offsets) == {1: Unread(6, ("a", "b")), 3: Unread(4, ("b",))}
    assert unread(extents, {}) == {0: Unread(10, ()), 1: Unread(6, ()), 3: Unread(5, ())}
    assert unread({0: (0, 2)}, {"a": {0: 2}, "c": None}) == {0: Unread(2, ("c",))}


def test_many_queues_and_groups_are_a_short_text() -> None:
    held = {queue_id: Unread(1, (f"g{queue_id}",)) for queue_id in range(1000)}
    text = in_words(held)
    assert len(text) < 200
    assert "995 more" in text
    assert in_words({3: Unread(1, ())}) == "queue 3 holds 1 message that is not consumed by any group"
