"""Storing messages in one queue of a broker, past all choice of queues."""

from __future__ import annotations

from collections.abc import Sequence

import mq
from mq.api.queues import Appenders, Queues


def append_one(
    broker: Queues,
    topic: str,
    queue_id: int,
    message: mq.Message,
    body: bytes,
    sys_flag: int = 0,
    unique_id: str | None = None,
) -> mq.SendResult:
    """Store a message with this body."""
    queue = mq.MessageQueue(topic, broker.name, queue_id)
    return Appenders(broker.appender)(queue, message, body, sys_flag, unique_id)


def append_many(broker: Queues, topic: str, queue_id: int, messages: Sequence[mq.Message]) -> mq.SendResult:
    """Store messages side by side."""
    return broker.append_batch(mq.MessageQueue(topic, broker.name, queue_id), messages)


def prepare_one(
    broker: mq.Broker,
    queue: mq.MessageQueue,
    group: str,
    message: mq.Message,
    body: bytes,
    sys_flag: int = 0,
    unique_id: str | None = None,
) -> mq.SendResult:
    """Store a half message of a group of producers."""
    prepare = Appenders(lambda where: broker.transactions.preparer(where, group))
    return prepare(queue, message, body, sys_flag, unique_id)
