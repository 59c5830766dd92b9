"""What bulk readers ask of the broker of a directory, beside what every broker answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mq.broker.asides import Asides
from mq.broker.catalog import Catalog
from mq.broker.protocol import MessageQueue
from mq.broker.topics import PERM_WRITE
from mq.errors import NotPermitted
from mq.names import UNSENDABLE_TOPICS
from mq.store.arrow import ArrowReader, Scan
from mq.store.bulk import BulkWriter, Stored
from mq.store.reader import Reader
from mq.store.store import Store
from mq.store.waiting import Wait

__all__ = ["Bulk"]

ROOM_MAX = 1024  # what a record has besides, with a margin
LOOK_INTERVAL = 0.01  # a queue without any message, of a broker that only reads, has no place to wait at


class Bulk:
    """Scans of queues into columns, waiting for many queues at once, and appending to many at once."""

    def __init__(
        self,
        store: Store,
        name: str,
        catalog: Catalog,
        reader: Reader,
        arrow: ArrowReader,
        writer: BulkWriter,
        asides: Asides,
    ) -> None:
        self.asides = asides
        self._name = name
        self._catalog = catalog
        self._store = store
        self._reader = reader
        self._arrow = arrow
        self._writer = writer

    def append(
        self,
        queues: Sequence[MessageQueue],
        places: Any,
        bodies: Any,
        body_sizes: Any,
        properties: Any,
        properties_sizes: Any,
    ) -> Stored:
        """See BulkWriter.append. Some of the queues may be of messages that are put aside: see Asides."""
        delays_ms = self.asides.delays_ms(queues)
        stored = self._writer.append(
            queues, places, bodies, body_sizes, properties, properties_sizes, delays_ms
        )
        if delays_ms is not None:
            self.asides.stored(delays_ms, stored.store_time_ms)
        return stored

    def sync(self, stored: Stored) -> None:
        """See BulkWriter.sync."""
        self._writer.sync(stored)
        self.asides.synced()

    @property
    def size_max(self) -> int:
        """What body, properties and topic of a message may come to, whatever the limit for bodies is."""
        return self._store.geometry.commitlog_file_size - ROOM_MAX

    def scan(
        self,
        queue: MessageQueue,
        columns: Sequence[str],
        *,
        unit: str = "us",
        hashes: frozenset[int] | None = None,
    ) -> Scan:
        """Reads of one queue, one batch after another: these columns, of messages with one of the hashes."""
        return self._arrow.scan(queue, self._reader.number(queue), columns, unit, hashes)

    def queues_to_write(self, topic: str) -> list[MessageQueue]:
        """The queues that messages of a topic go to, for who has them written by somebody else. Raises
        TopicNotFound, NotPermitted."""
        settings = self._catalog.settings(topic)
        if topic in UNSENDABLE_TOPICS or not settings.perm & PERM_WRITE:
            raise NotPermitted(f"topic {topic} may not be written")
        return [MessageQueue(topic, self._name, queue_id) for queue_id in range(settings.write_queue_count)]

    def wait(self, positions: Mapping[MessageQueue, int], seconds: float) -> None:
        """Sleep until one of the queues has a message at its offset or beyond, a topic changed, or the time
        is up. May return early for nothing."""
        version = self._store.topics_version()[0]
        places = [(self._reader.number(queue), offset, None) for queue, offset in positions.items()]
        known = [place for place in places if place[0] >= 0]
        if len(known) < len(places):
            seconds = min(seconds, LOOK_INTERVAL)
        Wait(self._store, known, version=version).sleep(seconds)
