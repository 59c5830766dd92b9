"""Keys that had to go from the table for others: the index is looked into, in C for those that are new."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from tests.dedup.dedup_actors import SMALL, order
from tests.support.insides import set_dedup_buckets, store_of


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    # Without duties, which bring the index up every second.
    with mq.open(directory, duties=False, **SMALL) as broker:
        broker.create_topic("orders", 1)
        yield broker


def producer_of(broker: LocalBroker, window: float = 3600.0) -> mq.Producer:
    # Longer than the usual 3 s, in which a slow machine may stand still.
    return mq.Producer(broker, dedup_window=window, timeout=60.0)


def test_keys_that_had_to_go_are_asked_for(broker: LocalBroker, asked: list[str]) -> None:
    set_dedup_buckets(broker, 1)
    producer = producer_of(broker)
    results = [producer.send(order(b"one"), dedup_key=f"key-{number}") for number in range(50)]
    asked.clear()
    for number, result in enumerate(results):
        again = producer.send(order(b"one"), dedup_key=f"key-{number}")
        assert again.offset_msg_id == result.offset_msg_id
    assert broker.topic("orders").queues[0].max_offset == 50
    assert len(set(asked)) > 40, "the table has seven"


@pytest.mark.parametrize("delay_level", [0, 5])
def test_new_keys_need_not_be_asked_for_when_others_had_to_go(
    broker: LocalBroker, asked: list[str], delay_level: int
) -> None:
    """The index is looked into in C, also when it has got new files."""
    set_dedup_buckets(broker, 8)
    producer, count = producer_of(broker), 1500
    results = [
        producer.send(order(b"one", delay_level=delay_level * (number % 3 == 0)), dedup_key=f"key-{number}")
        for number in range(count)
    ]
    assert len(store_of(broker).index.files()) > 2
    assert len({result.offset_msg_id for result in results}) == count
    # The index is behind each 56 messages or so, which is all that the table has.
    assert len(asked) < count / 3 + delay_level * count
    asked.clear()
    for number in random.Random(5).sample(range(count), 300):
        again = producer.send(order(b"again"), dedup_key=f"key-{number}")
        assert again.offset_msg_id == results[number].offset_msg_id
    assert len(set(asked)) > 200
    other = producer_of(broker, 0.001)
    time.sleep(0.01)
    assert other.send(order(b"later"), dedup_key="key-1").offset_msg_id != results[1].offset_msg_id


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_had_to_go_is_found_in_files_of_the_index_that_others_made(
    broker: LocalBroker, is_lost: bool
) -> None:
    """By a broker that has the earlier files in memory, the last of which is full by then, or lost."""
    set_dedup_buckets(broker, 1)
    producer = producer_of(broker)  # Its later sends are one call of C.
    results = [
        producer.send(order(b"one"), dedup_key=f"key-{number}") for number in range(100 if is_lost else 500)
    ]
    (file,) = store_of(broker).index.files()
    if is_lost:
        file.path.unlink()
    with mq.open(broker.path, **SMALL) as other, producer_of(other) as others:
        results += [
            others.send(order(b"one"), dedup_key=f"key-{number}")
            for number in range(len(results), len(results) + 100)
        ]
        other.query("orders", "key-0")  # which has all of them indexed
        for number, result in reversed(list(enumerate(results))[-150:]):
            again = producer.send(order(b"again"), dedup_key=f"key-{number}")
            assert again.offset_msg_id == result.offset_msg_id
