"""RocketMQ's design as an embedded library.

    broker = mq.open("var/orders")
    producer = mq.Producer(broker)
    producer.send(mq.Message("orders", b"...", tags="paid", keys="order-1001"))
    for queue in broker.topic("orders").queues:
        for message in queue.read(0).messages:
            ...

Any number of processes open the same directory at a time. What stands in __all__ is public; the modules
behind it may change, and are loaded when a name is first asked for, so that `import mq` takes little time.
"""

from __future__ import annotations

import errno
import importlib
from typing import TYPE_CHECKING, Any

import mq.fastpath  # noqa: F401 - first of all: it refuses an interpreter that is not the main one
from mq.errors import (
    AddressInUse,
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
    NotSupported,
    ProtocolMismatch,
    RemotingError,
    ReplicaBehind,
    ReplicaDiverged,
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

if TYPE_CHECKING:
    from mq import aio as aio
    from mq import remoting as remoting
    from mq import spark as spark
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
    from mq.message import Message, MessageExt
    from mq.opening import open  # noqa: A004 - mq.open is the API
    from mq.remoting.client.broker import RemoteBroker
    from mq.txn.producer import Transaction, TransactionProducer

__version__ = "0.1.0"

__all__ = [
    "AddressInUse",
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
    "NotSupported",
    "Once",
    "Producer",
    "ProtocolMismatch",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "Queue",
    "QueueState",
    "RemoteBroker",
    "RemotingError",
    "ReplicaBehind",
    "ReplicaDiverged",
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

# The module of each public name that is not here already.
_MODULES = {
    "Broker": "mq.api.broker",
    "Group": "mq.api.broker",
    "Member": "mq.api.broker",
    "MessageQueue": "mq.api.broker",
    "PullResult": "mq.api.broker",
    "PullStatus": "mq.api.broker",
    "Queue": "mq.api.broker",
    "QueueState": "mq.api.broker",
    "SendResult": "mq.api.broker",
    "SendStatus": "mq.api.broker",
    "Subscription": "mq.api.broker",
    "Topic": "mq.api.broker",
    "TransactionState": "mq.api.transactions",
    "LocalBroker": "mq.broker.local",
    "open": "mq.opening",
    "RemoteBroker": "mq.remoting.client.broker",
    "Once": "mq.client.once",
    "Producer": "mq.client.producer",
    "PullConsumer": "mq.client.pull_consumer",
    "PushConsumer": "mq.client.push_consumer",
    "Retry": "mq.client.retry",
    "Message": "mq.message",
    "MessageExt": "mq.message",
    "Transaction": "mq.txn.producer",
    "TransactionProducer": "mq.txn.producer",
}


def _load(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except (OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        few = "descriptors" if isinstance(error, OSError) and error.errno != errno.ENOMEM else "memory"
        raise InsufficientResources(f"{module} cannot be loaded: {error}", resource=few) from error


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            found = globals()[name] = getattr(_load(_MODULES[name]), name)
            return found
        try:
            if not name.startswith("_"):
                return _load(f"mq.{name}")  # mq.txn, mq.aio: a package of mq, as if it had been imported
        except ModuleNotFoundError as error:
            if error.name != f"mq.{name}":
                raise
        raise AttributeError(f"module 'mq' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
