"""An offset that somebody lowered beside the owner of its queue."""

from __future__ import annotations

import pytest

import mq
from mq.remoting.client.groups import consumer_groups, offsets
from mq.remoting.server.server import Server
from tests.support.eventually import eventually


def test_an_owner_raises_an_offset_that_another_client_lowered(
    store: mq.Broker, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier owner that is slow to release a queue writes as late as that."""
    monkeypatch.setattr(consumer_groups, "OFFSETS_SECONDS", 0.1)
    monkeypatch.setattr(offsets, "KEPT_SECONDS", 0.0)
    topic = store.create_topic("orders", 1)
    for _ in range(3):
        topic.send(b"x")
    with (
        mq.open("rocketmq://" + server.name_server, timeout=30.0) as client,
        mq.PushConsumer(client, "billing") as consumer,
    ):
        consumer.subscribe("orders", listener=lambda _message: None)
        consumer.start()
        group = client.group("billing")
        eventually(lambda: list(group.offsets("orders").values()) == [3], lambda: group.states("orders"))
        with mq.PullConsumer(client, "billing") as other:
            (queue,) = client.topic("orders").queues
            other.assign([queue])
            other.seek(queue, 0)
            other.commit()
            assert list(group.offsets("orders").values()) == [0]
            monkeypatch.setattr(offsets, "CHECK_SECONDS", 0.1)
            eventually(lambda: list(group.offsets("orders").values()) == [3], lambda: group.states("orders"))
