"""What a client may ask of a broker, and the values that it gets back.

Broker is the border: producers and consumers know it alone, and never ask which one they have. Its
primitives take and return plain values; Topic, Queue and Group are those primitives bound to a name, written
once for all brokers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

import xxhash

from mq.api.group import (
    Assigned,
    BroadcastOffsets,
    Claim,
    Group,
    Lookout,
    Member,
    Membership,
    QueueState,
    Subscription,
)
from mq.api.handled_keys import DEDUP_KEY, Handled
from mq.api.results import MessageQueue, PullResult, PullStatus, SendResult, SendStatus
from mq.api.transactions import Check, Checker, Ender, Preparer, Transactions, TransactionState, Undecided
from mq.compression import compressor
from mq.errors import MessageTooLarge
from mq.filter.selection import Selection
from mq.message import Message, MessageExt

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

__all__ = [
    "COMPRESS_OVER",
    "DEDUP_KEY",
    "READ_SIZE_MAX",
    "Appender",
    "Broker",
    "Check",
    "Checker",
    "Claim",
    "Ender",
    "Group",
    "Handled",
    "Lookout",
    "Member",
    "Membership",
    "MessageQueue",
    "Preparer",
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
    "queue_of_key",
]

COMPRESS_OVER = 4096
READ_SIZE_MAX = 256 << 10  # bytes of one read, RocketMQ's figure; a single message may be larger
SCAN_COUNT_MAX = 800  # messages that one read looks at when none is selected, RocketMQ's figure


class Appender(Protocol):
    """Stores messages in one queue: see Broker.appender."""

    def __call__(
        self, message: Message, body: bytes, sys_flag: int, unique_id: str | None = None, /
    ) -> SendResult | None: ...


class Puller(Protocol):
    """Pulls from one queue: see Broker.pull."""

    def __call__(
        self, offset: int, count_max: int, byte_max: int, tag_hashes: frozenset[int] | None, wait: float, /
    ) -> PullResult: ...


class Broker(Transactions, Protocol):
    """A store of messages, in a directory or at the other end of a connection."""

    @property
    def name(self) -> str: ...
    @property
    def message_size_max(self) -> int: ...
    @property
    def may_wait(self) -> bool:
        """Whether a send may wait for a disk or a network, and has no place on an event loop."""
        ...

    # What users call.
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

    # What clients call.
    def route_version(self) -> int:
        """Grows when any topic changes: what publishable and readable said before may be out of date."""
        ...

    def publishable(self, topic: str) -> Sequence[MessageQueue]:
        """The queues to send to. Of a topic that the first message makes, those that it will have. Raises
        TopicNotFound where no message makes it, and NotPermitted for a topic that nobody may write."""
        ...

    def readable(self, topic: str) -> Sequence[MessageQueue]:
        """The queues to read from. Raises TopicNotFound, and NotPermitted where nobody may read."""
        ...

    def append(
        self,
        topic: str,
        queue_id: int,
        message: Message,
        body: bytes,
        sys_flag: int,
        unique_id: str | None = None,
    ) -> SendResult:
        """Store a message with this body, which sys_flag may call compressed; wait for the flush where
        the broker flushes each message and the message does not say otherwise. An error after which it
        may have been stored all the same carries the unique_id to give to the next attempt."""
        ...

    def appender(self, queue: MessageQueue) -> Appender:
        """The same for one queue, as often as wanted, at the least cost: a function that stores a message.
        It returns None, having stored nothing, once a topic has changed: ask for another one then."""
        ...

    def append_once(
        self,
        queue: MessageQueue,
        message: Message,
        body: bytes,
        sys_flag: int,
        key: str | None,
        window_ms: int,
        unique_id: str | None = None,
        wait: float = 3.0,
    ) -> SendResult:
        """append, unless a message of this topic was stored under the same key in the last window_ms: then
        the result is that one's; with window_ms=0 it is stored in any case, for others to know of. Without a
        key the unique id counts. Whoever is storing one at this moment is waited for, up to `wait` seconds
        (RequestTimeout)."""
        ...

    def append_batch(self, topic: str, queue_id: int, messages: Sequence[Message]) -> SendResult:
        """Store messages of one topic side by side in one queue, all of them or none."""
        ...

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count_max: int,
        byte_max: int,
        tag_hashes: frozenset[int] | None,
        wait: float,
    ) -> PullResult:
        """Messages from offset on, at least one where one matches, whatever its size. Filtered by the
        hash alone: the caller compares the tags. Waits up to `wait` seconds at the end of the queue."""
        ...

    def puller(self, queue: MessageQueue, claim: Claim | None = None) -> Puller:
        """pull for one queue, as often as wanted, at the least cost. Whether the queue may be read is asked
        at the first pull, and after every change of a topic. The owner of a claim for all tags may
        be spared messages that its SQL92 subscription surely leaves out."""
        ...

    def read_arrow(self, queue: MessageQueue, offset: int, count_max: int, byte_max: int) -> Any:
        """The same as one pyarrow.RecordBatch, in the columns of the Spark source."""
        ...

    def min_offset(self, queue: MessageQueue) -> int: ...
    def max_offset(self, queue: MessageQueue) -> int: ...
    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """The first offset stored at time_ms or later; the end of the queue where there is none."""
        ...

    # Of consumer groups: see mq.api.group.
    def join(
        self,
        group: str,
        *,
        client_id: str,
        model: str,
        consume_type: str,
        ordered: bool,
        subscriptions: Sequence[Subscription],
        consume_from: str | int = "first",
    ) -> Membership:
        """Become a consumer of a group. model is "clustering" or "broadcasting", consume_type "push" or
        "pull".

        Where the group has no offset of a subscribed topic, it starts where consume_from says: "first",
        "last", or a time in ms. Raises SubscriptionConflict, GroupInvalid, NotPermitted, StoreFull.
        """
        ...

    def broadcast_offsets(
        self, group: str, client_id: str | None, directory: Path | None
    ) -> BroadcastOffsets:
        """The offsets of a broadcasting consumer, which take its client id, or a free one, for it alone.

        Kept in the broker's own place, or in a directory, below what tells this store from others there.
        Raises GroupInvalid for a client id in use, StoreCorrupted, NotPermitted, StoreFull."""
        ...

    def assigned(self, group: str) -> Assigned:
        """For a consumer that is told its queues, and does not join the group."""
        ...

    def lookout(self) -> Lookout:
        """For a thread that waits for several consumers, or for queues of no group."""
        ...

    def send_back(
        self, message: MessageExt, group: str, *, delay_level: int = 0, max_reconsume_times: int = 16
    ) -> None:
        """Have the group get a message again, later: at a delay level, or by its times of consumption (0).
        It goes to the dead letters after max_reconsume_times, or at once (below 0)."""
        ...

    def group_members(self, group: str) -> list[Member]: ...
    def group_topics(self, group: str) -> list[str]:
        """Topics that the group has offsets of, or a member subscribes to; sorted."""
        ...

    def group_offsets(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """What is committed, of the queues that have an offset."""
        ...

    def group_states(self, group: str, topic: str) -> list[QueueState]: ...
    def group_retrying(self, group: str) -> dict[str, int]:
        """How many messages of each topic the group sent back, and has not consumed since: they wait until
        they are due again, or lie in its retry topic."""
        ...

    def reset_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set offsets, also downwards; members that are at work go on from there. Of a broadcasting group
        those of every consumer. Raises ValueError for an offset beyond the end of its queue."""
        ...

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        """What is committed of one queue; None where nothing is."""
        ...

    def commit(self, group: str, queue: MessageQueue, offset: int) -> bool:
        """Raise an offset, for a reader of queues that does not join the group.

        False, and a line in the log, where a greater one is committed: that stays. Group.reset goes back.
        """
        ...

    def handled(self, group: str, size: int | None = None) -> Handled:
        """The keys that a group has handled; size is how many are kept (None: as it is, or 100,000). Raises
        ConfigMismatch for another size than it has, GroupInvalid, NotPermitted, StoreFull."""
        ...


