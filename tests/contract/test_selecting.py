"""Reading by SQL92 expressions over the properties of messages."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import mq
from mq.api.broker import SCAN_COUNT_MAX

FOUND, NO_NEW, NO_MATCHED = (
    mq.PullStatus.FOUND,
    mq.PullStatus.NO_NEW_MESSAGE,
    mq.PullStatus.NO_MATCHED_MESSAGE,
)


@pytest.fixture
def topic(broker: mq.Broker) -> mq.Topic:
    return broker.create_topic("orders", 1)


@pytest.fixture
def queue(topic: mq.Topic) -> mq.Queue:
    return topic.queues[0]


def send_priced(topic: mq.Topic, *prices: int) -> None:
    for price in prices:
        topic.send(str(price).encode(), properties={"price": str(price)})


def bodies(result: mq.PullResult) -> list[bytes]:
    return [message.body for message in result.messages]


def test_an_expression_selects_messages(topic: mq.Topic, queue: mq.Queue) -> None:
    send_priced(topic, 50, 150, 99, 101)
    result = queue.read(0, sql="price > 100")
    assert (result.status, bodies(result), result.next_offset) == (FOUND, [b"150", b"101"], 4)


def test_an_expression_that_selects_all_leaves_nothing_out(topic: mq.Topic, queue: mq.Queue) -> None:
    send_priced(topic, 1, 2, 3)
    result = queue.read(1, count_max=1, sql="price IS NOT NULL")
    assert (result.status, bodies(result), result.next_offset) == (FOUND, [b"2"], 2)


def test_tags_and_keys_are_properties_too(topic: mq.Topic, queue: mq.Queue) -> None:
    topic.send(b"paid", tags="paid", keys="k1")
    topic.send(b"open", tags="open", keys=("k1", "k2"))
    assert bodies(queue.read(0, sql="TAGS = 'paid'")) == [b"paid"]
    assert bodies(queue.read(0, sql="KEYS = 'k1 k2'")) == [b"open"]
    assert bodies(queue.read(0, sql="KEYS CONTAINS 'k1'")) == [b"paid", b"open"]


def test_a_body_and_a_topic_are_no_properties(topic: mq.Topic, queue: mq.Queue) -> None:
    topic.send(b"a\x02price\x01500\x02")
    assert bodies(queue.read(0, sql="price > 100")) == []


def test_what_does_not_match_is_passed_over_and_said(topic: mq.Topic, queue: mq.Queue) -> None:
    send_priced(topic, *range(40))
    result = queue.read(0, sql="price > 100")
    assert (result.status, bodies(result), result.next_offset) == (NO_MATCHED, [], 40)
    assert (result.min_offset, result.max_offset) == (0, 40)
    result = queue.read(result.next_offset, sql="price > 100")
    assert (result.status, result.next_offset) == (NO_NEW, 40)


def test_a_rare_match_is_found_behind_many_others(
    broker: mq.Broker, topic: mq.Topic, queue: mq.Queue
) -> None:
    with mq.Producer(broker) as producer:
        producer.send_batch([mq.Message("orders", b"no", properties={"price": "1"})] * 500)
    send_priced(topic, 500)
    result = queue.read(0, sql="price > 100")
    assert (result.status, bodies(result), result.next_offset) == (FOUND, [b"500"], 501)


def test_one_read_looks_at_so_many_and_no_more(broker: mq.Broker, queue: mq.Queue) -> None:
    count = SCAN_COUNT_MAX + 100
    with mq.Producer(broker) as producer:
        producer.send_batch([mq.Message("orders", b"no")] * count)
    result = queue.read(0, sql="price > 100", wait=30.0)
    assert result.status is NO_MATCHED
    assert SCAN_COUNT_MAX <= result.next_offset < count
    assert queue.read(result.next_offset, sql="price > 100").next_offset == count


def test_an_offset_beyond_the_end_stays_illegal(topic: mq.Topic, queue: mq.Queue) -> None:
    send_priced(topic, 1)
    result = queue.read(7, sql="price > 100")
    assert (result.status, result.next_offset) == (mq.PullStatus.OFFSET_ILLEGAL, 1)


def test_a_wait_goes_on_past_messages_that_do_not_match(topic: mq.Topic, queue: mq.Queue) -> None:
    found: list[mq.PullResult] = []
    waiting = threading.Thread(target=lambda: found.append(queue.read(0, sql="price > 100", wait=30.0)))
    waiting.start()
    send_priced(topic, 1, 2, 500)
    waiting.join(30.0)
    (result,) = found
    assert (bodies(result), result.next_offset) == ([b"500"], 3)


def test_a_wait_that_saw_no_match_ends_behind_what_it_saw(topic: mq.Topic, queue: mq.Queue) -> None:
    send_priced(topic, 1, 2)
    result = queue.read(0, sql="price > 100", wait=0.05)
    assert (result.status, bodies(result), result.next_offset) == (NO_MATCHED, [], 2)


def test_a_malformed_expression_is_refused_with_its_place(queue: mq.Queue) -> None:
    with pytest.raises(mq.FilterSyntaxError, match="LIKE") as caught:
        queue.read(0, sql="region LIKE 'E%'")
    assert caught.value.position == 7


def test_tags_and_sql_exclude_each_other(queue: mq.Queue) -> None:
    with pytest.raises(ValueError, match="not both"):
        queue.read(0, expression="paid", sql="price > 100")


def test_an_expression_is_text(queue: mq.Queue) -> None:
    sql: Any = b"price > 100"
    with pytest.raises(TypeError, match="bytes"):
        queue.read(0, sql=sql)
