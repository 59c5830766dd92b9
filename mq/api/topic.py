"""Topic and Queue of a broker, to send to and to read by hand; and how a topic is changed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Literal, get_args

import xxhash

from mq.api.beginning import time_in_ms
from mq.api.local import directory
from mq.api.queues import READ_SIZE_MAX, Appenders, Queues
from mq.api.results import MessageQueue, PullResult, PullStatus, SendResult
from mq.compression import compressor
from mq.errors import MessageTooLarge, NotPermitted
from mq.filter.selection import Selection
from mq.message import Message
from mq.names import check_topic, is_system_topic

__all__ = ["COMPRESS_OVER", "SCAN_COUNT_MAX", "Permission", "Queue", "Topic", "TopicChange", "queue_of_key"]

Permission = Literal["rw", "r", "w", ""]

COMPRESS_OVER = 4096
QUEUE_COUNT_MAX = 65_536
SCAN_COUNT_MAX = 800  # messages that one read looks at when none is selected, RocketMQ's figure


class Topic:
    """One topic of a broker."""

    def __init__(self, broker: Queues, name: str) -> None:
        self.name: Final = name
        self._broker = broker
        self._turn = count(random.getrandbits(31))
        self._compress = compressor("zlib")
        self._append = Appenders(broker.appender)

    @property
    def queues(self) -> tuple[Queue, ...]:
        """The queues that may be read, as the topic is now."""
        return tuple(Queue(self._broker, queue) for queue in self._broker.readable(self.name))

    def send(
        self,
        body: bytes | bytearray | memoryview,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
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
            version = broker.route_version()
            queues = broker.publishable(self.name)
            place = next(self._turn) % len(queues)
            queue = queues[place] if shard_key is None else queue_of_key(queues, shard_key)
            try:
                return self._append(queue, message, stored, sys_flag)
            except ValueError as error:
                if not may_be_gone(broker, queue, error, version):
                    raise

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"


class Queue:
    """One queue of a broker, to be read by offset."""

    __slots__ = ("_broker", "_pull", "message_queue")

    def __init__(self, broker: Queues, queue: MessageQueue) -> None:
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
        """Messages from offset on as one pyarrow.RecordBatch, without a Python object for each. Of the broker
        of a directory alone (NotSupported)."""
        broker = directory(self._broker, "read_arrow")
        return broker.read_arrow(self.message_queue, offset, count_max, byte_max)

    def offset_at(self, time_ms: int) -> int:
        """The first offset stored at time_ms or later; the end of the queue where there is none. Raises
        TypeError for what is no int."""
        return self._broker.offset_at(self.message_queue, time_in_ms("time_ms", time_ms))

    def __eq__(self, other: object) -> bool:
        return self.message_queue == other.message_queue if isinstance(other, Queue) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.message_queue)

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


@dataclass(frozen=True, slots=True)
class TopicChange:
    """What Broker.create_topic asks of a broker; None: what the topic has, or what a new one gets."""

    read_queue_count: int | None
    write_queue_count: int | None
    perm: Permission | None
    ordered: bool | None
    shrink: bool

    @classmethod
    def of(
        cls,
        name: str,
        queue_count: int | None,
        read_queue_count: int | None,
        write_queue_count: int | None,
        perm: Permission | None,
        ordered: bool | None,
        shrink: bool,
    ) -> TopicChange:
        """See Broker.create_topic, which says what is refused."""
        check_topic(name)
        if is_system_topic(name):
            raise NotPermitted(f"{name} is one of RocketMQ's own topics: choose another name")
        _check_count("queue_count", queue_count)
        _check_count("read_queue_count", read_queue_count)
        _check_count("write_queue_count", write_queue_count)
        if perm is not None:
            perm = _check_permission(perm)
        return cls(
            queue_count if read_queue_count is None else read_queue_count,
            queue_count if write_queue_count is None else write_queue_count,
            perm,
            None if ordered is None else bool(ordered),
            shrink,
        )


def may_be_gone(queues: Queues, chosen: MessageQueue, error: ValueError, version: int | None) -> bool:
    """Whether a send may have been refused because its topic has got fewer queues since this one was chosen.

    version: of the routes before that, None if nobody knows: the topic may have got more again since.
    """
    if type(error) is not ValueError:  # A bare one says so; others are about the message.
        return False
    return version != queues.route_version() or chosen not in queues.publishable(chosen.topic)


def _check_permission(perm: str) -> Permission:
    """Callers without a type checker may have its letters in the other order."""
    for each in get_args(Permission):
        if isinstance(perm, str) and sorted(perm) == sorted(each):
            permission: Permission = each
            return permission
    raise ValueError(f"perm is {perm!r}: give 'r', 'w', 'rw' or ''")


def _check_count(name: str, value: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a number of type int, not {type(value).__name__}")
    if not 1 <= value <= QUEUE_COUNT_MAX:
        raise ValueError(f"{name} is {value}: a topic has 1 to {QUEUE_COUNT_MAX:,} queues")
