"""What mq sends in the tests with the oracle, and what each sender is told about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mq
from tests.support.oracle import Sizes

# Small enough that some hundred messages fill several files of each sort. Index files are large enough that
# the library, while it recovers, makes no two of them within a millisecond: it names them by the clock, and
# the second would overwrite the first.
SIZES = Sizes(commitlog_file_size=32 * 1024, queue_file_units=20, index_slot_count=10, index_unit_count=400)
TOPICS = {"orders": 3, "TopicA": 1, "a" * 127: 1}


@dataclass(frozen=True, slots=True)
class Sent:
    """One message as its sender knows it."""

    message: mq.Message
    queue_id: int
    queue_offset: int
    msg_id: str
    offset_msg_id: str


def open_store(directory: Path, sizes: Sizes = SIZES, **options: Any) -> mq.LocalBroker:
    keywords: dict[str, Any] = {**asdict(sizes), **options}
    del keywords["property_crc"]
    if keywords["consume_queue_ext_file_size"]:
        keywords["enable_consume_queue_ext"] = True
    else:
        del keywords["consume_queue_ext_file_size"]
    broker: mq.LocalBroker = mq.open(str(directory), **keywords)
    return broker


def messages(topic: str, first: int, count: int) -> list[mq.Message]:
    """Messages that differ in everything a message has."""
    tags = [None, "TagA", "标签", "😀", "order-created", "polygenelubricants"]
    bodies = [b"x", bytes(range(256)), "Grüße, 世界 😀".encode(), b"compresses well " * 300]
    return [
        mq.Message(
            topic,
            bodies[number % len(bodies)] + b"%d" % number,
            tags=tags[number % len(tags)],
            keys=[(), f"k{number}", (f"k{number}", "every", "Schlüssel")][number % 3],
            properties={"number": str(number), "Stadt": "Köln"} if number % 4 else None,
            flag=[0, 7, -2][number % 3],
        )
        for number in range(first, first + count)
    ]


def send_one_by_one(broker: mq.Broker, topic: str, first: int, count: int) -> list[Sent]:
    sent = []
    queues = broker.topic(topic).queues
    with mq.Producer(broker) as producer:
        for number, message in enumerate(messages(topic, first, count)):
            queue = queues[(first + number) % len(queues)].message_queue
            result = producer.send(message, queue=queue)
            assert result.status is mq.SendStatus.SEND_OK
            assert result.offset_msg_id is not None
            sent.append(
                Sent(message, queue.queue_id, result.queue_offset, result.msg_id, result.offset_msg_id)
            )
    return sent


def send_as_batch(broker: mq.Broker, topic: str, first: int, count: int) -> list[Sent]:
    queue = broker.topic(topic).queues[0].message_queue
    batch = messages(topic, first, count)
    with mq.Producer(broker) as producer:
        result = producer.send_batch(batch, queue=queue)
    assert result.offset_msg_id is not None
    return [
        Sent(message, queue.queue_id, result.queue_offset + number, msg_id, offset_msg_id)
        for number, (message, msg_id, offset_msg_id) in enumerate(
            zip(batch, result.msg_ids, result.offset_msg_id.split(","), strict=True)
        )
    ]


def send_everything(broker: mq.Broker) -> list[Sent]:
    """Several segments, queue files and index files of single messages and batches, in several topics."""
    for topic, queue_count in TOPICS.items():
        broker.create_topic(topic, queue_count=queue_count)
    sent = []
    for topic in TOPICS:
        sent += send_one_by_one(broker, topic, 0, 70)
        sent += send_as_batch(broker, topic, 100, 12)
        sent += send_as_batch(broker, topic, 200, 1)
        sent += send_one_by_one(broker, topic, 300, 30)
    return sent
