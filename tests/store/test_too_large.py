"""What has no room in the log is refused by what of it is too large: its size, the limit, and the way out."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.properties import PROPERTIES_SIZE_MAX
from tests.support.appending import append_many, append_one
from tests.support.store.small_store import LOG_FILE_SIZE, open_small

LIMIT = LOG_FILE_SIZE - 1024
LONG = PROPERTIES_SIZE_MAX + 100
OTHER_FILES = "commitlog_file_size"
Send = Callable[[LocalBroker, list[mq.Message]], object]


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        yield broker


def message(body_size: int, properties_size: int) -> mq.Message:
    """As others may send it: Message itself refuses properties that are too long."""
    encoded = b"a\x01".ljust(properties_size - 1, b"v") + b"\x02" if properties_size else b""
    restored: mq.Message = mq.Message.restored("A", b"x" * body_size, 0, True, encoded)
    return restored


def single(broker: LocalBroker, messages: list[mq.Message]) -> object:
    return append_one(broker, "A", 0, messages[-1], messages[-1].body, 0)


def single_with_an_id(broker: LocalBroker, messages: list[mq.Message]) -> object:
    return append_one(broker, "A", 0, messages[-1], messages[-1].body, 0, "A" * 32)


def batch(broker: LocalBroker, messages: list[mq.Message]) -> object:
    return append_many(broker, "A", 0, messages)


def bulk(broker: LocalBroker, messages: list[mq.Message]) -> object:
    bodies, properties = [each.body for each in messages], [each.encoded for each in messages]
    return broker.bulk.append(
        [mq.MessageQueue("A", broker.name, 0)],
        array("i", [0] * len(messages)),
        bodies,
        array("i", map(len, bodies)),
        properties,
        array("i", map(len, properties)),
    )


@pytest.mark.parametrize("send", [single, single_with_an_id, batch, bulk])
@pytest.mark.parametrize(
    ("body_size", "properties_size", "size", "limit", "words"),
    [
        (5000, 0, 5000, LIMIT, ["a body of 5,000 bytes", OTHER_FILES]),
        (5000, 3000, 5000, LIMIT, ["a body of 5,000 bytes", OTHER_FILES]),
        (1, LONG, LONG, PROPERTIES_SIZE_MAX, ["tags, keys and properties of", "into the body"]),
        (10, 4000, 4010, LIMIT, ["a message of 4,010 bytes", "10 of its body and 4,000 of its", OTHER_FILES]),
        (2000, 2500, 4500, LIMIT, ["2,000 of its body and 2,500 of its tags, keys", OTHER_FILES]),
    ],
)
def test_the_error_names_what_is_too_large(
    broker: LocalBroker,
    send: Send,
    body_size: int,
    properties_size: int,
    size: int,
    limit: int,
    words: list[str],
) -> None:
    with pytest.raises(mq.MessageTooLarge) as caught:
        send(broker, [message(body_size, properties_size)])
    assert (caught.value.size, caught.value.limit) == (size, limit)
    for word in [*words, f"{size:,}", f"{limit:,}"]:
        assert word in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.size) == (str(caught.value), size)
    assert broker.topic("A").queues[0].max_offset == 0


@pytest.mark.parametrize("send", [batch, bulk])
def test_of_many_it_names_the_one(broker: LocalBroker, send: Send) -> None:
    with pytest.raises(mq.MessageTooLarge, match=r"properties of .* bytes in message 2 of 3") as caught:
        send(broker, [message(100, 0), message(1, LONG), message(200, 10)])
    assert caught.value.size == LONG
    assert broker.topic("A").queues[0].max_offset == 0


def test_of_a_batch_it_names_all_of_it_and_of_a_bulk_each(broker: LocalBroker) -> None:
    messages = [message(200, 50)] * 20
    with pytest.raises(mq.MessageTooLarge, match=r"a batch of 20 messages, .* in several parts") as caught:
        batch(broker, messages)
    batch(broker, messages[:1])
    (stored,) = broker.topic("A").queues[0].read(0).messages
    assert caught.value.size == 20 * stored.store_size
    bulk(broker, messages)  # It may lie in several files.
    with pytest.raises(mq.MessageTooLarge, match="a body of 5,000 bytes in message 21 of 21"):
        bulk(broker, [*messages, message(5000, 50)])
    assert broker.topic("A").queues[0].max_offset == 21
