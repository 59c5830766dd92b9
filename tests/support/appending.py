"""Storing messages in one queue of a broker, past all choice of queues."""

from __future__ import annotations

from collections.abc import Sequence

import mq
from mq.api.queues import Appenders, Queues


def queue_named(broker: Queues, topic: str, queue_id: int) -> mq.MessageQueue:
    """A queue by its number, whether the topic has it or not."""
    return mq.MessageQueue(topic, home_of(broker), queue_id)


def home_of(broker: Queues) -> str:
    """The name of the broker that queues are on: of a cluster that of its only broker, not its own."""
    if isinstance(broker, mq.RemoteBroker):
        return broker.publishable("TBW102")[0].broker_name
    return broker.name


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
    queue = queue_named(broker, topic, queue_id)
    return Appenders(broker.appender)(queue, message, body, sys_flag, unique_id)


def append_many(broker: Queues, topic: str, queue_id: int, messages: Sequence[mq.Message]) -> mq.SendResult:
    """Store messages side by side."""
    return broker.append_batch(queue_named(broker, topic, queue_id), messages)


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
