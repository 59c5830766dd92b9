"""What the broker of a directory consists of: its parts are opened in this order, and closed in another."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final
from weakref import ref

from mq.api.queues import Appenders, Puller
from mq.api.results import MessageQueue, SendResult
from mq.broker.broadcast.groups import BroadcastGroups, clamp_all
from mq.broker.broadcast.slowest import Slowest
from mq.broker.bulk import LocalBulk
from mq.broker.delay.bulk_delays import DelayQueues
from mq.broker.delay.schedule import Schedule
from mq.broker.delay.timer import Timer, roll_window_ms
from mq.broker.expiring_unread import ExpiringUnread
from mq.broker.expiring_waiting import ExpiringWaiting
from mq.broker.filter_bitmaps import ConsumerFilters
from mq.broker.group_deletion import Deletion
from mq.broker.groups.consumer_groups import LocalConsumerGroups
from mq.broker.groups.groups import OFFSETS_INTERVAL, Groups
from mq.broker.groups.lowered_offsets import tell_lowered
from mq.broker.groups.offsets import Offsets
from mq.broker.groups.retry import send_back
from mq.broker.groups.retry_counts import Retries
from mq.broker.groups.takeover import Takeover
from mq.broker.leader import Duties, Duty
from mq.broker.live_settings import AgreedSettings
from mq.broker.message_query import Finder
from mq.broker.once.append_once import Dedup
from mq.broker.once.handled_key_files import OnceFiles
from mq.broker.options import Options, settle
from mq.broker.retention import LocalRetention
from mq.broker.topics.compaction import Compaction
from mq.broker.topics.registry import Catalog
from mq.broker.transactions.transactions import LocalTransactions
from mq.compacted_topics import RULES
from mq.message import Message
from mq.store.log.delayed_append import DelayedAppend
from mq.store.log.multi_append import BulkWriter
from mq.store.log.writer import Writer
from mq.store.queue.arrow import ArrowReader
from mq.store.queue.reader import Reader
from mq.store.shared.process_monitor import Watch
from mq.store.shared.queue_table import Numbers
from mq.store.shared.renewal import Renewals
from mq.store.store import Store
from mq.uninterrupted import close_all, closed_when_dropped, handed_over

__all__ = ["NAME", "Parts"]

NAME = "mq"  # of every local broker
# In the order in which they are closed: those with threads, the store, what calls under way may still read.
CLOSED = ["_groups", "_watch", "_duties", "_bulk", "_store", "_dedup", "_once", "_transactions"]
CLOSED += ["_writer", "_reader", "_schedule", "_timer", "_catalog"]


class Parts:
    """The parts of one broker, from when it is made until close()."""

    def __init__(self, path: str | os.PathLike[str], options: Options) -> None:
        self._options: Final = options
        self._store: Final = _opened_store(path, options)
        self._path: Final[Path] = self._store.root
        self._pid = os.getpid()
        self._is_dropped = True  # once nobody has it, unless it is closed before
        self._duties: Duties | None = None
        self._watch: Final = Watch()
        self._renewals: Final = Renewals()
        self._settings: Final = AgreedSettings(self._store)
        try:
            self._open_topics()
            self._open_log()
            self._open_bulk()
            self._open_groups()
            self._open_keys()
            self._open_transactions()
            self._open_retention()
            if options.takes_part:
                self._take_part()
        except BaseException:
            self._close()
            raise

    def _open_topics(self) -> None:
        """Topics, and what waits to be delivered to them."""
        store, option = self._store, self._store.settings.option
        offsets, numbers = Offsets(store.root), Numbers(store)
        self._catalog = catalog = Catalog(
            store,
            NAME,
            auto_create=self._options.auto_create_topics,
            default_queue_count=self._options.default_queue_count,
            has_offsets=lambda group, exists: offsets.has(group, numbers, exists),
        )
        self._schedule = Schedule(
            store,
            NAME,
            catalog.version,
            option("message_delay_level"),
            catalog.have,
            catalog.due_place,
            catalog.is_abandoned,
        )
        settings = self._settings
        self._timer = Timer(
            store,
            self._schedule.copies,
            option("timer_precision_ms"),
            catalog.have,
            catalog.due_place,
            roll_ms=lambda: roll_window_ms(settings.current().retention_ms),
        )

    def _open_log(self) -> None:
        """Appending, reading, and finding messages again."""
        store, catalog, options = self._store, self._catalog, self._options
        has_filters = options.enable_consume_queue_ext and not options.read_only
        self._filters = ConsumerFilters(store) if has_filters else None
        log_file_size = store.file_sizes.commitlog_file_size
        self._delays = DelayedAppend(self._schedule, self._timer, options.timer_max_delay_ms, log_file_size)
        self._writer = Writer(
            store,
            catalog.version,
            catalog,
            self._delays,
            _Keyed(self),
            self._filters,
            options.replicas,
        )
        self._reader = Reader(store, NAME, catalog.version, catalog.admit_read)
        self._finder = Finder(store, self._reader, catalog.current)

    def _open_bulk(self) -> None:
        """What reads and writes many messages at once."""
        store, catalog = self._store, self._catalog
        delay_queues = DelayQueues(
            NAME, self._schedule, self._timer, self._options.timer_max_delay_ms, catalog.admit_write
        )
        writer = BulkWriter(store, catalog.version, delay_queues.admit)
        self._arrow = ArrowReader(store, NAME)
        self._bulk = LocalBulk(store, NAME, catalog, self._reader, self._arrow, writer, delay_queues)

    def _open_groups(self) -> None:
        """Consumer groups, and the keys that they have handled: those are on disk before any offset is."""
        store, catalog, reader = self._store, self._catalog, self._reader
        self._once = OnceFiles(store)
        tell_lowered(store)
        self._groups = groups = Groups(
            store,
            NAME,
            reader,
            Takeover(self._watch, self._renewals, self._options.queue_lease),
            catalog.readable,
            catalog.exists,
            puller=partial(self._filters.puller, reader) if self._filters else _unfiltered(reader),
            send_back=partial(send_back, self._schedule, catalog),
            slowest=Slowest(store.root, catalog),
            before_save=self._once.sync,
        )
        broadcast = BroadcastGroups(store, NAME, groups, reader, catalog)
        retries = Retries(NAME, self._schedule, catalog.readable, groups.committed)
        deletion = Deletion(groups, broadcast, catalog, self._once, self._filters)
        self._consumer_groups = LocalConsumerGroups(groups, broadcast, retries, deletion)

    def _open_keys(self) -> None:
        """Messages that are stored once, and those of internal topics that are kept longer."""
        store, catalog = self._store, self._catalog
        # Of which the writer does not know: a cycle would keep files.
        append = Appenders(self._writer.appender)
        keyed_append = Appenders(partial(self._writer.appender, keyed=True))
        usual = self._writer.once_appender
        self._dedup = Dedup(store, NAME, self._reader, keyed_append, usual, catalog.current)
        self._compaction = Compaction(
            NAME, RULES, self._reader, self._finder.query, append, store.flush_log, catalog.names
        )

    def _open_transactions(self) -> None:
        self._transactions = LocalTransactions(
            self._store,
            NAME,
            self._catalog,
            self._writer,
            self._delays,
            self._schedule,
            self._groups.committed,
            self._groups.commit,
            settings=self._settings.current,
        )

    def _open_retention(self) -> None:
        """How long messages are kept, and what is said of those that go."""
        store, undecided = self._store, self._transactions.undecided
        unread = ExpiringUnread(NAME, self._groups, self._schedule)
        waiting = ExpiringWaiting(store, NAME, self._schedule, self._timer, undecided)
        self._retention = LocalRetention(
            store,
            self._settings,
            unread.of,
            waiting.of,
            self._compaction.compacted,
            waiting.first_of_times,
        )

    def _take_part(self) -> None:
        """Do what one process does for all, whenever it is this one's turn."""
        self._retention.warn_if_held()
        catalog, groups = self._catalog, self._groups
        others: list[tuple[float, Callable[[], object]]] = [
            (OFFSETS_INTERVAL, groups.save),
            (OFFSETS_INTERVAL, partial(catalog.finish_shrinking, groups.unread)),
            (OFFSETS_INTERVAL, catalog.fold),
        ]
        threaded: list[Duty] = [self._schedule, self._timer, self._transactions.rounds]
        self._duties = Duties(
            self._store,
            partial(self._settings.option, "flush_interval"),
            self._retention.work,
            threaded,
            others,
            lease=self._options.duties_lease,
            renewals=self._renewals,
        )

    @handed_over
    def close(self) -> None:
        """Close; calls under way in other threads end with BrokerClosed. Twice is fine."""
        self._close()

    def _close(self) -> None:
        self._is_dropped = False
        if os.getpid() == self._pid:  # In a child all is let go of, and absent threads may have the locks.
            close_all(getattr(self, name, None) for name in CLOSED)

    @closed_when_dropped
    def __del__(self) -> Callable[[], object] | None:
        return self._close if getattr(self, "_is_dropped", False) else None


