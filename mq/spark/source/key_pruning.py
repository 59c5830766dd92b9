"""The ranges that may hold messages with a key: those that the index finds, and those not indexed yet.

A read-only process does not update the index, so it reads and compares the messages behind the index. If the
key is in more than HITS_MAX messages, the whole queue is read: the index would save nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mq.api.broker import DirectoryBroker
from mq.api.results import MessageQueue
from mq.spark.source.ranges import OffsetRange

__all__ = ["prune_by_key"]

HITS_MAX = 4096


def prune_by_key(broker: DirectoryBroker, ranges: Sequence[OffsetRange], key: str) -> list[OffsetRange]:
    """Parts of these ranges, in their order, that hold every message with this key or unique id."""
    # Read the index's end before its hits: in between, the index can only grow.
    known = {span.queue: broker.bulk.first_not_indexed(*span) for span in ranges}
    hits: dict[MessageQueue, set[int]] = {}
    for topic in {span.queue.topic for span in ranges}:
        found = broker.query(topic, key, count_max=HITS_MAX)
        if len(found) == HITS_MAX:
            known.update((queue, 0) for queue in known if queue.topic == topic)
        for message in found:
            queue = MessageQueue(topic, broker.name, message.queue_id)
            hits.setdefault(queue, set()).add(message.queue_offset)
    pieces: list[OffsetRange] = []
    for span in ranges:
        rest = max(known[span.queue], span.start)
        inside = (offset for offset in hits.get(span.queue, ()) if span.start <= offset < min(rest, span.end))
        pieces += _runs(span.queue, inside)
        if rest < span.end:
            pieces.append(OffsetRange(span.queue, rest, span.end))
    return pieces


def _runs(queue: MessageQueue, offsets: Iterable[int]) -> list[OffsetRange]:
    runs: list[OffsetRange] = []
    for offset in sorted(offsets):
        if runs and runs[-1].end == offset:
            runs[-1] = runs[-1]._replace(end=offset + 1)
        else:
            runs.append(OffsetRange(queue, offset, offset + 1))
    return runs
