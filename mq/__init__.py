"""RocketMQ's design as an embedded library.

    broker = mq.open("var/orders")
    producer = mq.Producer(broker)
    producer.send(mq.Message("orders", b"...", tags="paid", keys="order-1001"))
    for queue in broker.topic("orders").queues:
        for message in queue.read(0).messages:
            ...

Any number of processes open the same directory at a time. What stands in __all__ is public; the modules
behind it may change.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

import mq.fastpath  # noqa: F401 - first of all: it refuses an interpreter that is not the main one
from mq.api.broker import (
    Broker,
    Group,
    Member,
    MessageQueue,
    PullResult,
    PullStatus,
    Queue,
    QueueState,
    SendResult,
    SendStatus,
    Subscription,
    Topic,
)
from mq.api.transactions import TransactionState
from mq.broker.local import LocalBroker
from mq.client.once import Once
from mq.client.producer import Producer
from mq.client.pull_consumer import PullConsumer
from mq.client.push_consumer import PushConsumer
from mq.client.retry import Retry
from mq.errors import (
    BrokerClosed,
    ConfigMismatch,
    FilterSyntaxError,
    ForkedBroker,
    GroupInvalid,
    InsufficientResources,
    MessageInvalid,
    MessageNotFound,
    MessageTooLarge,
    MQError,
    NotPermitted,
    RemotingError,
    RequestTimeout,
    SendFailed,
    StoreCorrupted,
    StoreFull,
    StoreLocked,
    StorePoisoned,
    SubscriptionConflict,
    TopicInvalid,
    TopicNotFound,
    VersionMismatch,
)
from mq.message import Message, MessageExt
from mq.txn.producer import Transaction, TransactionProducer
from mq.uninterrupted import uninterrupted

__version__ = "0.1.0"

__all__ = [
    "Broker",
    "BrokerClosed",
    "ConfigMismatch",
    "FilterSyntaxError",
    "ForkedBroker",
    "Group",
    "GroupInvalid",
    "InsufficientResources",
    "LocalBroker",
    "MQError",
    "Member",
    "Message",
    "MessageExt",
    "MessageInvalid",
    "MessageNotFound",
    "MessageQueue",
    "MessageTooLarge",
    "NotPermitted",
    "Once",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "Queue",
    "QueueState",
    "RemotingError",
    "RequestTimeout",
    "Retry",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "StoreCorrupted",
    "StoreFull",
    "StoreLocked",
    "StorePoisoned",
    "Subscription",
    "SubscriptionConflict",
    "Topic",
    "TopicInvalid",
    "TopicNotFound",
    "Transaction",
    "TransactionProducer",
    "TransactionState",
    "VersionMismatch",
    "open",
]

if TYPE_CHECKING:
    from mq import aio as aio
    from mq import spark as spark
else:

    def __getattr__(name: str) -> Any:
        """mq.aio and mq.spark, loaded when they are asked for: they are not for everybody."""
        if name in {"aio", "spark"}:
            return importlib.import_module(f"mq.{name}")
        raise AttributeError(f"module 'mq' has no attribute {name!r}")


def open(target: str | os.PathLike[str], **options: Any) -> LocalBroker:  # noqa: A001 - mq.open is the API
    """The broker over a directory, which is made on first use; the options are LocalBroker's.

    Targets rocketmq://host:port will be brokers at the other end of a connection.
    """
    if isinstance(target, str) and target.startswith("rocketmq://"):
        raise RemotingError(
            f"{target}: the TCP transport is not in this release: open a directory on this machine instead"
        )
    return uninterrupted(lambda: LocalBroker(target, **options), LocalBroker.close)