class _Keyed:
    """What the writer tells of messages with a key. It does not hold the broker: files are given back as soon
    as nobody has a broker any more, not when cycles are looked for."""

    def __init__(self, parts: Parts) -> None:
        self._parts = ref(parts)

    def append(
        self, queue: MessageQueue, message: Message, body: bytes, sys_flag: int, unique_id: str | None = None
    ) -> SendResult:
        parts = self._parts()
        assert parts is not None
        return parts._dedup.append(queue, message, body, sys_flag, unique_id)

    def doubt(self, topic: str, key: str, *, for_good: bool = False) -> None:
        parts = self._parts()
        assert parts is not None
        parts._dedup.doubt(topic, key, for_good=for_good)


def _unfiltered(reader: Reader) -> Callable[[MessageQueue, object], Puller]:
    return lambda queue, _owner: reader.puller(queue)


def _opened_store(path: str | os.PathLike[str], options: Options) -> Store:
    return Store(
        path,
        create=options.create,
        read_only=options.read_only,
        sync=options.flush == "sync",
        reserve_size=int(options.reserve_size),
        progress=options.progress,
        on_recovered=clamp_all,
        settle=partial(
            settle,
            options.kept,
            str(path),
            takes_part=options.takes_part,
            change=options.change_settings,
        ),
        commitlog_file_size=options.commitlog_file_size,
        queue_file_units=options.queue_file_units,
        index_slot_count=options.index_slot_count,
        index_unit_count=options.index_unit_count,
        consume_queue_ext_file_size=options.consume_queue_ext_file_size,
    )
