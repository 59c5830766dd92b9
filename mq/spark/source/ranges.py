"""Offset ranges as plain numbers: which offsets of which queues are read, and in how many tasks.

Pure: no Spark, no store, no clock. Positions map each queue to the next offset to read; an OffsetRange is a
part of one queue. Packing puts each offset between two positions into exactly one range, in queue order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from mq.api.results import MessageQueue

__all__ = [
    "DataLoss",
    "OffsetRange",
    "Positions",
    "QueueLimits",
    "Tasks",
    "backlog",
    "clamp_positions",
    "pack",
    "ranges_between",
]

Positions = dict[MessageQueue, int]


class OffsetRange(NamedTuple):
    """The offsets [start, end) of one queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start


class QueueLimits(NamedTuple):
    """The offsets that a queue has: [oldest, end)."""

    oldest: int
    end: int


class DataLoss(NamedTuple):
    """Messages that should be read and are no longer there."""

    queue: MessageQueue
    wanted: int
    limits: QueueLimits | None  # None: the queue is gone
    remade: bool  # the topic was deleted and made again

    def __str__(self) -> str:
        topic, _, queue_id = self.queue
        wanted = f"queue {queue_id} of topic {topic} was to be read from offset {self.wanted} on"
        if self.remade:
            return f"{wanted}, but the topic was deleted and made again"
        if self.limits is None:
            return f"{wanted}, but it is not there any more, may not be read, or the options leave it out"
        if self.wanted < self.limits.oldest:
            return f"{wanted}, but the oldest message kept is at {self.limits.oldest}"
        return (
            f"{wanted}, but it ends at {self.limits.end}: the store is older than the checkpoint, or an"
            " option names what is not there yet"
        )


def clamp_positions(
    wanted: Mapping[MessageQueue, int],
    limits: Mapping[MessageQueue, QueueLimits],
    remade: Collection[str] = (),
) -> tuple[Positions, list[DataLoss]]:
    """The positions at which reading continues, within the limits of each queue, and the messages lost by
    that.

    A new queue begins at its oldest message, as does a queue of a re-created topic. Expired messages are
    skipped. A position beyond the end stays where it is.
    """
    positions: Positions = {}
    losses = []
    if not wanted.keys() <= limits.keys():
        losses = [
            DataLoss(queue, wanted[queue], None, False) for queue in sorted(wanted.keys() - limits.keys())
        ]
    for queue, limit in limits.items():
        offset = wanted.get(queue)
        if offset is None:
            positions[queue] = limit.oldest
            continue
        is_remade = queue.topic in remade
        positions[queue] = limit.oldest if is_remade else min(max(offset, limit.oldest), limit.end)
        if is_remade or positions[queue] != offset:
            losses.append(DataLoss(queue, offset, limit, is_remade))
    return positions, losses


def backlog(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> int:
    """How many messages lie between two positions."""
    return sum(max(0, end[queue] - offset) for queue, offset in start.items() if queue in end)


def ranges_between(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[OffsetRange]:
    """The ranges between two positions, by topic and queue, without empty ones."""
    return [
        OffsetRange(queue, start[queue], end[queue])
        for queue in sorted(start)
        if end.get(queue, 0) > start[queue]
    ]


class Tasks(NamedTuple):
    """The size and the number of tasks.

    rows_worth: the rows that justify a task; 0 gives every queue a task of its own. rows_max: the most rows
    of a task. at_least: the minimum number of tasks, if there are as many messages. cores: the maximum number
    of tasks, unless rows_max needs more.
    """

    rows_worth: int
    rows_max: int
    at_least: int
    cores: int


def pack(ranges: Sequence[OffsetRange], tasks: Tasks) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task: split into nearly equal numbers of rows, in their order."""
    if not tasks.rows_worth:
        pieces = [one for span in ranges for one in _cut([span], _count(span.rows, tasks.rows_max))]
        wanted = min(tasks.at_least, sum(span.rows for span in ranges))
        return pieces if len(pieces) >= wanted else _cut(ranges, wanted)
    rows = sum(span.rows for span in ranges)
    count = min(_count(rows, tasks.rows_worth), tasks.cores)
    count = min(max(count, _count(rows, tasks.rows_max), tasks.at_least), rows)
    return _cut(ranges, count)


def _count(rows: int, of_rows: int) -> int:
    return -(-rows // of_rows)


def _cut(ranges: Sequence[OffsetRange], count: int) -> list[tuple[OffsetRange, ...]]:
    rows = sum(span.rows for span in ranges)
    cut: list[tuple[OffsetRange, ...]] = []
    left = list(reversed(ranges))
    for number in range(count):
        room = rows * (number + 1) // count - rows * number // count
        pieces = []
        while room:
            span = left.pop()
            end = min(span.end, span.start + room)
            pieces.append(OffsetRange(span.queue, span.start, end))
            room -= end - span.start
            if end < span.end:
                left.append(OffsetRange(span.queue, end, span.end))
        cut.append(tuple(pieces))
    return cut
