"""The driver's planning: which queues are read, which offsets they have, where reading begins and ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from mq.api.results import MessageQueue, PullStatus
from mq.errors import NotPermitted, RemotingError, RequestTimeout, StoreCorrupted, TopicNotFound
from mq.message import MessageExt
from mq.names import is_system_topic
from mq.spark.errors import SparkError, nearest
from mq.spark.sink.ledger import TOPIC as LEDGER
from mq.spark.source.offsets import EARLIEST, LATEST, Offset, TopicMarker
from mq.spark.source.options import Bound, SourceOptions
from mq.spark.source.origin import Origin
from mq.spark.source.queue_keys import QueueKey, queue_of
from mq.spark.source.ranges import DataLoss, Positions, QueueLimits

__all__ = ["OffsetPlanner", "QueueSnapshot", "check_ends", "raise_data_loss"]

INTERNAL_PREFIXES = ("%RETRY%", "%DLQ%")
LOSSES_SHOWN = 3
ONE_MESSAGE = 1 << 20
TRIES = 100


class QueueSnapshot:
    """The queues at one moment, sorted, with the oldest and the end offset of each."""

    def __init__(
        self,
        queues: Sequence[MessageQueue],
        oldest: Sequence[int],
        ends: Sequence[int],
        version: int,
        begins: Mapping[str, int],
    ) -> None:
        self.queues = queues
        self.version = version  # of the topics
        self.begins = begins  # by topic: the log's end when it was created, which tells a re-created topic
        self._oldest = oldest
        self._ends = ends

    @cached_property
    def limits(self) -> dict[MessageQueue, QueueLimits]:
        return dict(zip(self.queues, map(QueueLimits, self._oldest, self._ends), strict=True))

    @cached_property
    def ends(self) -> Positions:
        return dict(zip(self.queues, self._ends, strict=True))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, QueueSnapshot)
            and (self.version, self._ends, self._oldest) == (other.version, other._ends, other._oldest)
            and self.queues == other.queues
        )

    __hash__ = None  # type: ignore[assignment]  # equal, not the same


class OffsetPlanner:
    """Plans reads of one directory or cluster, by the options of one source. May be reused."""

    def __init__(self, origin: Origin, options: SourceOptions) -> None:
        self._origin = origin
        self._broker = origin.broker
        self._options = options
        self._known: tuple[int, bool, Sequence[MessageQueue], Mapping[str, int]] | None = None

    def snapshot(self, *, ignore_missing: bool = False) -> QueueSnapshot:
        """The queues that the options name, as they are now. Raises SparkError for a missing one, unless
        ignore_missing: a running query detects a missing queue by its offsets."""
        for tries_left in reversed(range(TRIES)):
            version = self._origin.version()
            if self._known is None or self._known[:2] != (version, ignore_missing):
                found = tuple(self._queues(ignore_missing))
                known = {topic: self._origin.topic_begin(topic) for topic in {queue.topic for queue in found}}
                self._known = version, ignore_missing, found, known
            queues, begins = self._known[2:]
            try:
                limits = self._origin.scans.limits(queues)
            except (TopicNotFound, NotPermitted, ValueError) as error:
                # A topic changed since its queues were listed, or a broker of a cluster denied the request.
                is_told = isinstance(error, RemotingError)
                if not tries_left or (is_told and not isinstance(error, TopicNotFound)):
                    raise
                if is_told and isinstance(error, TopicNotFound):
                    self._origin.forget(error.topic)
                continue
            # If the version moved, a topic may have been re-created: its limits would not match its begin.
            if self._origin.version() == version or not tries_left:
                return QueueSnapshot(queues, *limits, version, begins)
        raise AssertionError("the last try raises")

    def _queues(self, ignore_missing: bool) -> list[MessageQueue]:
        options = self._options
        found: list[MessageQueue] = []
        for topic in options.topics or options.assigned or self._matching():
            try:
                queues = self._broker.readable(topic)
            except TopicNotFound:
                if ignore_missing or options.pattern is not None:
                    continue
                raise SparkError(
                    "MQ_TOPIC",
                    f"there is no topic {topic!r} in {options.target}{nearest(topic, self._broker.topics())}",
                ) from None
            except NotPermitted as error:
                if ignore_missing or options.pattern is not None:
                    continue
                raise SparkError("MQ_TOPIC", f"topic {topic} cannot be read: {error}") from None
            if topic in options.assigned:
                queues = self._assigned(queues, options.assigned[topic], ignore_missing)
            found += queues
        return sorted(found)

    def _matching(self) -> list[str]:
        assert self._options.pattern is not None
        pattern = re.compile(self._options.pattern)
        return [
            topic
            for topic in self._broker.topics()
            if pattern.fullmatch(topic)
            and topic != LEDGER
            and not is_system_topic(topic)
            and not topic.startswith(INTERNAL_PREFIXES)
        ]

    def _assigned(
        self, queues: Iterable[MessageQueue], keys: tuple[QueueKey, ...], ignore_missing: bool
    ) -> list[MessageQueue]:
        there = {self._origin.key(queue): queue for queue in sorted(queues)}
        missing = [key for key in keys if key not in there]
        if missing and not ignore_missing:
            topic = next(iter(there.values())).topic if there else "?"
            raise SparkError(
                "MQ_OPTION", f"option assign: topic {topic} has the queues {list(there)}, and not {missing}"
            )
        return [there[key] for key in keys if key in there]

    def resolve(self, bound: Bound, limits: Mapping[MessageQueue, QueueLimits]) -> Positions:
        """The offsets that a bound names. They may lie outside of what a queue has."""
        if bound.kind in {"offsets", "times"}:
            self._check_queue_names(bound, limits)
        committed: dict[MessageQueue, int] = {}
        if bound.kind == "group":
            assert self._options.group is not None
            for topic in {queue.topic for queue in limits}:
                committed |= self._broker.consumer_groups.offsets(self._options.group, topic)
        return {
            queue: committed.get(queue, limit.oldest)
            if bound.kind == "group"
            else self._offset_for(bound, queue, limit)
            for queue, limit in limits.items()
        }

    def _offset_for(self, bound: Bound, queue: MessageQueue, limit: QueueLimits) -> int:
        if bound.kind == "earliest":
            return limit.oldest
        if bound.kind == "latest":
            return limit.end
        if bound.kind == "offsets":
            offset = bound.per_queue[queue.topic][self._origin.key(queue)]
            return {LATEST: limit.end, EARLIEST: limit.oldest}.get(offset, offset)
        time_ms = bound.time_ms
        if bound.kind == "times":
            time_ms = bound.per_queue[queue.topic][self._origin.key(queue)]
        offset = max(limit.oldest, min(self._origin.offset_at(queue, time_ms), limit.end))
        if offset == limit.end and bound is self._options.start and self._options.late_start == "error":
            raise SparkError(
                "MQ_OPTION",
                f"option {bound.option}: queue {self._origin.key(queue)} of topic {queue.topic} has no"
                f" message from {time_ms} or later; startingOffsetsByTimestampStrategy=latest would begin at"
                " its end",
            )
        return offset

    def _check_queue_names(self, bound: Bound, limits: Mapping[MessageQueue, QueueLimits]) -> None:
        there = {(queue.topic, str(self._origin.key(queue))) for queue in limits}
        named = {(topic, str(key)) for topic, queues in bound.per_queue.items() for key in queues}
        for what, queues in (("names", named - there), ("leaves out", there - named)):
            if queues:
                shown = ", ".join(f"{topic}/{key}" for topic, key in sorted(queues)[:5])
                raise SparkError(
                    "MQ_OPTION",
                    f"option {bound.option} {what} {shown}: it must name the queues that are read, no others",
                )

    # Markers: which message was read last, and whether the same one is still there.

    def offset(
        self, positions: Positions, begin: Mapping[MessageQueue, int], markers: Mapping[str, TopicMarker]
    ) -> Offset:
        """Positions, with a marker for each topic: a new one if it was read beyond `begin`, else the old
        one."""
        newest = {queue.topic: queue for queue, end in positions.items() if end > begin.get(queue, 0)}
        found = {}
        if markers:
            topics = {queue.topic for queue in positions}
            found = {topic: marker for topic, marker in markers.items() if topic in topics}
        for topic, queue in newest.items():
            message = self._message(queue, positions[queue] - 1)
            if message is not None:
                found[topic] = TopicMarker(
                    self._origin.key(queue), message.queue_offset, message.log_offset, message.store_time_ms
                )
        return Offset(positions, found)

    def remade(self, offset: Offset, limits: Mapping[MessageQueue, QueueLimits]) -> set[str]:
        """Topics that were re-created: they have another message now where one was read before."""
        found = set()
        for topic, marker in offset.markers.items():
            queue = queue_of(topic, marker.queue, self._origin.name)
            if marker.log_offset < self._origin.topic_begin(topic):
                found.add(topic)
                continue
            if queue not in limits or limits[queue].oldest > marker.queue_offset:
                continue  # Gone, or too old to be asked.
            end = limits[queue].end
            if end <= marker.queue_offset:
                # Nothing stands there: a topic made again has its messages later in the log, a store that was
                # restored from a backup has them earlier.
                newest = self._message(queue, end - 1) if end > limits[queue].oldest else None
                is_other = newest is not None and newest.log_offset > marker.log_offset
            else:
                message = self._message(queue, marker.queue_offset)
                is_other = message is not None and (
                    message.log_offset != marker.log_offset or message.store_time_ms != marker.store_time_ms
                )
            if is_other:
                found.add(topic)
        return found

    def _message(self, queue: MessageQueue, offset: int) -> MessageExt | None:
        try:
            result = self._broker.puller(queue)(offset, 1, ONE_MESSAGE, None, 0.0)
        except (StoreCorrupted, TopicNotFound, NotPermitted, RemotingError, RequestTimeout, ValueError):
            return None  # Damaged, or the topic changed just now, or its broker does not answer.
        if result.status is not PullStatus.FOUND or result.messages[0].queue_offset != offset:
            return None
        return result.messages[0]


def raise_data_loss(losses: list[DataLoss]) -> None:
    """Raises SparkError if messages are lost."""
    if losses:
        more = f", and {len(losses) - LOSSES_SHOWN} more queues" if len(losses) > LOSSES_SHOWN else ""
        raise SparkError(
            "MQ_DATA_LOSS",
            f"{'; '.join(map(str, losses[:LOSSES_SHOWN]))}{more}. With option failOnDataLoss=false the"
            " query goes on without what is lost",
        )


def check_ends(ends: Positions, limits: Mapping[MessageQueue, QueueLimits]) -> None:
    """Raises SparkError if an end offset of the options lies beyond the end of its queue."""
    for queue, offset in ends.items():
        if offset > limits[queue].end:
            raise SparkError(
                "MQ_DATA_LOSS",
                f"option endingOffsets: queue {queue.queue_id} of topic {queue.topic} was to be read up to"
                f" offset {offset}, but it ends at {limits[queue].end}. With option failOnDataLoss=false what"
                " there is is read",
            )
