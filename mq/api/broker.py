"""Broker: what a client may ask of a broker, and the border between the two.

Producers and consumers know this alone, and never ask which broker they have. Its parts stand beside it:
queues (mq.api.queues), transactions (mq.api.transactions), consumer groups (mq.api.consumer_groups). Topic,
Queue and Group are written once for all brokers.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from mq.api.consumer_groups import ConsumerGroups, Group
from mq.api.group import Assigned, Claim, Member, Membership, QueueState, Subscription, Waiter
from mq.api.handled_keys import DEDUP_KEY, Handled
from mq.api.queues import READ_SIZE_MAX, Appender, Appenders, Puller
from mq.api.results import MessageQueue, PullResult, PullStatus, SendResult, SendStatus
from mq.api.topic import COMPRESS_OVER, SCAN_COUNT_MAX, Queue, Topic, queue_of_key
from mq.api.transactions import Check, Checker, Ender, Transactions, TransactionState, Undecided
from mq.message import MessageExt

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "COMPRESS_OVER",
    "DEDUP_KEY",
    "READ_SIZE_MAX",
    "SCAN_COUNT_MAX",
    "Appender",
    "Appenders",
    "Assigned",
    "Broker",
    "Check",
    "Checker",
    "Claim",
    "Ender",
    "Group",
    "Handled",
    "Member",
    "Membership",
    "MessageQueue",
    "PullResult",
    "PullStatus",
    "Puller",
    "Queue",
    "QueueState",
    "SendResult",
    "SendStatus",
    "Subscription",
    "Topic",
    "TransactionState",
    "Transactions",
    "Undecided",
    "Waiter",
    "queue_of_key",
]


class Broker(ConsumerGroups, Protocol):
    """A store of messages, in a directory or at the other end of a connection."""

    @property
    def transactions(self) -> Transactions:
        """Half messages, and how they end."""
        ...

    def create_topic(
        self,
        name: str,
        queue_count: int | None = None,
        *,
        read_queue_count: int | None = None,
        write_queue_count: int | None = None,
        perm: str | None = None,
        ordered: bool | None = None,
        shrink: bool = False,
    ) -> Topic: ...
    def delete_topic(self, name: str) -> None: ...
    def topics(self) -> list[str]: ...
    def topic(self, name: str) -> Topic: ...
    def message(self, msg_id: str) -> MessageExt: ...
    def query(
        self, topic: str, key: str, *, count_max: int = 32, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[MessageExt]: ...
    def recall(self, handle: str) -> str:
        """Take back a message that waits for its time, by the recall_handle of its SendResult; its unique id.

        Once this returned, the message is never delivered. Raises NotPermitted where it was delivered,
        MessageNotFound where no such message waits, ValueError for what is no handle of this broker."""
        ...

    def groups(self) -> list[str]: ...
    def group(self, name: str) -> Group: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