class Topic:
    """One topic of a broker."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name: Final = name
        self._broker = broker
        self._turn = count(random.getrandbits(31))
        self._compress = compressor("zlib")

    @property
    def queues(self) -> tuple[Queue, ...]:
        """The queues that may be read, as the topic is now."""
        return tuple(Queue(self._broker, queue) for queue in self._broker.readable(self.name))

    def send(
        self,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Sequence[str] = (),
        properties: dict[str, str] | None = None,
        shard_key: str | bytes | int | None = None,
        delay_level: int = 0,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
    ) -> SendResult:
        """Send one message, as a Producer with its defaults would, but in a single attempt."""
        message = Message(
            self.name,
            body,
            tags=tags,
            keys=keys,
            properties=properties,
            delay_level=delay_level,
            delay_ms=delay_ms,
            deliver_at_ms=deliver_at_ms,
        )
        broker = self._broker
        if len(message.body) > broker.message_size_max:
            raise MessageTooLarge(len(message.body), broker.message_size_max)
        stored, sys_flag = message.body, 0
        if len(stored) >= COMPRESS_OVER:
            stored, sys_flag = self._compress(stored)
        while True:
            queues = broker.publishable(self.name)
            place = next(self._turn) % len(queues)
            queue = queues[place] if shard_key is None else queue_of_key(queues, shard_key)
            try:
                return broker.append(self.name, queue.queue_id, message, stored, sys_flag)
            except ValueError as error:  # A bare one: the topic has got fewer queues since it was asked.
                if type(error) is not ValueError or queue in broker.publishable(self.name):
                    raise

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"


class Queue:
    """One queue of a broker, to be read by offset."""

    __slots__ = ("_broker", "_pull", "message_queue")

    def __init__(self, broker: Broker, queue: MessageQueue) -> None:
        self.message_queue: Final = queue
        self._broker = broker
        self._pull = broker.puller(queue)

    @property
    def topic(self) -> str:
        return self.message_queue.topic

    @property
    def queue_id(self) -> int:
        return self.message_queue.queue_id

    @property
    def min_offset(self) -> int:
        """The oldest message that is kept."""
        return self._broker.min_offset(self.message_queue)

    @property
    def max_offset(self) -> int:
        """The next to come."""
        return self._broker.max_offset(self.message_queue)

    def read(
        self,
        offset: int,
        *,
        count_max: int = 32,
        expression: str | None = "*",
        sql: str | None = None,
        wait: float = 0.0,
    ) -> PullResult:
        """The messages from offset on whose tag the expression names ("paid || refunded"; "*" is all), or
        that an SQL92 expression over their properties selects.

        At the end of the queue it waits up to `wait` seconds for a message. It may return less than
        count_max: what is there, or what 256 KiB hold. NO_MATCHED_MESSAGE says that none of those it looked
        at was selected. Every result's next_offset is where to go on.
        """
        if expression == "*" and sql is None:
            return self._pull(offset, count_max, READ_SIZE_MAX, None, wait)
        selection = Selection.of(expression, sql)
        begin, at, left = time.monotonic(), offset, wait
        while True:
            found = self._pull(at, count_max, READ_SIZE_MAX, selection.hashes, left)
            status = found.status
            messages = selection.keep(list(found.messages))
            if len(messages) == len(found.messages) and (
                at == offset or status is not PullStatus.NO_NEW_MESSAGE
            ):
                return found
            at = found.next_offset
            if messages or status is not PullStatus.FOUND or at - offset >= SCAN_COUNT_MAX:
                status = PullStatus.FOUND if messages else PullStatus.NO_MATCHED_MESSAGE
                return PullResult(status, messages, at, found.min_offset, found.max_offset)
            left = max(0.0, wait - (time.monotonic() - begin))

    def read_arrow(self, offset: int, *, count_max: int = 65_536, byte_max: int = 64 << 20) -> Any:
        """Messages from offset on as one pyarrow.RecordBatch, without a Python object for each."""
        return self._broker.read_arrow(self.message_queue, offset, count_max, byte_max)

    def offset_at(self, time_ms: int) -> int:
        """The first offset stored at time_ms or later; the end of the queue where there is none."""
        return self._broker.offset_at(self.message_queue, time_ms)

    def __repr__(self) -> str:
        return f"Queue({self.topic!r}, {self.queue_id})"


def queue_of_key(queues: Sequence[MessageQueue], shard_key: str | bytes | int) -> MessageQueue:
    """The queue of a shard key: XXH64 (seed 0) of the key, modulo the number of queues.

    A str counts as its UTF-8 bytes, an int as its decimal digits. The same key goes to the same queue
    from every process and for good, as long as the topic keeps its number of queues to write to.
    """
    if isinstance(shard_key, int):
        shard_key = str(shard_key)
    if isinstance(shard_key, str):
        shard_key = shard_key.encode()
    elif not isinstance(shard_key, bytes):
        raise TypeError(f"a shard_key is a str, bytes or an int, not {type(shard_key).__name__}")
    return queues[xxhash.xxh64_intdigest(shard_key) % len(queues)]
