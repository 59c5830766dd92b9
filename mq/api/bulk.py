"""Many messages at once, as columns: scans of queues, and appends to many queues. For Spark, and its like.

Buffers are what Python's buffer protocol gives; records are pyarrow's. The columns are those of the Spark
source (docs/spark.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from mq.api.results import MessageQueue, SendResult

__all__ = ["Batch", "Bulk", "Cluster", "DelayQueues", "Row", "Scan", "Scans", "Stored"]


class Stored(NamedTuple):
    """Where a bulk begins and ends in the log, and when it was stored."""

    log_offset: int
    end: int
    store_time_ms: int


class Batch(NamedTuple):
    """What one read found: go on at next_offset. is_out says that the queue does not have the offset."""

    records: Any  # a pyarrow.RecordBatch
    next_offset: int
    min_offset: int
    max_offset: int
    is_out: bool


class Scan(Protocol):
    """Reads of one queue, one batch after another: see Bulk.scan. For one thread."""

    def read(self, offset: int, end: int, count_max: int, byte_max: int) -> Batch:
        """Messages of [offset, end), at most count_max and about byte_max bytes of stored body, or of any
        other column, at least one if there is one. Raises StoreCorrupted if the first one cannot be read, or
        decompressed."""
        ...


class DelayQueues(Protocol):
    """The queues in which the messages of a bulk wait that are to be delivered later: see Bulk.append."""

    @property
    def levels(self) -> int:
        """How many delay levels there are."""
        ...

    @property
    def delay_max_ms(self) -> int:
        """How far ahead a message may be due that says when."""
        ...

    @property
    def precision_ms(self) -> int:
        """Messages that say when they are due are delivered at multiples of this."""
        ...

    @property
    def timed(self) -> MessageQueue:
        """The queue of messages that say themselves when they are due."""
        ...

    def level(self, level: int) -> MessageQueue:
        """The queue of a delay level, 1 to `levels`."""
        ...


class Scans(Protocol):
    """Messages of queues as columns, and many queues at once: of a directory, or of a cluster."""

    def scan(self, queue: MessageQueue, columns: Sequence[str], *, unit: str = "us", tags: str = "*") -> Scan:
        """Reads of one queue: these columns, times in this unit. Of other messages than those of a tag
        expression some may come along: the caller compares the tags."""
        ...

    def limits(self, queues: Sequence[MessageQueue]) -> tuple[Sequence[int], Sequence[int]]:
        """The oldest offset and the end of each queue. The same object again, unchanged, costs least."""
        ...

    def wait(self, positions: Mapping[MessageQueue, int], seconds: float, version: int | None = None) -> None:
        """Sleep until one of the queues has a message at its offset or beyond, a topic changed since its
        route_version was this, or the time is up. May return early for nothing. The same positions again,
        unchanged, cost least. For one thread."""
        ...


class Bulk(Scans, Protocol):
    """What a directory does with many messages, and many queues, at once: Directory.bulk."""

    @property
    def delay_queues(self) -> DelayQueues: ...

    @property
    def size_max(self) -> int:
        """What body, properties and topic of a message may come to, whatever the limit for bodies is."""
        ...

    # Reading.

    def fit(self, queue: MessageQueue, start: int, end: int, bytes_max: int) -> tuple[int, int]:
        """How far one may go from start, not beyond end, with records of at most bytes_max bytes; how many
        bytes they have."""
        ...

    def first_not_indexed(self, queue: MessageQueue, start: int, end: int) -> int:
        """From where on messages in [start, end) may not be found by their keys yet; else end."""
        ...

    def topic_begin(self, topic: str) -> int:
        """Where the log ended when the topic was made, the last time: what lies before is of another topic of
        this name. 0 where nobody noted it."""
        ...

    def release(self) -> int:
        """Let go of files that retention removed, which take up space until then; how many. May be called
        often."""
        ...

    # Appending.

    def append(
        self,
        queues: Sequence[MessageQueue],
        places: Any,
        bodies: Sequence[Any],
        body_sizes: Any,
        properties: Sequence[Any],
        properties_sizes: Any,
    ) -> Stored:
        """Append messages, all or none: the i-th goes to queues[places[i]], where they keep their order.

        places and sizes are buffers of 32-bit numbers; bodies and encoded property strings lie one after the
        other in buffers, none in two of them. Some of the queues may be those of `delay_queues`. Raises
        MessageTooLarge, StoreFull, StorePoisoned, NotPermitted, ValueError for a message put aside that says
        not where it belongs."""
        ...

    def sync(self, stored: Stored) -> None:
        """Have a bulk on disk, whatever the broker does with messages. Raises StorePoisoned, StoreLocked."""
        ...

    def flush_unattended(self) -> None:
        """Begin to have on disk what was appended, unless a process has the duties and is not stopped: that
        one does it by and by. Nobody waits for it, as nobody waits for that one."""
        ...

    def queues_to_write(self, topic: str, *, new: bool = False) -> list[MessageQueue]:
        """The queues that messages of a topic go to, for a caller that has another process write them.
        new: the topic may be made by that. Raises TopicNotFound, NotPermitted."""
        ...


class Row(NamedTuple):
    """A message as its sender has encoded it; the property string without the unique id."""

    body: bytes
    properties: bytes
    unique_id: str


class Cluster(Protocol):
    """What the broker of a cluster can do beside what every broker does."""

    def scans(self, group: str | None = None) -> Scans:
        """Messages of queues as columns, pulled from masters and slaves in a group's name, or none's.

        The end of a queue is its master's. While there is no master, it is the one that was told last, since
        nobody can send without a master; where none was told, a slave's."""
        ...

    def append_rows(self, queue: MessageQueue, rows: Sequence[Row]) -> SendResult:
        """Store messages side by side in one queue, all of them or none; one alone as a send does it. A
        delayed one must be alone. Raises RemotingError and RequestTimeout, after which they may have been
        stored all the same."""
        ...
