"""LocalBroker: RocketMQ's broker over a directory, inside the application's own process.

Any number of processes open the same directory, each with a broker of its own; what they share is the
store. A broker may be used from any thread, and is of no use in a forked child, which opens its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from mq.api.broker import (
    Appender,
    Checker,
    Ender,
    MessageQueue,
    Preparer,
    Puller,
    PullResult,
    SendResult,
    Topic,
    Undecided,
)
from mq.api.group import Assigned, BroadcastOffsets, Group, Lookout, Member, Membership, QueueState
from mq.api.handled_keys import Handled
from mq.broker.broadcast.groups import BroadcastGroups, clamp_all
from mq.broker.bulk import Bulk
from mq.broker.delay.bulk_delays import Asides
from mq.broker.delay.pending import Delayed, delayed
from mq.broker.delay.recall import Recall
from mq.broker.delay.schedule import Schedule
from mq.broker.delay.timer import Timer, roll_window_ms
from mq.broker.filter_bitmaps import ConsumerFilters
from mq.broker.groups.groups import OFFSETS_INTERVAL, Groups
from mq.broker.groups.retry import send_back
from mq.broker.groups.retry_counts import Retries
from mq.broker.groups.takeover import LEASE_SECONDS, Takeover
from mq.broker.leader import Duties, Duty
from mq.broker.live_settings import AgreedSettings
from mq.broker.message_query import Finder
from mq.broker.once.append_once import Dedup
from mq.broker.once.handled_key_files import OnceFiles
from mq.broker.options import check_options, settle
from mq.broker.retention import Retention
from mq.broker.topics.compaction import Keepsakes
from mq.broker.topics.config import TopicSettings
from mq.broker.topics.registry import Catalog
from mq.broker.transactions.transactions import LocalTransactions
from mq.broker.waiter import LocalLookout
from mq.message import MessageExt
from mq.names import check_group, check_topic
from mq.store.log import delayed_append
from mq.store.log.multi_append import BulkWriter
from mq.store.log.writer import Writer
from mq.store.queue.arrow import ArrowReader
from mq.store.queue.reader import Reader
from mq.store.shared.leader_lock import LEASE
from mq.store.shared.process_monitor import Watch
from mq.store.shared.renewal import Renewals
from mq.store.store import Store
from mq.uninterrupted import close_all, left_open, uninterrupted

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LocalBroker"]

# In the order in which they are closed: those with threads, the store, what calls under way may still read.
PARTS = ["_groups", "_watch", "_duties", "bulk", "_store", "_dedup", "_once", "_transactions"]
PARTS += ["_writer", "_reader", "_schedule", "_timer", "_catalog"]


class LocalBroker:
    """The broker of a directory. Made by mq.open, which documents the options."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        flush: str = "async",
        flush_interval: float | None = None,
        commitlog_file_size: int | None = None,
        queue_file_units: int | None = None,
        index_slot_count: int | None = None,
        index_unit_count: int | None = None,
        retention_hours: float | None = None,
        disk_ratio_max: float | None = None,
        auto_create_topics: bool = True,
        default_queue_count: int = 4,
        message_size_max: int = 4 << 20,
        message_delay_level: str | None = None,
        timer_precision_ms: int | None = None,
        timer_max_delay_ms: int = 259_200_000,
        transaction_timeout: float | None = None,
        transaction_check_interval: float | None = None,
        transaction_check_max: int | None = None,
        duties_lease: float = LEASE,
        queue_lease: float = LEASE_SECONDS,
        change_settings: bool = False,
        enable_consume_queue_ext: bool = False,
        consume_queue_ext_file_size: int | None = None,
        read_only: bool = False,
        create: bool = True,
        duties: bool = True,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        # What one does for all (see leader.py) goes by options that the store keeps: None is what it has.
        kept = {
            "flush_interval": flush_interval,
            "retention_hours": retention_hours,
            "disk_ratio_max": disk_ratio_max,
            "message_delay_level": message_delay_level,
            "timer_precision_ms": timer_precision_ms,
            "transaction_timeout": transaction_timeout,
            "transaction_check_interval": transaction_check_interval,
            "transaction_check_max": transaction_check_max,
        }
        given = {name: value for name, value in kept.items() if value is not None}
        leases = {"duties_lease": duties_lease, "queue_lease": queue_lease}
        check_options(flush, default_queue_count, message_size_max, timer_max_delay_ms, leases, given)
        takes_part = duties and not read_only
        self.name: Final = "mq"
        self.message_size_max: Final = message_size_max
        self.may_wait: Final = flush == "sync"
        self._store = store = Store(
            path,
            create=create,
            read_only=read_only,
            sync=flush == "sync",
            progress=progress,
            on_recovered=clamp_all,
            settle=partial(settle, given, str(path), takes_part=takes_part, change=change_settings),
            commitlog_file_size=commitlog_file_size,
            queue_file_units=queue_file_units,
            index_slot_count=index_slot_count,
            index_unit_count=index_unit_count,
            consume_queue_ext_file_size=consume_queue_ext_file_size,
        )
        self.path: Final = store.root
        self._pid = os.getpid()
        self._is_dropped = True  # once nobody has it, unless it is closed before
        self._duties: Duties | None = None
        self._watch = Watch()
        renewals = Renewals()
        self._settings = settings = AgreedSettings(store)
        option = store.settings.option
        try:
            self._catalog = catalog = Catalog(
                store, self.name, auto_create=auto_create_topics, default_queue_count=default_queue_count
            )
            self._schedule = schedule = Schedule(
                store,
                self.name,
                catalog.version,
                option("message_delay_level"),
                catalog.have,
                catalog.due_place,
            )
            self._timer = timer = Timer(
                store,
                schedule.copies,
                option("timer_precision_ms"),
                catalog.have,
                catalog.due_place,
                roll_ms=lambda: roll_window_ms(settings.current().retention_ms),
            )
            self._filters = ConsumerFilters(store) if enable_consume_queue_ext and not read_only else None
            log_file_size = store.geometry.commitlog_file_size
            waiting = delayed_append.Asides(schedule, timer, timer_max_delay_ms, log_file_size)
            writer = Writer(store, self.name, catalog.version, catalog, waiting, self._keyed(), self._filters)
            self._writer = writer
            self._reader = Reader(store, self.name, catalog.version, catalog.admit_read)
            self._arrow = ArrowReader(store, self.name)
            asides = Asides(self.name, schedule, timer, timer_max_delay_ms, catalog.admit_write)
            bulk_writer = BulkWriter(store, catalog.version, asides.admit)
            self.bulk: Final = Bulk(store, self.name, catalog, self._reader, self._arrow, bulk_writer, asides)
            self._finder = Finder(store, self._reader, catalog.current)
            self._dedup = Dedup(store, self.name, self._reader, writer.append, catalog.current)
            self._once = OnceFiles(store)
            self._keepsakes = keepsakes = Keepsakes(
                self.name, self._reader, self._finder.query, writer.append, store.flush_log, catalog.names
            )
            self._groups = groups = Groups(
                store,
                self.name,
                self._reader,
                Takeover(self._watch, renewals, queue_lease),
                catalog.readable,
                catalog.exists,
                self._once.sync,
            )
            self._broadcast = broadcast = BroadcastGroups(store, self.name, groups, self._reader, catalog)
            self._transactions = transactions = LocalTransactions(
                store,
                self.name,
                catalog,
                writer,
                waiting,
                schedule,
                groups.committed,
                groups.commit,
                settings=settings.current,
            )
            self.kept_settings = settings.kept
            self.change_settings = settings.change_kept
            self.retention: Final = Retention(store, settings, groups, keepsakes.kept)
            # Straight to the store: a layer here would cost a tenth of a send.
            self.append = writer.append
            self.route_version = catalog.route_version
            self.publishable = catalog.publishable
            self.readable = catalog.readable
            self.append_batch = writer.append_batch
            self.appender = writer.appender
            self.append_once = self._dedup.append_once
            self.handled = self._once.handled
            self.pull = self._reader.pull
            self.puller = self._filters.pullers(self._reader) if self._filters else self._reader.puller
            self.join = groups.join
            self.assigned = groups.assigned
            self.lookout = lambda: LocalLookout(store, groups.numbers)
            self.group_members = groups.members
            self.group_topics = groups.topics
            self.group_offsets = groups.offsets
            self.group_states = groups.states
            self.group_retrying = Retries(self.name, schedule, catalog.readable, groups.committed).of
            self.reset_offsets = broadcast.reset
            self.broadcast_offsets = broadcast.offsets
            self.committed = groups.committed
            self.commit = groups.commit
            self.prepare = transactions.prepare
            self.preparer = transactions.preparer
            self.end_transaction = transactions.end_transaction
            self.ender = transactions.ender
            self.enlist = transactions.enlist
            self.undecided = transactions.undecided
            self.resume_transaction = transactions.resume_transaction
            if takes_part:
                self.retention.warn_if_held()
                others: list[tuple[float, Callable[[], object]]] = [
                    (OFFSETS_INTERVAL, groups.save),
                    (OFFSETS_INTERVAL, partial(catalog.finish_shrinking, groups.unread)),
                    (OFFSETS_INTERVAL, catalog.fold),
                ]
                threaded: list[Duty] = [schedule, timer, transactions.rounds]
                work, interval = self.retention.work, partial(settings.option, "flush_interval")
                self._duties = Duties(
                    store, interval, work, threaded, others, lease=duties_lease, renewals=renewals
                )
        except BaseException:
            self._close()
            raise

    append: Callable[..., SendResult]
    route_version: Callable[[], int]
    publishable: Callable[[str], Sequence[MessageQueue]]
    readable: Callable[[str], Sequence[MessageQueue]]
    append_batch: Callable[..., SendResult]
    appender: Callable[[MessageQueue], Appender]
    append_once: Callable[..., SendResult]
    handled: Callable[..., Handled]
    pull: Callable[..., PullResult]
    puller: Callable[..., Puller]
    join: Callable[..., Membership]
    assigned: Callable[[str], Assigned]
    lookout: Callable[[], Lookout]
    group_members: Callable[[str], list[Member]]
    group_topics: Callable[[str], list[str]]
    group_offsets: Callable[[str, str], dict[MessageQueue, int]]
    group_states: Callable[[str, str], list[QueueState]]
    group_retrying: Callable[[str], dict[str, int]]
    reset_offsets: Callable[[str, Mapping[MessageQueue, int]], None]
    broadcast_offsets: Callable[[str, str | None, Path | None], BroadcastOffsets]
    committed: Callable[[str, MessageQueue], int | None]
    commit: Callable[[str, MessageQueue, int], bool]
    prepare: Callable[..., SendResult]
    preparer: Callable[[MessageQueue, str], Preparer]
    end_transaction: Callable[..., None]
    ender: Callable[[str], Ender]
    enlist: Callable[[str, str], Checker]
    undecided: Callable[[], list[Undecided]]
    resume_transaction: Callable[[str], None]
    kept_settings: Callable[[], dict[str, Any]]
    change_settings: Callable[..., None]

    def create_topic(
        self,
        name: str,
        queue_count: int | None = None,
        *,
        read_queue_count: int | None = None,
        write_queue_count: int | None = None,
        perm: str | None = None,
        ordered: bool | None = None,
        shrink: bool = False,
    ) -> Topic:
        """Make a topic, or change one that is there: what is not given stays as it is. A new topic has 4
        queues, may be read and written, and is not marked as ordered, unless told otherwise.

        queue_count queues to read and to write, unless one of the two counts is given on its own; perm is
        "r", "w", "rw" or "". Fewer queues to read are refused (NotPermitted) where some group has not
        consumed what the others hold. With shrink=True nothing more is sent to these, and they are read until
        all groups have consumed them; then they are gone. Raises TopicInvalid, NotPermitted for RocketMQ's
        own topics, ValueError.
        """
        self._catalog.check_writable()
        self._catalog.create(
            name, queue_count, read_queue_count, write_queue_count, perm, ordered, shrink, self._groups.unread
        )
        return Topic(self, name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its queues; its messages leave the log with retention. Raises TopicNotFound,
        NotPermitted."""
        self._catalog.check_writable()
        self._catalog.delete(name, self._groups.forget_topic)

    def topics(self) -> list[str]:
        """Names of all topics but RocketMQ's own, sorted."""
        return self._catalog.names()

    def topic(self, name: str) -> Topic:
        """Raises TopicNotFound, TopicInvalid."""
        check_topic(name)
        self._catalog.settings(name)
        return Topic(self, name)

    def settings(self, name: str) -> TopicSettings:
        """Queue counts, permissions and order of a topic. Raises TopicNotFound."""
        return self._catalog.settings(name)

    def read_arrow(self, queue: MessageQueue, offset: int, count_max: int, byte_max: int) -> Any:
        """See Broker.read_arrow. Needs pyarrow: pip install 'mq[arrow]'."""
        return self._arrow.read(queue, self._reader.number(queue), offset, count_max, byte_max)

    def min_offset(self, queue: MessageQueue) -> int:
        return self._reader.min_offset(queue)

    def max_offset(self, queue: MessageQueue) -> int:
        return self._reader.max_offset(queue)

    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        return self._reader.offset_at(queue, time_ms)

    def message(self, msg_id: str) -> MessageExt:
        """The message of an offset id or a unique id. Raises MessageNotFound.

        Sees every message sent before. Of an id that was stored twice (by a retry), the newest.
        """
        return self._finder.message(msg_id)

    def query(
        self, topic: str, key: str, *, count_max: int = 32, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[MessageExt]:
        """Messages of a topic that have this key (or unique id), stored in [begin_ms, end_ms], newest first.

        Sees every message sent before. Raises TopicNotFound.
        """
        return self._finder.query(topic, key, count_max, begin_ms, end_ms)

    def recall(self, handle: str) -> str:
        """See Broker.recall."""
        self._catalog.check_writable()
        recall = Recall(self._store, self.name, self._timer, self._finder, self._writer)
        return recall.recall(handle)

    def delayed(self) -> Iterator[Delayed]:
        """All messages that wait to be delivered: those with a delay level, and those with a time of their
        own."""
        return delayed(self._store, self.name, self._catalog.version, self._schedule, self._timer)

    def groups(self) -> list[str]:
        """Names of all consumer groups but RocketMQ's own that have members or offsets, sorted."""
        return sorted({*self._groups.names(), *self._broadcast.names()})

    def group(self, name: str) -> Group:
        """A consumer group, which need not have been used before. Raises GroupInvalid."""
        check_group(name)
        return Group(self, name)

    def send_back(
        self, message: MessageExt, group: str, *, delay_level: int = 0, max_reconsume_times: int = 16
    ) -> None:
        """See Broker.send_back."""
        self._catalog.check_writable()
        send_back(self._schedule, self._catalog, message, group, delay_level, max_reconsume_times)

    def _keyed(self) -> Callable[..., None]:
        """What the writer tells of a message with a key. It does not hold the broker: files are given back as
        soon as nobody has a broker any more, not when cycles are looked for."""
        this = ref(self)

        def doubt(topic: str, key: str, *, for_good: bool = False) -> None:
            broker = this()
            if broker is not None:
                broker._dedup.doubt(topic, key, for_good=for_good)

        return doubt

    def flush(self) -> None:
        """Have everything on disk that was sent before this call. Raises StorePoisoned."""
        self._catalog.check_writable()
        self._store.flush()

    def expire(self, *, retention_hours: float | None = None) -> int:
        """Delete commit log files whose last change is longer ago than retention_hours (the store's if None).

        Returns how many files went; the newest stays in any case. See Retention.expire.
        """
        self._catalog.check_writable()
        return self.retention.expire(retention_hours)

    def close(self) -> None:
        """Close; calls under way in other threads end with BrokerClosed. Twice is fine."""
        uninterrupted(self._close)

    def _close(self) -> None:
        self._is_dropped = False
        if os.getpid() == self._pid:  # In a child all is let go of, and absent threads may have the locks.
            close_all(getattr(self, name, None) for name in PARTS)

    def __del__(self) -> None:
        if getattr(self, "_is_dropped", False) and sys is not None and not sys.is_finalizing():
            left_open(self._close, self, self._pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LocalBroker({os.fspath(self.path)!r})"
