"""A topic gets fewer queues between a look at it and the send: the message goes to one that is left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import mq
from mq.api.results import MessageQueue
from mq.api.topic import may_be_gone
from tests.support.appending import append_one


def test_a_send_of_a_topic_takes_a_queue_that_is_left(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mq.open(directory) as broker:
        topic = broker.create_topic("orders", 8)
        publishable = broker.publishable
        eight = publishable("orders")
        broker.create_topic("orders", read_queue_count=1, write_queue_count=1)
        looks = 0

        def late(name: str) -> Sequence[MessageQueue]:
            nonlocal looks
            looks += 1
            return eight if looks % 3 == 1 else publishable(name)

        monkeypatch.setattr(broker, "publishable", late)
        for _ in range(16):
            assert topic.send(b"x").queue.queue_id == 0
            looks = 0
        monkeypatch.undo()
        with pytest.raises(ValueError, match="queues"):
            append_one(broker, "orders", 7, mq.Message("orders", b"x"), b"x", 0)


def test_a_queue_that_was_gone_for_a_moment_is_not_blamed(directory: Path) -> None:
    with mq.open(directory) as broker:
        last = broker.create_topic("orders", 4).queues[3].message_queue
        before = broker.route_version()
        broker.create_topic("orders", 1, shrink=True)
        with pytest.raises(ValueError, match="none of id 3") as caught:
            append_one(broker, "orders", 3, mq.Message("orders", b"x"), b"x", 0)
        assert may_be_gone(broker, last, caught.value, broker.route_version())
        broker.create_topic("orders", 4)
        for version in (before, None):
            assert may_be_gone(broker, last, caught.value, version)
            assert not may_be_gone(broker, last, UnicodeError("of the message"), version)
        assert not may_be_gone(broker, last, caught.value, broker.route_version())
