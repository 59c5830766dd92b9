"""A consumer group that is deleted is forgotten: whoever uses its name later is the first of a new group."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import mq
from mq.names import REDRIVE_GROUP
from tests.contract.differences import DELAYED_RETRIES, KEPT_BROADCAST, TOLD_LACK, needs
from tests.support import assigned

GROUP = "billing"
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
BODIES = [b"%d" % number for number in range(6)]
PATIENCE = 60.0


@pytest.fixture
def broker(brokers: tuple[mq.Broker, mq.Broker]) -> mq.Broker:
    """With messages in both queues of orders."""
    topic = brokers[0].topic("orders")
    for number, body in enumerate(BODIES):
        topic.send(body, shard_key=number)
    return brokers[0]


@pytest.fixture
def other(brokers: tuple[mq.Broker, mq.Broker]) -> mq.Broker:
    return brokers[1]


def eventually(is_true: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.005)


def consumed(broker: mq.Broker, count: int = len(BODIES), group: str = GROUP) -> list[bytes]:
    """What a new consumer gets, which then commits and leaves."""
    found: list[bytes] = []
    with mq.PullConsumer(broker, group) as consumer:
        consumer.subscribe("orders")
        until = time.monotonic() + PATIENCE
        while len(found) < count:
            assert time.monotonic() < until, found
            found += [each.body for each in consumer.poll(0.5)]
    return sorted(found)


def handed_back(broker: mq.Broker, **given: int) -> None:
    """Have the first message of orders fail."""
    read = (message for queue in broker.topic("orders").queues for message in queue.read(0).messages)
    assert assigned.send_back(broker, next(read), GROUP, **given)


def exists(broker: mq.Broker, topic: str) -> bool:
    try:
        broker.topic(topic)
    except mq.TopicNotFound:
        return False
    return True


def test_a_deleted_group_is_a_new_group(broker: mq.Broker, other: mq.Broker) -> None:
    assert consumed(broker) == BODIES
    assert broker.groups() == [GROUP]
    other.group(GROUP).delete()
    for one in (broker, other):
        assert one.groups() == []
        group = one.group(GROUP)
        assert (group.topics(), group.members()) == ([], [])
        assert group.lag("orders") == len(BODIES)
    assert consumed(broker) == BODIES
    assert other.group(GROUP).lag("orders") == 0


@needs(TOLD_LACK)
def test_a_deleted_group_has_no_offsets(broker: mq.Broker, other: mq.Broker) -> None:
    consumed(broker)
    other.group(GROUP).delete()
    for one in (broker, other):
        assert one.group(GROUP).offsets("orders") == {}
        assert all(assigned.committed(one, GROUP, queue) is None for queue in one.readable("orders"))


def test_only_this_group_is_deleted(broker: mq.Broker, other: mq.Broker) -> None:
    consumed(broker)
    consumed(broker, group="audit")
    offsets = broker.group("audit").offsets("orders")
    broker.group(GROUP).delete()
    assert other.groups() == ["audit"]
    assert other.group("audit").offsets("orders") == offsets


def test_a_group_with_members_is_not_deleted(broker: mq.Broker, other: mq.Broker) -> None:
    consumed(broker)
    with mq.PullConsumer(broker, GROUP, client_id="reader-1") as consumer:
        consumer.subscribe("orders")
        consumer.poll(0.0)
        eventually(lambda: other.group(GROUP).members())
        offsets = broker.group(GROUP).offsets("orders")
        for one in (broker, other):
            with pytest.raises(mq.NotPermitted, match="reader-1"):
                one.group(GROUP).delete()
        assert other.group(GROUP).offsets("orders") == offsets
    other.group(GROUP).delete()
    assert broker.groups() == []


def test_a_group_that_nobody_used_may_be_deleted(broker: mq.Broker) -> None:
    for _ in range(2):
        broker.group("missing").delete()
        broker.consumer_groups.delete("missing", dead_letters=True)
    assert broker.groups() == []


def test_what_is_no_group_of_a_user_is_not_deleted(broker: mq.Broker) -> None:
    with pytest.raises(mq.GroupInvalid):
        broker.consumer_groups.delete("a b")
    with pytest.raises(mq.NotPermitted, match="own"):
        broker.consumer_groups.delete(REDRIVE_GROUP)


def test_the_retry_topic_goes_and_dead_letters_stay_unless_asked_for(
    broker: mq.Broker, other: mq.Broker
) -> None:
    consumed(broker)
    handed_back(broker, max_reconsume_times=0)
    handed_back(broker, delay_level=1)
    eventually(lambda: exists(other, DEAD) and exists(other, RETRY))
    other.group(GROUP).delete()
    assert not exists(broker, RETRY)
    assert [message.body for message in broker.topic(DEAD).queues[0].read(0).messages] == [BODIES[0]]
    broker.group(GROUP).delete(dead_letters=True)
    assert not exists(other, DEAD)


@needs(DELAYED_RETRIES)
def test_what_waits_for_another_attempt_goes_with_its_group(broker: mq.Broker, other: mq.Broker) -> None:
    consumed(broker)
    handed_back(broker, delay_level=5)
    assert other.group(GROUP).retrying() == {"orders": 1}
    other.group(GROUP).delete()
    for one in (broker, other):
        assert one.group(GROUP).retrying() == {}


@needs(KEPT_BROADCAST)
def test_a_deleted_broadcasting_group_begins_anew(broker: mq.Broker, other: mq.Broker) -> None:
    def heard() -> list[bytes]:
        found: list[bytes] = []
        consumer = mq.PushConsumer(broker, GROUP, model="broadcasting", client_id="reader-1")
        consumer.subscribe("orders", listener=lambda message: found.append(message.body))
        consumer.start()
        with pytest.raises(mq.NotPermitted, match="reader-1"):
            other.group(GROUP).delete()
        eventually(lambda: len(found) >= len(BODIES))
        consumer.close()
        return sorted(found)

    assert heard() == BODIES
    other.group(GROUP).delete()
    assert broker.groups() == []
    assert heard() == BODIES


@needs(TOLD_LACK)
def test_a_consumer_with_assigned_queues_makes_the_group_anew(broker: mq.Broker, other: mq.Broker) -> None:
    queue = broker.topic("orders").queues[0]
    with mq.PullConsumer(broker, GROUP, auto_commit=False) as consumer:
        consumer.assign([queue])
        consumer.seek(queue, 1)
        consumer.commit()
        other.group(GROUP).delete()
        assert consumer.committed(queue) is None
        assert consumer.position(queue) == 1
        consumer.commit()
        consumer.poll(PATIENCE)
        consumer.commit()
    assert broker.group(GROUP).offsets("orders") == {queue.message_queue: queue.max_offset}
