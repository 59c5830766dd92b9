"""Broker: what a client may ask of a broker, and the border between the two.

Producers and consumers know this alone, and never ask which broker they have. Its parts stand beside it:
queues (mq.api.queues), transactions (mq.api.transactions), consumer groups (mq.api.consumer_groups); and what
the broker of a directory can do beside that (mq.api.local). Topic, Queue and Group are written once for all
brokers.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from mq.api.consumer_groups import ConsumerGroups, Group
from mq.api.group import Assigned, Claim, Member, Membership, QueueState, Subscription
from mq.api.local import Directory
from mq.api.queues import READ_SIZE_MAX, Appender, Appenders, Puller, Queues
from mq.api.results import MessageQueue, PullResult, PullStatus, SendResult, SendStatus
from mq.api.topic import COMPRESS_OVER, SCAN_COUNT_MAX, Permission, Queue, Topic, TopicChange, queue_of_key
from mq.api.transactions import Check, Checker, Ender, Transactions, TransactionState, Undecided
from mq.api.waiter import Waiter
from mq.message import MessageExt
from mq.names import check_group

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "COMPRESS_OVER",
    "READ_SIZE_MAX",
    "SCAN_COUNT_MAX",
    "Appender",
    "Appenders",
    "Assigned",
    "Broker",
    "Check",
    "Checker",
    "Claim",
    "ConsumerGroups",
    "Directory",
    "DirectoryBroker",
    "Ender",
    "Group",
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
    "TopicChange",
    "TransactionState",
    "Transactions",
    "Undecided",
    "Waiter",
    "queue_of_key",
]


class Broker(Queues, Protocol):
    """A store of messages, in a directory or at the other end of a connection."""

    @property
    def transactions(self) -> Transactions:
        """Half messages, and how they end."""
        ...

    @property
    def consumer_groups(self) -> ConsumerGroups:
        """The consumer groups: their members, queues and offsets."""
        ...

    def change_topic(self, name: str, change: TopicChange) -> None:
        """Make a topic, or change one that is there: see create_topic, which has checked what is asked."""
        ...

    def create_topic(
        self,
        name: str,
        queue_count: int | None = None,
        *,
        read_queue_count: int | None = None,
        write_queue_count: int | None = None,
        perm: Permission | None = None,
        ordered: bool | None = None,
        shrink: bool = False,
    ) -> Topic:
        """Make a topic, or change one that is there: what is not given stays as it is. A new topic has 4
        queues, may be read and written, and is not marked as ordered, unless told otherwise.

        queue_count queues to read and to write, unless one of the two counts is given on its own; perm is
        "r", "w", "rw" or "". Fewer queues to read are refused (NotPermitted) where some group has not
        consumed what the others hold. With shrink=True nothing more is sent to these, and they are read until
        all groups have consumed them; then they are gone. Of a cluster, counts are those of each broker.
        Raises TopicInvalid, NotPermitted for RocketMQ's own topics, ValueError.
        """
        counts = queue_count, read_queue_count, write_queue_count
        self.change_topic(name, TopicChange.of(name, *counts, perm, ordered, shrink))
        return Topic(self, name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its queues. Raises TopicNotFound, NotPermitted."""
        ...

    def topics(self) -> list[str]:
        """Names of all topics but RocketMQ's own, sorted."""
        ...

    def topic(self, name: str) -> Topic:
        """Raises TopicNotFound, TopicInvalid."""
        ...

    def message(self, msg_id: str) -> MessageExt:
        """The message of an offset id or a unique id, of which it is the newest. Raises MessageNotFound."""
        ...

    def query(
        self, topic: str, key: str, *, count_max: int = 32, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[MessageExt]:
        """Messages of a topic that have this key (or unique id), stored in [begin_ms, end_ms], newest
        first."""
        ...

    def recall(self, handle: str) -> str:
        """Take back a message that waits for its time, by the recall_handle of its SendResult; its unique id.

        Once this returned, the message is never delivered. Raises NotPermitted where it was delivered,
        MessageNotFound where no such message waits, ValueError for what is no handle of this broker."""
        ...

    def groups(self) -> list[str]:
        """Names of all consumer groups but RocketMQ's own that have members or offsets, sorted."""
        return self.consumer_groups.names()

    def group(self, name: str) -> Group:
        """A consumer group, which need not have been used before. Raises GroupInvalid."""
        check_group(name)
        return Group(self.consumer_groups, self, name)

    def flush(self) -> None:
        """Have everything on disk that was sent before this call. Raises StorePoisoned."""
        ...

    def close(self) -> None:
        """Close; calls under way in other threads end with BrokerClosed. Twice is fine."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class DirectoryBroker(Broker, Directory, Protocol):
    """The broker of a directory on this machine."""
