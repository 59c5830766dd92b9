"""What RocketMQ's format has no room for is refused by name, before anything is written; the limit itself is
not. And a broker that was closed says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import mq
from mq.properties import PROPERTIES_SIZE_MAX
from tests.contract.conftest import Open
from tests.contract.differences import EXACT_RECORDS, needs


@pytest.fixture
def queue(broker: mq.Broker) -> mq.Queue:
    return broker.create_topic("orders", 1).queues[0]


def test_a_body_at_the_limit_is_stored_and_one_byte_more_is_not(broker: mq.Broker, queue: mq.Queue) -> None:
    limit = broker.message_size_max
    with mq.Producer(broker, compress_over=1 << 30) as producer:
        producer.send(mq.Message("orders", b"x" * limit))
        for send in (producer.send, producer.send_async, producer.send_oneway):
            with pytest.raises(mq.MessageTooLarge) as caught:
                send(mq.Message("orders", b"x" * (limit + 1)))
            assert (caught.value.size, caught.value.limit) == (limit + 1, limit)
        with pytest.raises(mq.MessageTooLarge):
            producer.send_batch([mq.Message("orders", b"x" * (limit + 1))])
        with pytest.raises(mq.MessageTooLarge):
            broker.topic("orders").send(b"x" * (limit + 1))
    assert queue.max_offset == 1
    assert len(queue.read(0).messages[0].body) == limit


def test_a_body_over_the_limit_is_refused_even_if_it_would_compress(
    broker: mq.Broker, queue: mq.Queue
) -> None:
    with mq.Producer(broker) as producer, pytest.raises(mq.MessageTooLarge):
        producer.send(mq.Message("orders", b"x" * (broker.message_size_max + 1)))
    assert queue.max_offset == 0


@needs(EXACT_RECORDS)
def test_properties_at_the_limit_are_stored(broker: mq.Broker, queue: mq.Queue) -> None:
    room = PROPERTIES_SIZE_MAX - len("name\x01\x02")
    with mq.Producer(broker) as producer:
        producer.send(mq.Message("orders", b"x", properties={"name": "v" * room}))
        producer.send_batch([mq.Message("orders", b"x", properties={"name": "v" * room})] * 2)
    for message in queue.read(0).messages:
        assert message.properties["name"] == "v" * room
        assert len(message.encoded) == 32_767
    assert queue.max_offset == 3


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: mq.Message("orders", b""), mq.MessageInvalid),
        (lambda: mq.Message("", b"x"), mq.TopicInvalid),
        (lambda: mq.Message("a.b", b"x"), mq.TopicInvalid),
        (lambda: mq.Message("x" * 128, b"x"), mq.TopicInvalid),
        (lambda: mq.Message("orders", b"x", keys="two words"), mq.MessageInvalid),
        (lambda: mq.Message("orders", b"x", tags="a\x01b"), mq.MessageInvalid),
        (lambda: mq.Message("orders", b"x", properties={"TAGS": "t"}), mq.MessageInvalid),
        (lambda: mq.Message("orders", b"x", properties={"a": "v" * 32_767}), mq.MessageInvalid),
        (lambda: mq.Message("orders", b"x", delay_level=19), mq.MessageInvalid),
        (lambda: mq.Message("orders", b"x", flag=1 << 31), mq.MessageInvalid),
    ],
)
def test_what_the_format_has_no_room_for_is_refused(
    broker: mq.Broker, queue: mq.Queue, make: Callable[[], mq.Message], error: type[Exception]
) -> None:
    with mq.Producer(broker) as producer, pytest.raises(error):
        producer.send(make())
    assert queue.max_offset == 0


@pytest.mark.parametrize("name", ["", "a.b", "a b", "x" * 121, "größe"])
def test_a_group_has_a_name_by_rocketmqs_rule(broker: mq.Broker, name: str) -> None:
    with pytest.raises(mq.GroupInvalid):
        mq.Producer(broker, name)


@pytest.mark.parametrize("name", ["DEFAULT_PRODUCER", "x" * 120, "a-b_c%d|e"])
def test_a_group_may_have_any_name_of_rocketmqs_rule(broker: mq.Broker, name: str) -> None:
    assert mq.Producer(broker, name).group == name


def test_a_closed_broker_says_so_whatever_it_is_asked(opened: Open) -> None:
    broker = opened()
    topic = broker.create_topic("orders", 1)
    queue = topic.queues[0]
    producer = mq.Producer(broker)
    result = producer.send(mq.Message("orders", b"x"))
    broker.close()
    broker.close()
    asked: list[Callable[[], object]] = [
        lambda: producer.send(mq.Message("orders", b"x")),
        lambda: producer.send(mq.Message("orders", b"x"), shard_key="k"),
        lambda: producer.send(mq.Message("new", b"x")),
        lambda: producer.send_batch([mq.Message("orders", b"x")]),
        lambda: producer.send_oneway(mq.Message("orders", b"x")),
        lambda: producer.send_async(mq.Message("orders", b"x")).result(timeout=60),
        lambda: topic.send(b"x"),
        lambda: topic.queues,
        lambda: queue.read(0),
        lambda: queue.read(1, wait=5.0),
        lambda: queue.min_offset,
        lambda: queue.max_offset,
        lambda: queue.offset_at(0),
        lambda: broker.create_topic("new"),
        lambda: broker.delete_topic("orders"),
        broker.topics,
        lambda: broker.topic("orders"),
        lambda: broker.message(result.msg_id),
        lambda: broker.message(result.offset_msg_id),
        lambda: broker.query("orders", "k"),
        broker.flush,
    ]
    for number, ask in enumerate(asked):
        with pytest.raises(mq.BrokerClosed):
            pytest.fail(f"call {number} returned {ask()!r}")
    producer.close()


def test_a_broker_is_closed_when_its_with_statement_ends(opened: Open) -> None:
    with opened() as broker:
        broker.create_topic("orders")
    with pytest.raises(mq.BrokerClosed):
        broker.topics()
