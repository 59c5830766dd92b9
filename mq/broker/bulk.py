"""Many messages at once, for the broker of a directory: see mq.api.bulk.Bulk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from mq.api.bulk import Stored
from mq.api.results import MessageQueue
from mq.broker.delay.bulk_delays import DelayQueues
from mq.broker.topics.config import PERM_WRITE
from mq.broker.topics.registry import Catalog
from mq.errors import MQError, NotPermitted, TopicNotFound
from mq.filter.selection import Selection
from mq.names import UNSENDABLE_TOPICS, is_system_topic
from mq.store.log.multi_append import BulkWriter
from mq.store.log.size_limits import ROOM_MAX
from mq.store.queue.arrow import ArrowReader, Scan
from mq.store.queue.queue_ranges import Spans
from mq.store.queue.reader import Reader
from mq.store.shared.leader_lock import has_lapsed, is_taken
from mq.store.shared.waiting import Wait
from mq.store.store import Store
from mq.threads import start

__all__ = ["LocalBulk"]

CHECKPOINT_INTERVAL = 5.0  # seconds

_log = logging.getLogger("mq.store")


class LocalBulk:
    """See mq.api.bulk.Bulk."""

    def __init__(
        self,
        store: Store,
        name: str,
        catalog: Catalog,
        reader: Reader,
        arrow: ArrowReader,
        writer: BulkWriter,
        delay_queues: DelayQueues,
    ) -> None:
        self.delay_queues = delay_queues
        self._name = name
        self._catalog = catalog
        self._store = store
        self._reader = reader
        self._arrow = arrow
        spans = Spans(store, reader.number)
        self.limits = spans.limits
        self.fit = spans.fit
        self.first_not_indexed = spans.first_not_indexed
        self._queue_count = spans.queue_count
        self._log_min = spans.log_min
        self._waiting: tuple[Mapping[MessageQueue, int], tuple[int, int], Wait | None] = {}, (-1, -1), None
        self._released = 0  # log offset below which nothing is mapped any more
        self._checkpointed = 0.0
        self._flushing = threading.Lock()
        self._is_closed = False
        self._writer = writer

    def flush_unattended(self) -> None:
        """Begin to have on disk what was appended, unless a process has the duties and is not stopped: that
        one does it by and by. Nobody waits for it, as nobody waits for that one."""
        if not is_taken(self._store.root) or has_lapsed(self._store):
            start(threading.Thread(target=self._flush, name="mq-flush", daemon=True))

    def _flush(self) -> None:
        try:
            with self._flushing:
                if self._is_closed:
                    return
                self._store.flush_log()
                now = time.monotonic()
                if now - self._checkpointed >= CHECKPOINT_INTERVAL:
                    self._store.flush()
                    self._checkpointed = now
        except (MQError, OSError) as error:
            _log.warning("%s: what was appended is not flushed: %s", self._store.root, error)

    def close(self) -> None:
        """Nothing is flushed from now on, nor being flushed."""
        with self._flushing:
            self._is_closed = True

    def append(
        self,
        queues: Sequence[MessageQueue],
        places: Any,
        bodies: Sequence[Any],
        body_sizes: Any,
        properties: Sequence[Any],
        properties_sizes: Any,
    ) -> Stored:
        """See BulkWriter.append. Some of the queues may be those of delayed messages: see DelayQueues."""
        delays_ms = self.delay_queues.delays_ms(queues)
        known = self._catalog.current()
        new = [
            (queue.topic, queue.queue_id)
            for queue in queues
            if queue.topic not in known and not is_system_topic(queue.topic)
        ]
        with self._catalog.first_send(new) if new else nullcontext():
            stored = self._writer.append(
                queues, places, bodies, body_sizes, properties, properties_sizes, delays_ms
            )
        if delays_ms is not None:
            self.delay_queues.stored(delays_ms, stored.store_time_ms)
        return stored

    def sync(self, stored: Stored) -> None:
        """See BulkWriter.sync."""
        self._writer.sync(stored)

    @property
    def size_max(self) -> int:
        """What body, properties and topic of a message may come to, whatever the limit for bodies is."""
        return self._store.file_sizes.commitlog_file_size - ROOM_MAX

    def scan(self, queue: MessageQueue, columns: Sequence[str], *, unit: str = "us", tags: str = "*") -> Scan:
        """See Scans.scan."""
        return self._arrow.scan(queue, self._reader.number(queue), columns, unit, Selection.of(tags).hashes)

    def queues_to_write(self, topic: str, *, new: bool = False) -> list[MessageQueue]:
        """The queues that messages of a topic go to, for a caller that has another process write them.
        new: the topic may be made by that. Raises TopicNotFound, NotPermitted."""
        settings = self._catalog.current().get(topic) if new else self._catalog.settings(topic)
        if settings is None:
            settings = self._catalog.wanted(topic)
        if topic in UNSENDABLE_TOPICS or not settings.perm & PERM_WRITE:
            raise NotPermitted(f"topic {topic} may not be written")
        return [MessageQueue(topic, self._name, queue_id) for queue_id in range(settings.write_queue_count)]

    def topic_begin(self, topic: str) -> int:
        """Where the log ended when the topic was made, the last time: what lies before is of another topic of
        this name. 0 where nobody noted it, as in a directory that RocketMQ made."""
        settings = self._catalog.current().get(topic)
        return settings.begin_log_offset if settings else 0

    def release(self) -> int:
        """Let go of files that retention removed, which take up space until then; how many. May be called
        often."""
        log_min = self._log_min()
        if log_min == self._released:
            return 0
        self._released = log_min
        return self._store.release_old()

    def wait(self, positions: Mapping[MessageQueue, int], seconds: float, version: int | None = None) -> None:
        """Sleep until one of the queues has a message at its offset or beyond, a topic changed since its
        route_version was this, or the time is up. May return early for nothing. The same positions again,
        unchanged, cost least. For one thread."""
        if version is None:
            version = self._catalog.route_version()
        # A queue that has no number yet gets one with its first message. What is counted first, before the
        # numbers are asked for, is not slept through.
        count = self._queue_count()
        known, seen, waiting = self._waiting
        if waiting is None or known is not positions or seen != (version, count):
            try:
                numbers = [self._reader.number(queue) for queue in positions]
            except (TopicNotFound, NotPermitted, ValueError):
                return  # A topic changed.
            places = [
                (number, offset if number >= 0 else count, None)
                for number, offset in zip(numbers, positions.values(), strict=True)
            ]
            waiting = Wait(self._store, places, version=version)
            self._waiting = positions, (version, count), waiting
        waiting.sleep(seconds)
