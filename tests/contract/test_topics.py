"""Topics: made, changed, deleted, made by sending to them, and what may not be done to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mq
from mq.api.local import Directory
from tests.contract.conftest import Open
from tests.contract.differences import (
    CHECKED_FIRST,
    LONG_NAMES,
    ONE_WAY_REFUSALS,
    OWN_SETTINGS,
    SHRINKING,
    UNREAD_LAG,
    needs,
)
from tests.support import assigned
from tests.support.appending import append_many, append_one, queue_named

UNSENDABLE = [
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "rmq_sys_wheel_timer",
]


def queue_ids(topic: mq.Topic) -> list[int]:
    return [queue.queue_id for queue in topic.queues]


LATE: dict[str, Any] = {"delay_ms": 400 * 24 * 3600 * 1000}
# Rejected sends to a missing topic, by their options and by their way.
REFUSED: dict[str, Callable[[mq.Broker, mq.Producer, mq.TransactionProducer], Any]] = {
    "send too late": lambda _b, p, _t: p.send(mq.Message("fresh", b"x", **LATE)),
    "send to no queue": lambda b, p, _t: p.send(mq.Message("fresh", b"x"), queue=queue_named(b, "fresh", 4)),
    "send too late, to a queue": lambda b, p, _t: p.send(
        mq.Message("fresh", b"x", **LATE), queue=queue_named(b, "fresh", 3)
    ),
    "send too late, with a key": lambda _b, p, _t: p.send(mq.Message("fresh", b"x", dedup_key="k", **LATE)),
    "send of no such level": lambda _b, p, _t: p.send(mq.Message("fresh", b"x", delay_level=99)),
    "send too late, by shard": lambda _b, p, _t: p.send(mq.Message("fresh", b"x", **LATE), shard_key="k"),
    "async too late": lambda _b, p, _t: p.send_async(mq.Message("fresh", b"x", **LATE)).result(),
    "async to no queue": lambda b, p, _t: p.send_async(
        mq.Message("fresh", b"x"), queue=queue_named(b, "fresh", 4)
    ).result(),
    "one-way too late": lambda _b, p, _t: p.send_oneway(mq.Message("fresh", b"x", **LATE)),
    "one-way to no queue": lambda b, p, _t: p.send_oneway(
        mq.Message("fresh", b"x"), queue=queue_named(b, "fresh", -1)
    ),
    "batch of delayed": lambda _b, p, _t: p.send_batch(
        [mq.Message("fresh", b"x"), mq.Message("fresh", b"x", delay_level=1)]
    ),
    "batch to no queue": lambda b, p, _t: p.send_batch(
        [mq.Message("fresh", b"x")] * 2, queue=queue_named(b, "fresh", 4)
    ),
    "append to no queue": lambda b, _p, _t: append_one(b, "fresh", 4, mq.Message("fresh", b"x"), b"x", 0),
    "append too late": lambda b, _p, _t: append_one(
        b, "fresh", 0, mq.Message("fresh", b"x", **LATE), b"x", 0
    ),
    "append of a batch to no queue": lambda b, _p, _t: append_many(
        b, "fresh", 4, [mq.Message("fresh", b"x")] * 2
    ),
    "transaction of a delayed one": lambda _b, _p, t: t.begin(mq.Message("fresh", b"x", **LATE)),
}


def send(broker: mq.Broker, topic: str, body: bytes = b"x") -> mq.SendResult:
    with mq.Producer(broker) as producer:
        return producer.send(mq.Message(topic, body))


def test_a_topic_has_the_queues_that_were_asked_for(broker: mq.Broker) -> None:
    topic = broker.create_topic("orders", 3)
    assert topic.name == "orders"
    assert queue_ids(topic) == [0, 1, 2]
    assert {queue.topic for queue in topic.queues} == {"orders"}
    assert [queue.message_queue for queue in topic.queues] == [
        queue_named(broker, "orders", queue_id) for queue_id in range(3)
    ]
    assert "orders" in broker.topics()


def test_a_topic_has_four_queues_by_default(broker: mq.Broker) -> None:
    assert queue_ids(broker.create_topic("orders")) == [0, 1, 2, 3]
    assert len(broker.publishable("orders")) == 4


def test_topic_finds_what_create_topic_made(broker: mq.Broker) -> None:
    broker.create_topic("orders", 2)
    assert queue_ids(broker.topic("orders")) == [0, 1]


def test_an_unknown_topic_is_not_found(broker: mq.Broker) -> None:
    with pytest.raises(mq.TopicNotFound) as caught:
        broker.topic("orders")
    assert caught.value.topic == "orders"
    with pytest.raises(mq.TopicNotFound):
        broker.delete_topic("orders")
    assert "orders" not in broker.topics()


def test_making_a_topic_again_with_the_same_values_changes_nothing(broker: mq.Broker) -> None:
    broker.create_topic("orders", 2, perm="rw")
    sent = send(broker, "orders")
    version = broker.route_version()
    topic = broker.create_topic("orders", 2, perm="rw")
    assert broker.route_version() == version
    assert topic.queues[sent.queue.queue_id].max_offset == 1


def test_making_a_topic_again_with_other_values_changes_it_and_keeps_its_messages(broker: mq.Broker) -> None:
    broker.create_topic("orders", 1)
    send(broker, "orders", b"before")
    version = broker.route_version()
    topic = broker.create_topic("orders", 3)
    assert broker.route_version() > version
    assert queue_ids(topic) == [0, 1, 2]
    assert topic.queues[0].read(0).messages[0].body == b"before"
    assert len(broker.publishable("orders")) == 3


def test_read_and_write_queues_are_counted_apart(broker: mq.Broker) -> None:
    topic = broker.create_topic("orders", read_queue_count=4, write_queue_count=2)
    assert queue_ids(topic) == [0, 1, 2, 3]
    assert [queue.queue_id for queue in broker.publishable("orders")] == [0, 1]
    assert [queue.queue_id for queue in broker.readable("orders")] == [0, 1, 2, 3]


def test_fewer_write_queues_leave_the_messages_of_the_others_readable(broker: mq.Broker) -> None:
    topic = broker.create_topic("orders", 2)
    with mq.Producer(broker) as producer:
        for queue in topic.queues:
            producer.send(mq.Message("orders", b"%d" % queue.queue_id), queue=queue)
        broker.create_topic("orders", read_queue_count=2, write_queue_count=1)
        for _ in range(4):
            assert producer.send(mq.Message("orders", b"later")).queue.queue_id == 0
    assert [len(queue.read(0).messages) for queue in broker.topic("orders").queues] == [5, 1]


def test_a_queue_beyond_the_read_queues_cannot_be_read_but_keeps_what_it_got(broker: mq.Broker) -> None:
    broker.create_topic("orders", read_queue_count=1, write_queue_count=2)
    with mq.Producer(broker) as producer:
        producer.send(mq.Message("orders", b"x"), queue=queue_named(broker, "orders", 1))
    with pytest.raises(ValueError, match="queue"):
        broker.puller(queue_named(broker, "orders", 1))(0, 32, 1 << 20, None, 0.0)
    topic = broker.create_topic("orders", 2)
    assert [message.body for message in topic.queues[1].read(0).messages] == [b"x"]


def filled(broker: mq.Broker, count: int) -> None:
    """Ten messages in each of `count` queues of a topic."""
    topic = broker.create_topic("orders", count)
    for number in range(10 * count):
        queue = topic.queues[number % count].message_queue
        append_one(broker, "orders", queue.queue_id, mq.Message("orders", b"x"), b"x", 0)


def consume(broker: mq.Broker, group: str, queue_ids: range) -> None:
    for queue_id in queue_ids:
        assigned.commit(broker, group, queue_named(broker, "orders", queue_id), 10)


def test_a_queue_is_equal_to_itself(broker: mq.Broker) -> None:
    first, second = broker.create_topic("orders", 2).queues
    assert broker.topic("orders").queues[0] == first != second
    assert len({first, second, *broker.topic("orders").queues}) == 2


def test_what_is_not_given_stays_as_it_is(broker: mq.Broker) -> None:
    filled(broker, 8)
    version = broker.route_version()
    assert len(broker.create_topic("orders").queues) == 8
    assert broker.route_version() == version
    broker.create_topic("orders", perm="r", ordered=True)
    assert len(broker.create_topic("orders", read_queue_count=9).queues) == 9
    with pytest.raises(mq.NotPermitted):
        send(broker, "orders")
    broker.create_topic("orders", perm="rw")
    assert len(broker.publishable("orders")) == 8
    assert len(broker.topic("orders").queues) == 9


def test_unconsumed_queues_are_not_given_up(broker: mq.Broker) -> None:
    filled(broker, 8)
    version = broker.route_version()
    with pytest.raises(mq.NotPermitted, match=r"orders.*shrink=True"):
        broker.create_topic("orders", 4)
    assert broker.route_version() == version
    assert len(broker.publishable("orders")) == len(broker.topic("orders").queues) == 8


@needs(SHRINKING)
def test_queues_that_a_group_has_not_consumed_are_not_given_up(broker: mq.Broker) -> None:
    filled(broker, 4)
    consume(broker, "billing", range(4))
    consume(broker, "audit", range(3))
    with pytest.raises(mq.NotPermitted, match="3"):
        broker.create_topic("orders", 2)
    assert len(broker.create_topic("orders", 4).queues) == 4
    consume(broker, "audit", range(4))
    assert len(broker.create_topic("orders", 2).queues) == 2
    assert broker.group("audit").lag("orders") == 0


@needs(SHRINKING)
def test_a_topic_that_shrinks_is_read_until_all_is_consumed(broker: mq.Broker) -> None:
    filled(broker, 4)
    assigned.commit(broker, "billing", queue_named(broker, "orders", 0), 0)
    topic = broker.create_topic("orders", 2, shrink=True)
    assert queue_ids(topic) == [0, 1, 2, 3]
    assert [queue.queue_id for queue in broker.publishable("orders")] == [0, 1]
    with pytest.raises(ValueError, match="queue"):
        append_one(broker, "orders", 3, mq.Message("orders", b"x"), b"x", 0)
    assert broker.group("billing").lag("orders") == 40
    assert len(broker.create_topic("orders").queues) == 4
    consume(broker, "billing", range(4))
    assert queue_ids(broker.create_topic("orders", 2)) == [0, 1]
    assert broker.group("billing").lag("orders") == 0


@needs(SHRINKING)
def test_queues_that_are_given_up_for_reading_get_no_new_messages(broker: mq.Broker) -> None:
    broker.create_topic("orders", 8)
    topic = broker.create_topic("orders", read_queue_count=2)
    assert queue_ids(topic) == [0, 1]
    assert [queue.queue_id for queue in broker.publishable("orders")] == [0, 1]
    filled(broker, 8)
    broker.create_topic("orders", read_queue_count=3, shrink=True)
    assert [queue.queue_id for queue in broker.publishable("orders")] == [0, 1, 2]
    broker.create_topic("orders", read_queue_count=2, write_queue_count=4, shrink=True)
    assert [queue.queue_id for queue in broker.publishable("orders")] == [0, 1, 2, 3]


@needs(SHRINKING)
def test_a_topic_that_shrinks_may_grow_again(broker: mq.Broker) -> None:
    filled(broker, 4)
    broker.create_topic("orders", 2, shrink=True)
    assert queue_ids(broker.create_topic("orders", 3)) == [0, 1, 2, 3]
    assert len(broker.publishable("orders")) == 3
    assert queue_ids(broker.create_topic("orders", 6)) == [0, 1, 2, 3, 4, 5]
    consume(broker, "billing", range(6))
    assert queue_ids(broker.create_topic("orders")) == [0, 1, 2, 3, 4, 5]


@needs(UNREAD_LAG)
def test_messages_in_an_unread_queue_are_a_lag_with_a_reason(broker: mq.Broker) -> None:
    broker.create_topic("orders", read_queue_count=1, write_queue_count=2)
    with mq.Producer(broker) as producer:
        producer.send(mq.Message("orders", b"x"), queue=queue_named(broker, "orders", 1))
    group = broker.group("billing")
    assert group.lag("orders") == 1
    [state] = [state for state in group.states("orders") if state.lag]
    assert (state.queue.queue_id, state.committed, state.end, state.owner) == (1, None, 1, None)
    assert "nobody reads it" in state.reason
    broker.create_topic("orders", 2)
    assigned.commit(broker, "billing", state.queue, 1)
    broker.create_topic("orders", read_queue_count=1)
    assert group.lag("orders") == 0


@pytest.mark.parametrize("queue_id", [2, -1, 1 << 20])
def test_a_queue_that_the_topic_does_not_have_takes_no_message(broker: mq.Broker, queue_id: int) -> None:
    broker.create_topic("orders", 2)
    with mq.Producer(broker) as producer, pytest.raises(ValueError, match="queue"):
        producer.send(mq.Message("orders", b"x"), queue=queue_named(broker, "orders", queue_id))


def test_a_topic_without_the_permission_to_write_takes_nothing(broker: mq.Broker) -> None:
    topic = broker.create_topic("orders", 1)
    send(broker, "orders", b"kept")
    broker.create_topic("orders", 1, perm="r")
    with pytest.raises(mq.NotPermitted):
        send(broker, "orders")
    with pytest.raises(mq.NotPermitted):
        append_one(broker, "orders", 0, mq.Message("orders", b"x"), b"x", 0)
    assert [message.body for message in topic.queues[0].read(0).messages] == [b"kept"]


def test_a_producer_learns_that_a_permission_was_taken_away(broker: mq.Broker) -> None:
    broker.create_topic("orders", 1)
    with mq.Producer(broker) as producer:
        producer.send(mq.Message("orders", b"x"))
        broker.create_topic("orders", 1, perm="r")
        with pytest.raises(mq.NotPermitted):
            producer.send(mq.Message("orders", b"x"))
        broker.create_topic("orders", 1, perm="rw")
        assert producer.send(mq.Message("orders", b"x")).queue_offset == 1


def test_a_topic_without_the_permission_to_read_gives_nothing(broker: mq.Broker) -> None:
    topic = broker.create_topic("orders", 1)
    queue = topic.queues[0]
    broker.create_topic("orders", 1, perm="w")
    send(broker, "orders", b"unseen")
    with pytest.raises(mq.NotPermitted):
        queue.read(0)
    broker.create_topic("orders", 1, perm="rw")
    assert queue.read(0).messages[0].body == b"unseen"


@pytest.mark.parametrize("perm", ["x", "rwx", "read", "6", "RW"])
def test_an_unknown_permission_is_refused(broker: mq.Broker, perm: Any) -> None:
    with pytest.raises(ValueError, match="perm"):
        broker.create_topic("orders", perm=perm)
    assert "orders" not in broker.topics()


@pytest.mark.parametrize("count", [0, -1])
def test_a_topic_has_at_least_one_queue(broker: mq.Broker, count: int) -> None:
    with pytest.raises(ValueError, match="queue"):
        broker.create_topic("orders", count)
    assert "orders" not in broker.topics()


@pytest.mark.parametrize("name", ["", "a.b", "a b", "x" * 128, "größe", "a/b", "../up", "a\n", "\x00"])
def test_a_name_outside_of_rocketmqs_rule_is_refused(broker: mq.Broker, name: str) -> None:
    with pytest.raises(mq.TopicInvalid):
        broker.create_topic(name)
    assert name not in broker.topics()


@needs(LONG_NAMES)
def test_a_name_has_up_to_127_characters(broker: mq.Broker) -> None:
    broker.create_topic("x" * 127, 1)
    assert broker.topics() == ["x" * 127]


@pytest.mark.parametrize("name", ["x" * 100, "A-z_0%9|", "%RETRY%group", "-"])
def test_a_name_inside_of_rocketmqs_rule_is_taken(broker: mq.Broker, name: str) -> None:
    broker.create_topic(name, 1)
    assert send(broker, name).queue_offset == 0
    assert broker.topic(name).queues[0].read(0).messages[0].topic == name


def test_a_deleted_topic_is_gone_and_starts_anew(broker: mq.Broker) -> None:
    topic = broker.create_topic("orders", 1)
    queue = topic.queues[0]
    send(broker, "orders", b"old")
    version = broker.route_version()
    broker.delete_topic("orders")
    assert broker.route_version() > version
    assert "orders" not in broker.topics()
    with pytest.raises(mq.TopicNotFound):
        queue.read(0)
    with pytest.raises(mq.TopicNotFound):
        broker.topic("orders")
    broker.create_topic("orders", 1)
    assert queue.read(0).status is mq.PullStatus.NO_NEW_MESSAGE
    assert send(broker, "orders", b"new").queue_offset == 0
    assert [message.body for message in queue.read(0).messages] == [b"new"]


def test_a_producer_makes_the_topic_again_that_was_deleted_under_it(broker: mq.Broker) -> None:
    broker.create_topic("orders", 1)
    with mq.Producer(broker) as producer:
        producer.send(mq.Message("orders", b"x"))
        broker.delete_topic("orders")
        producer.send(mq.Message("orders", b"y"))
    assert len(broker.topic("orders").queues) == 4


def test_sending_makes_an_unknown_topic_with_four_queues(broker: mq.Broker) -> None:
    send(broker, "orders")
    assert queue_ids(broker.topic("orders")) == [0, 1, 2, 3]


@needs(OWN_SETTINGS)
@pytest.mark.parametrize(("asked", "made"), [(1, 1), (6, 6), (100, 8)])
def test_the_template_topic_bounds_what_sending_makes(opened: Open, asked: int, made: int) -> None:
    broker = opened(default_queue_count=asked)
    send(broker, "orders")
    assert len(broker.topic("orders").queues) == made


@needs(OWN_SETTINGS)
def test_without_auto_creation_sending_to_an_unknown_topic_fails(opened: Open) -> None:
    broker = opened(auto_create_topics=False)
    with pytest.raises(mq.TopicNotFound):
        send(broker, "orders")
    assert "orders" not in broker.topics()
    broker.create_topic("orders")
    assert send(broker, "orders").queue_offset == 0


@pytest.mark.parametrize("name", UNSENDABLE)
def test_a_user_cannot_send_to_rocketmqs_own_topics(broker: mq.Broker, name: str) -> None:
    with pytest.raises(mq.NotPermitted):
        send(broker, name)


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"])
def test_a_user_cannot_delete_rocketmqs_own_topics(broker: mq.Broker, name: str) -> None:
    with pytest.raises(mq.NotPermitted):
        broker.delete_topic(name)


def test_topics_do_not_see_each_others_messages(broker: mq.Broker) -> None:
    for name in ("a", "b"):
        broker.create_topic(name, 1)
        send(broker, name, name.encode())
    for name in ("a", "b"):
        assert [message.body for message in broker.topic(name).queues[0].read(0).messages] == [name.encode()]


def _needed(name: str) -> list[str]:
    """What a broker must be able to for this refusal to reach its caller."""
    if "late" not in name:
        return []
    return [CHECKED_FIRST, ONE_WAY_REFUSALS] if "one-way" in name else [CHECKED_FIRST]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs(*_needed(name))) for name in REFUSED],
)
def test_a_send_that_is_refused_leaves_no_topic_behind(broker: mq.Broker, name: str) -> None:
    with (
        mq.Producer(broker, dedup_window=60 if isinstance(broker, Directory) else None) as producer,
        mq.TransactionProducer(broker, "payers", lambda _message: mq.TransactionState.COMMIT) as transactions,
    ):
        with pytest.raises((mq.MessageInvalid, ValueError)):
            REFUSED[name](broker, producer, transactions)
        assert "fresh" not in broker.topics()
        producer.send(mq.Message("fresh", b"x"))
    assert [queue.max_offset for queue in broker.topic("fresh").queues].count(1) == 1


def test_asking_where_to_send_to_makes_no_topic(broker: mq.Broker) -> None:
    assert [queue.queue_id for queue in broker.publishable("fresh")] == [0, 1, 2, 3]
    version = broker.route_version()
    assert len(broker.publishable("fresh")) == 4
    assert "fresh" not in broker.topics()
    assert broker.route_version() == version
    send(broker, "fresh")
    assert len(broker.publishable("fresh")) == 4
