"""What a source reads: a directory or a cluster. This module hides how the two differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from mq.api.broker import Broker, DirectoryBroker
from mq.api.bulk import Scans
from mq.api.results import MessageQueue
from mq.errors import MQError
from mq.spark.cluster import ClusterBroker, cluster_broker
from mq.spark.source.key_pruning import prune_by_key
from mq.spark.source.options import SourceOptions
from mq.spark.source.queue_keys import QueueKey, key_of
from mq.spark.source.ranges import OffsetRange
from mq.spark.source.rate_limit import Fit
from mq.spark.target import StoreRef, broker
from mq.spark.target_options import ClusterRef

__all__ = ["ClusterOrigin", "DirectoryOrigin", "Origin", "origin_of"]

NEAR, NEAR_BYTES = 32, 1 << 20  # messages that are checked before the one that a broker names
LIST_SECONDS = 10.0  # how long the list of a cluster's topics is cached


class Origin(Protocol):
    """What the planner and the tasks need of a directory or a cluster."""

    @property
    def broker(self) -> Broker: ...

    @property
    def scans(self) -> Scans: ...

    @property
    def name(self) -> str | None:
        """The broker name of all queues; None on a cluster, where each queue has its own."""
        ...

    def key(self, queue: MessageQueue) -> QueueKey:
        """The name of a queue in options and checkpoints."""
        ...

    def version(self) -> int:
        """A number that grows when a topic may have been created, changed or deleted."""
        ...

    def topic_begin(self, topic: str) -> int:
        """Where the log ended when the topic was last created; 0 if that is unknown."""
        ...

    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """The first offset stored at time_ms or later; the end of the queue if there is none."""
        ...

    def forget(self, topic: str) -> None:
        """Drop what is cached about a topic."""
        ...

    def prune_by_key(self, ranges: Sequence[OffsetRange], key: str) -> list[OffsetRange]:
        """Parts of the ranges that hold every message with a key."""
        ...

    @property
    def fit(self) -> Fit | None:
        """A function that limits a range by bytes; None on a cluster, where sizes are unknown."""
        ...


class DirectoryOrigin:
    """The origin of a directory."""

    def __init__(self, broker: DirectoryBroker) -> None:
        self.broker = broker
        self.scans: Scans = broker.bulk
        self.name = broker.name
        self.version = broker.route_version
        self.topic_begin = broker.bulk.topic_begin
        self.offset_at = broker.offset_at
        self.fit: Fit = broker.bulk.fit

    def key(self, queue: MessageQueue) -> QueueKey:
        return key_of(queue, on_cluster=False)

    def forget(self, topic: str) -> None:
        """A directory caches nothing about topics."""

    def prune_by_key(self, ranges: Sequence[OffsetRange], key: str) -> list[OffsetRange]:
        return prune_by_key(self.broker, ranges, key)


class ClusterOrigin:
    """The origin of a cluster. group: the consumer group named in requests. clock is monotonic."""

    name = None
    fit = None

    def __init__(
        self, broker: ClusterBroker, group: str | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.broker = broker
        self.scans: Scans = broker.scans(group)
        self._clock = clock
        self._begun_at = clock()

    def key(self, queue: MessageQueue) -> QueueKey:
        return key_of(queue, on_cluster=True)

    def version(self) -> int:
        """A broker object learns of changes of the topics that it uses, but not of new topics."""
        return self.broker.route_version() + int((self._clock() - self._begun_at) // LIST_SECONDS)

    def topic_begin(self, topic: str) -> int:
        return 0

    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """A 4.9 broker returns the last message if all are older, and any one of several of the same ms."""
        (oldest,), (end,) = self.scans.limits([queue])
        at = max(oldest, min(self.broker.offset_at(queue, time_ms), end))
        step = NEAR
        while at > oldest:
            first = max(oldest, at - step)
            if (found := self._first_at(queue, first, at, time_ms)) is None:
                break
            at, step = found, step * 2
            if found > first:
                break
        while at < end:
            if (found := self._first_at(queue, at, min(at + NEAR, end), time_ms)) is not None:
                return found
            at = min(at + NEAR, end)
        return at

    def _first_at(self, queue: MessageQueue, first: int, end: int, time_ms: int) -> int | None:
        """The first offset of [first, end) whose message was stored at time_ms or later."""
        scan, at = self.scans.scan(queue, ("queueOffset", "storeTimestamp"), unit="ms"), first
        while at < end:
            batch = scan.read(at, end, end - at, NEAR_BYTES)
            if batch.next_offset == at:
                return None
            times = batch.records.column("storeTimestamp").cast("int64").to_pylist()
            offsets = batch.records.column("queueOffset").to_pylist()
            for offset, stored_ms in zip(offsets, times, strict=True):
                if stored_ms >= time_ms:
                    return int(offset)
            at = batch.next_offset
        return None

    def forget(self, topic: str) -> None:
        with suppress(MQError):
            self.broker.topic(topic)  # Fetches the route from a name server.

    def prune_by_key(self, ranges: Sequence[OffsetRange], key: str) -> list[OffsetRange]:
        """All ranges: the index of a broker does not say which messages it lacks."""
        return list(ranges)


def origin_of(
    ref: StoreRef | ClusterRef,
    options: SourceOptions,
    *,
    writable: bool = False,
    known: Origin | None = None,
) -> Origin:
    """The origin in this process; the known one if it still has the same broker object. Raises SparkError."""
    if isinstance(ref, StoreRef):
        store = broker(ref, writable=writable)
        return known if known is not None and known.broker is store else DirectoryOrigin(store)
    cluster = cluster_broker(ref)
    return known if known is not None and known.broker is cluster else ClusterOrigin(cluster, options.group)
