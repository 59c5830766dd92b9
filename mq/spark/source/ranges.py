"""What is read, as plain numbers: which offsets of which queues, and in how many tasks.

Nothing here knows Spark, a store or a clock. Positions say of each queue which offset is read next; a Range
is a piece of one queue. However it is packed, each offset between two positions is in one range, once, and in
the order of its queue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from mq.api.results import MessageQueue

__all__ = ["Limits", "Loss", "Positions", "Range", "Tasks", "backlog", "pack", "settle", "spans"]

Positions = dict[MessageQueue, int]


class Range(NamedTuple):
    """Offsets [start, end) of one queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start


class Limits(NamedTuple):
    """What a queue has: [oldest, end)."""

    oldest: int
    end: int


class Loss(NamedTuple):
    """Messages that should have been read and cannot be."""

    queue: MessageQueue
    wanted: int
    limits: Limits | None  # None: the queue is gone
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


def settle(
    wanted: Mapping[MessageQueue, int],
    limits: Mapping[MessageQueue, Limits],
    remade: Collection[str] = (),
) -> tuple[Positions, list[Loss]]:
    """Where reading goes on in each queue that there is, and what is lost by that.

    A queue that nobody has heard of begins with its oldest message; so does one of a topic made again. What
    has become too old is passed over. Beyond the end there is nothing to pass over.
    """
    positions: Positions = {}
    losses = []
    if not wanted.keys() <= limits.keys():
        losses = [Loss(queue, wanted[queue], None, False) for queue in sorted(wanted.keys() - limits.keys())]
    for queue, limit in limits.items():
        offset = wanted.get(queue)
        if offset is None:
            positions[queue] = limit.oldest
            continue
        is_remade = queue.topic in remade
        positions[queue] = limit.oldest if is_remade else min(max(offset, limit.oldest), limit.end)
        if is_remade or positions[queue] != offset:
            losses.append(Loss(queue, offset, limit, is_remade))
    return positions, losses


def backlog(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> int:
    """How many messages lie between."""
    return sum(max(0, end[queue] - offset) for queue, offset in start.items() if queue in end)


def spans(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[Range]:
    """What lies between two positions, by topic and queue; queues with nothing in between are left out."""
    return [
        Range(queue, start[queue], end[queue]) for queue in sorted(start) if end.get(queue, 0) > start[queue]
    ]


class Tasks(NamedTuple):
    """How much a task should read, and how many there should be.

    rows_worth: a task with less would cost more to start than it reads; 0 gives every queue one of its own.
    rows_max: no task reads more. at_least: there are so many if there are as many messages. cores: more are
    of no use on this machine, unless rows_max asks for them.
    """

    rows_worth: int
    rows_max: int
    at_least: int
    cores: int


def pack(ranges: Sequence[Range], tasks: Tasks) -> list[tuple[Range, ...]]:
    """The ranges of each task: cut into pieces of nearly the same number of rows, in their order."""
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


def _cut(ranges: Sequence[Range], count: int) -> list[tuple[Range, ...]]:
    rows = sum(span.rows for span in ranges)
    cut: list[tuple[Range, ...]] = []
    left = list(reversed(ranges))
    for number in range(count):
        room = rows * (number + 1) // count - rows * number // count
        pieces = []
        while room:
            span = left.pop()
            end = min(span.end, span.start + room)
            pieces.append(Range(span.queue, span.start, end))
            room -= end - span.start
            if end < span.end:
                left.append(Range(span.queue, end, span.end))
        cut.append(tuple(pieces))
    return cut
