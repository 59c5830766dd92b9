"""Appends that tests have die in the middle: their records are whole, and nobody was ever told of them."""

from __future__ import annotations

from array import array
from typing import Any

import mq
from mq.broker.local import LocalBroker
from tests.support.appending import append_one

__all__ = ["ACKNOWLEDGED", "BODY_SIZE", "MIB", "batch", "bodies", "bulk", "send", "sizes"]

MIB = 1 << 20
BODY_SIZE = 3000
ACKNOWLEDGED = [b"acknowledged %d" % number for number in range(20)]


def sizes(file_size: int) -> dict[str, Any]:
    return {
        "commitlog_file_size": file_size,
        "queue_file_units": 20_000,
        "index_slot_count": 16,
        "index_unit_count": 4096,
        "duties": False,
    }


def send(broker: LocalBroker, *bodies: bytes) -> None:
    for body in bodies:
        append_one(broker, "orders", 0, mq.Message("orders", body), body, 0)


def ghosts(count: int) -> list[bytes]:
    """Without a zero byte: what lies behind the log's end looks like an end where eight are zero."""
    return [b"ghost %d" % number + b"." * (BODY_SIZE - len(b"ghost %d" % number)) for number in range(count)]


def bulk(broker: LocalBroker, count: int) -> None:
    """Messages that are there all together, or not at all."""
    first = b"MQ_BULK\x01%d\x02" % count
    broker.bulk.append(
        [broker.topic("orders").queues[0].message_queue],
        array("i", [0] * count),
        [b"".join(ghosts(count))],
        array("i", [BODY_SIZE] * count),
        [first],
        array("i", [len(first)] + [0] * (count - 1)),
    )


def batch(broker: LocalBroker, count: int) -> None:
    queue = broker.topic("orders").queues[0].message_queue
    broker.append_batch(queue, [mq.Message("orders", body) for body in ghosts(count)])


def bodies(broker: LocalBroker) -> list[bytes]:
    queue, found, at = broker.topic("orders").queues[0], list[bytes](), 0
    while messages := queue.read(at, count_max=1000).messages:
        assert [message.queue_offset for message in messages] == list(range(at, at + len(messages)))
        found += [message.body for message in messages]
        at += len(messages)
    return found
