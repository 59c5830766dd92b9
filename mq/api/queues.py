"""What a broker does with queues: where a topic is sent to and read from, and appending and pulling there.

All of it takes and returns plain values. What is done often is an object bound to one queue: an appender, a
puller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from mq.api.results import MessageQueue, PullResult, PullStatus, SendResult
from mq.api.waiter import Waiter
from mq.errors import StoreCorrupted
from mq.message import Message

__all__ = [
    "READ_SIZE_MAX",
    "Appender",
    "Appenders",
    "OnceAppender",
    "Puller",
    "QueueEnds",
    "Queues",
    "readable",
]

READ_SIZE_MAX = 256 << 10  # bytes of one read, RocketMQ's figure; a single message may be larger


class Appender(Protocol):
    """Stores messages in one queue: see Queues.appender."""

    def __call__(
        self, message: Message, body: bytes, sys_flag: int, unique_id: str | None = None, /
    ) -> SendResult | None:
        """Store a message with this body, which sys_flag may call compressed; wait for the flush where the
        broker flushes each message and the message does not say otherwise. An error after which it may have
        been stored all the same carries the unique_id to give to the next attempt.

        None, and nothing is stored, once a topic has changed: ask for another appender then."""
        ...


class OnceAppender(Protocol):
    """Stores messages in one queue once: see Directory.once_appender."""

    def __call__(self, message: Message, body: bytes, sys_flag: int, key: str, /) -> SendResult | None:
        """Store a message with this body, which sys_flag may call compressed, unless one was sent under the
        key: then the result is that one's. None, and nothing is stored, once a topic has changed: ask for
        another appender then."""
        ...


class Puller(Protocol):
    """Pulls from one queue: see Queues.puller."""

    def __call__(
        self, offset: int, count_max: int, byte_max: int, tag_hashes: frozenset[int] | None, wait: float, /
    ) -> PullResult:
        """Messages from offset on, at least one where one matches, whatever its size. Filtered by the hash
        alone: the caller compares the tags. Waits up to `wait` seconds at the end of the queue."""
        ...


class QueueEnds(Protocol):
    """Where queues begin and end."""

    def min_offset(self, queue: MessageQueue) -> int:
        """The oldest message that is kept."""
        ...

    def max_offset(self, queue: MessageQueue) -> int:
        """The next to come."""
        ...

    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """The first offset stored at time_ms or later; the end of the queue where there is none."""
        ...


class Queues(QueueEnds, Protocol):
    """The queues of a broker: a part of Broker."""

    @property
    def name(self) -> str:
        """The broker's name, as MessageQueue and every message have it."""
        ...

    @property
    def message_size_max(self) -> int:
        """How many bytes the body of a message may have."""
        ...

    @property
    def may_wait(self) -> bool:
        """Whether a send may wait for a disk or a network, and has no place on an event loop."""
        ...

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

    def appender(self, queue: MessageQueue) -> Appender:
        """What stores messages in a queue, as often as wanted. Raises what forbids to write there. Appenders
        stores a single message."""
        ...

    def oneway_appender(self, queue: MessageQueue) -> Appender:
        """The same, except that it does not wait for the disk, nor for the answer of a broker at the other
        end of a network: then the result has no offsets, and says no more than that the message was sent."""
        return self.appender(queue)

    def append_batch(self, queue: MessageQueue, messages: Sequence[Message]) -> SendResult:
        """Store messages of one topic side by side in one queue, all of them or none."""
        ...

    def when_reachable(self, queue: MessageQueue, reached: Callable[[], object]) -> Callable[[], object]:
        """Have reached() called once the broker of a queue answers, or is gone for good; from any thread, and
        without waiting. What is returned ends that: then reached() need not be called any more. The broker of
        a directory always answers."""
        reached()
        return _nothing

    def puller(self, queue: MessageQueue) -> Puller:
        """What pulls from a queue, as often as wanted. Whether the queue may be read is asked at the first
        pull, and after every change of a topic."""
        ...

    def waiter(self) -> Waiter:
        """For a thread that waits for several consumers, or for queues of no group."""
        ...


def _nothing() -> None:
    """Ends what has ended."""


class Appenders:
    """Stores single messages in any queue: for a caller that keeps no appender of its own.

    appender makes the appender of a queue. Each is kept until it is out of date. From any thread.
    """

    def __init__(self, appender: Callable[[MessageQueue], Appender]) -> None:
        self._appender = appender
        self._of_queue: dict[MessageQueue, Appender] = {}

    def __call__(
        self, queue: MessageQueue, message: Message, body: bytes, sys_flag: int, unique_id: str | None = None
    ) -> SendResult:
        """Store a message: see Appender. Raises what the appender does, or making it."""
        while True:
            append = self._of_queue.get(queue)
            if append is None:
                append = self._of_queue[queue] = self._appender(queue)
            result = append(message, body, sys_flag, unique_id)
            if result is not None:
                return result
            self._of_queue = {}


def readable(pull: Callable[[int], PullResult], offset: int) -> Iterator[PullResult]:
    """What a queue has from an offset on, pull by pull: pull(offset) with messages, until there are no more.

    A record that cannot be read is left out. Raises what pull() raises else."""
    while True:
        try:
            found = pull(offset)
        except StoreCorrupted as error:
            if error.queue_offset is None:
                raise
            offset = error.queue_offset + 1
            continue
        if found.status is PullStatus.FOUND:
            yield found
        elif found.next_offset <= offset:
            return
        offset = found.next_offset
