"""What only the broker of a directory can do: every other one says so, in one way; and stands beside one that
can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mq
from mq.api.local import Directory, directory
from tests.contract.conftest import Open

ASKED: dict[str, Callable[[mq.Broker], object]] = {
    "dedup_window": lambda broker: mq.Producer(broker, dedup_window=60),
    "mq.Once": lambda broker: mq.Once(broker, "billing"),
    "read_arrow": lambda broker: broker.topic("orders").queues[0].read_arrow(0),
    "expire": lambda broker: directory(broker, "expire").expire(),
}


@pytest.mark.parametrize("what", ASKED)
def test_without_a_directory_it_is_not_supported(broker: mq.Broker, kind: str, what: str) -> None:
    broker.create_topic("orders", 1)
    if kind not in ("memory", "cluster", "cluster-4.9", "served"):
        assert isinstance(broker, Directory)
        ASKED[what](broker)
        return
    with pytest.raises(mq.NotSupported) as caught:
        ASKED[what](broker)
    assert isinstance(caught.value, mq.NotPermitted)
    assert str(caught.value).startswith(f"{what} needs the broker of a directory on this machine")
    assert repr(broker) in str(caught.value)


def test_keys_are_handled_in_a_directory_beside_the_broker(opened: Open, tmp_path: Path) -> None:
    broker = opened()
    broker.create_topic("orders", 1).send(b"one")
    with mq.open(tmp_path / "handled") as beside, mq.PullConsumer(broker, "billing") as consumer:
        once = mq.Once(beside, "billing")
        consumer.subscribe("orders")
        (message,) = consumer.poll(60)
        for is_fresh in (True, False):
            with once(message) as fresh:
                assert fresh is is_fresh


def test_a_message_with_a_key_is_stored_without_a_window(broker: mq.Broker) -> None:
    queue = broker.create_topic("orders", 1).queues[0]
    with mq.Producer(broker) as producer:
        for _ in range(2):
            producer.send(mq.Message("orders", b"one", dedup_key="order-1"))
    messages = queue.read(0).messages
    assert [message.dedup_key for message in messages] == ["order-1", "order-1"]
    assert len(broker.query("orders", "order-1")) == 2
