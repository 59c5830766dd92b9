"""Which pieces of queues may hold messages with a key: what the index names, and what it does not know yet.

A reader that only looks does not bring the index up to date, so the newest messages are read and compared.
So are all of a queue where the key is in so many messages that there is nothing to be gained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mq.api.broker import DirectoryBroker
from mq.api.results import MessageQueue
from mq.spark.source.ranges import Range

__all__ = ["narrowed"]

HITS_MAX = 4096


def narrowed(broker: DirectoryBroker, spans: Sequence[Range], key: str) -> list[Range]:
    """Pieces of these ranges, in their order, that hold every message with this key, or unique id."""
    # First how far the index reaches, then what it says: it may only know more by then.
    known = {span.queue: broker.bulk.first_not_indexed(*span) for span in spans}
    hits: dict[MessageQueue, set[int]] = {}
    for topic in {span.queue.topic for span in spans}:
        found = broker.query(topic, key, count_max=HITS_MAX)
        if len(found) == HITS_MAX:
            known.update((queue, 0) for queue in known if queue.topic == topic)
        for message in found:
            queue = MessageQueue(topic, broker.name, message.queue_id)
            hits.setdefault(queue, set()).add(message.queue_offset)
    pieces: list[Range] = []
    for span in spans:
        rest = max(known[span.queue], span.start)
        inside = (offset for offset in hits.get(span.queue, ()) if span.start <= offset < min(rest, span.end))
        pieces += _runs(span.queue, inside)
        if rest < span.end:
            pieces.append(Range(span.queue, rest, span.end))
    return pieces


def _runs(queue: MessageQueue, offsets: Iterable[int]) -> list[Range]:
    runs: list[Range] = []
    for offset in sorted(offsets):
        if runs and runs[-1].end == offset:
            runs[-1] = runs[-1]._replace(end=offset + 1)
        else:
            runs.append(Range(queue, offset, offset + 1))
    return runs
