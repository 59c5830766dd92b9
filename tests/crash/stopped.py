"""A process that appends, and is stopped where it is told to: see tests/crash/test_stopped_appends.py."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mq
from mq.broker.local import LocalBroker

__all__ = ["WAYS", "appender", "bulk", "dying_appender"]

TOPIC = "orders"
LARGE = 40_000  # bytes: a file of the log has room for one


def _single(broker: LocalBroker, name: str) -> list[bytes]:
    body = name.encode()
    with mq.Producer(broker) as producer:
        producer.send(mq.Message(TOPIC, body), queue=mq.MessageQueue(TOPIC, broker.name, 0))
    return [body]


def _large(broker: LocalBroker, name: str) -> list[bytes]:
    """Of which the last one needs a file of the log that nobody has made ahead yet."""
    bodies = [f"{name} {number}".encode().ljust(LARGE, b".") for number in range(3)]
    with mq.Producer(broker, compress_over=1 << 20) as producer:
        for body in bodies:
            producer.send(mq.Message(TOPIC, body), queue=mq.MessageQueue(TOPIC, broker.name, 0))
    return bodies


def _batch(broker: LocalBroker, name: str) -> list[bytes]:
    """Of more messages than a file of the queue has units."""
    bodies = [f"{name} {number}".encode() for number in range(5)]
    with mq.Producer(broker) as producer:
        messages = [mq.Message(TOPIC, body) for body in bodies]
        producer.send_batch(messages, queue=mq.MessageQueue(TOPIC, broker.name, 1))
    return bodies


def _bulk(broker: LocalBroker, name: str) -> list[bytes]:
    bodies = [f"{name} {number}".encode().ljust(8000, b".") for number in range(10)]
    bulk(broker, TOPIC, bodies)
    return bodies


def bulk(broker: LocalBroker, topic: str, bodies: Sequence[bytes]) -> None:
    """An append to several queues at a time."""
    queues = [mq.MessageQueue(topic, broker.name, number) for number in range(2)]
    places = array("i", [number % 2 for number in range(len(bodies))])
    sizes, none = array("i", map(len, bodies)), array("i", [0] * len(bodies))
    broker.bulk.append(queues, places, [b"".join(bodies)], sizes, [], none)


WAYS: dict[str, Callable[[LocalBroker, str], list[bytes]]] = {
    "single": _single,
    "large": _large,
    "batch": _batch,
    "bulk": _bulk,
}


def appender(root: str, way: str, name: str, done: str, sizes: dict[str, Any]) -> None:
    """Writes down what it has sent, in a file that is there when all is sent."""
    with mq.open(root, duties=False, **sizes) as broker:
        sent = WAYS[way](broker, name)
        fresh = Path(done + ".new")
        fresh.write_bytes(b"\n".join(sent))
        fresh.rename(done)


def dying_appender(root: str, way: str, name: str, sizes: dict[str, Any]) -> None:
    """Is killed where it is told to, and leaves what the next process repairs."""
    with mq.open(root, duties=False, **sizes) as broker:
        WAYS[way](broker, name)
