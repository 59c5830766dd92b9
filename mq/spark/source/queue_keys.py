"""The names of queues in options and checkpoints: a number, or broker:number on a cluster."""

from __future__ import annotations

from typing import Any

from mq.api.results import MessageQueue

__all__ = ["QueueKey", "key_of", "parse_key", "queue_of"]

QueueKey = int | str  # a number for a directory, a text for a cluster
BROKER_SIZE_MAX = 255


def key_of(queue: MessageQueue, *, on_cluster: bool) -> QueueKey:
    return f"{queue.broker_name}:{queue.queue_id}" if on_cluster else queue.queue_id


def queue_of(topic: str, key: QueueKey, broker_name: str | None) -> MessageQueue:
    """The queue of a key. broker_name: a directory's."""
    if isinstance(key, int):
        assert broker_name is not None
        return MessageQueue(topic, broker_name, key)
    name, _, queue_id = key.rpartition(":")
    return MessageQueue(topic, name, int(queue_id))


def parse_key(value: Any, *, on_cluster: bool) -> QueueKey:
    """The key of a queue. Raises ValueError if the value is not one."""
    if not on_cluster:
        return _number(value)
    if not isinstance(value, str):
        raise ValueError
    name, _, number = value.rpartition(":")
    if not 0 < len(name) <= BROKER_SIZE_MAX or not name.isprintable():
        raise ValueError
    return f"{name}:{_number(number)}"


def _number(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError
    return value
