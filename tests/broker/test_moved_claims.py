"""Claims of queues whose topic was deleted and made anew: of the queue of that name there is now, or lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.client.engine import claimed_queues
from mq.client.engine.owned_queue import OwnedQueue
from tests.support.joining import join
from tests.support.store.small_store import open_small, send

SOON = 30.0
QUEUE = mq.MessageQueue("orders", "mq", 0)


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        yield broker


def make_anew(broker: LocalBroker, queue_count: int = 1) -> None:
    broker.delete_topic("orders")
    broker.create_topic("orders", queue_count)
    for queue_id in range(queue_count):
        for number in range(3):
            send(broker, "orders", queue_id, b"new %d" % number)


def test_one_whose_queue_another_member_has_is_lost(broker: LocalBroker) -> None:
    first, second = join(broker, "first"), join(broker, "second")
    claim = first.claim(QUEUE)
    assert claim is not None
    make_anew(broker)
    other = second.claim(QUEUE)
    assert other is not None
    assert not claim.is_current()
    assert claim.is_lost()
    assert not claim.commit(3)
    assert other.commit(2)
    assert first.claim(QUEUE) is None
    other.release()
    again = first.claim(QUEUE)
    assert again is not None
    assert again.committed() == 2


@pytest.mark.parametrize("looks", [True, False])
def test_one_that_gets_the_queue_begins_where_the_group_is(broker: LocalBroker, looks: bool) -> None:
    first, second = join(broker, "first"), join(broker, "second")
    claim = first.claim(QUEUE)
    assert claim is not None
    make_anew(broker)
    other = second.claim(QUEUE)
    assert other is not None
    assert other.commit(2)
    other.release()
    if looks:
        assert not claim.is_current()
    assert claim.committed() == 2
    assert claim.is_current()


def test_a_consumer_does_not_take_what_another_one_has_in_hand(broker: LocalBroker) -> None:
    make_anew(broker, 2)
    consumers: dict[str, mq.PullConsumer] = {}

    def polled(name: str) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {}
        for _ in range(4):
            for message in consumers[name].poll(0):
                found.setdefault(message.queue_id, []).append(message.body)
        return found

    def add(name: str) -> None:
        consumers[name] = mq.PullConsumer(broker, "billing", client_id=name, auto_commit=False)
        consumers[name].subscribe("orders")

    new = [b"new 0", b"new 1", b"new 2"]
    add("m")
    assert polled("m") == {0: new, 1: new}
    make_anew(broker, 2)
    add("z")  # It has what "m", which does not look, has not claimed of the new topic.
    assert polled("z") == {1: new}
    add("a")
    assert polled("a") == {0: new}
    assert polled("m") == {}  # Its share is what "z" has in hand.
    consumers["z"].commit()
    consumers["z"].close()
    assert polled("m") == {}
    for consumer in consumers.values():
        consumer.close()
    assert sum(broker.group("billing").offsets("orders").values()) == 3


def test_a_claim_is_given_back_where_its_queue_cannot_be_had(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> OwnedQueue:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(claimed_queues, "OwnedQueue", failing)
    with mq.PullConsumer(broker, "billing") as consumer:
        consumer.subscribe("orders")
        with pytest.raises(OSError, match="Too many"):
            consumer.poll(0)
        [state] = broker.group("billing").states("orders")
        assert state.owner is None
