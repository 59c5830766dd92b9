"""LocalBroker: RocketMQ's broker over a directory, inside the application's own process.

Any number of processes open the same directory, each with a broker of its own; what they share is the
store. A broker may be used from any thread, and is of no use in a forked child, which opens its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from mq.broker.duties import Duties
from mq.broker.filters import ConsumerFilters
from mq.broker.finding import Finder
from mq.broker.groups import OFFSETS_INTERVAL, Groups
from mq.broker.membership import Group, Member, Membership, QueueState
from mq.broker.offsets import clamp_offsets
from mq.broker.options import QUEUE_COUNT_MAX, check_count, check_number, check_options
from mq.broker.protocol import Appender, MessageQueue, Puller, PullResult, SendResult, Topic
from mq.broker.retry import DEAD_PREFIX, RETRY_PREFIX, send_back
from mq.broker.schedule import Schedule
from mq.broker.topics import PERM_INHERIT, PERM_READ, PERM_WRITE, Topics, TopicSettings, grown
from mq.errors import NotPermitted, TopicNotFound
from mq.message import MessageExt
from mq.names import UNSENDABLE_TOPICS, check_group, check_topic, is_system_topic
from mq.store import retention
from mq.store.arrow import ArrowReader
from mq.store.directory import BEGIN_MEMBER
from mq.store.reader import Reader
from mq.store.store import Store
from mq.store.watch import Watch
from mq.store.writer import Writer

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LocalBroker"]

TEMPLATE_TOPIC = "TBW102"
TEMPLATE = TopicSettings(TEMPLATE_TOPIC, 8, 8, PERM_READ | PERM_WRITE | PERM_INHERIT)
CLOSED = (-1,)


class LocalBroker:
    """The broker of a directory. Made by mq.open, which documents the options."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        flush: str = "async",
        flush_interval: float = 0.5,
        commitlog_file_size: int | None = None,
        queue_file_units: int | None = None,
        index_slot_count: int | None = None,
        index_unit_count: int | None = None,
        retention_hours: float = 72,
        disk_ratio_max: float | None = None,
        auto_create_topics: bool = True,
        default_queue_count: int = 4,
        message_size_max: int = 4 << 20,
        message_delay_level: str | None = None,
        enable_consume_queue_ext: bool = False,
        consume_queue_ext_file_size: int | None = None,
        read_only: bool = False,
        create: bool = True,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        check_options(
            flush, flush_interval, retention_hours, disk_ratio_max, default_queue_count, message_size_max
        )
        self.name: Final = "mq"
        self.message_size_max: Final = message_size_max
        self._auto_create = auto_create_topics
        self._default_queue_count = default_queue_count
        self._retention_ms = int(retention_hours * 3_600_000)
        self._disk_ratio_max = disk_ratio_max
        self._store = store = Store(
            path,
            create=create,
            read_only=read_only,
            sync=flush == "sync",
            progress=progress,
            on_recovered=clamp_offsets,
            commitlog_file_size=commitlog_file_size,
            queue_file_units=queue_file_units,
            index_slot_count=index_slot_count,
            index_unit_count=index_unit_count,
            consume_queue_ext_file_size=consume_queue_ext_file_size,
        )
        self.path: Final = store.root
        self._version: Any = store.topics_version()
        self._topics = Topics(store.root)
        self._seen = -1
        self._settings: dict[str, TopicSettings] = {}
        self._duties: Duties | None = None
        self._watch = Watch()
        try:
            self._adopt_queues()
            self._schedule = schedule = Schedule(
                store, self.name, self._version, message_delay_level, self._have_topic, self._due_place
            )
            self._filters = ConsumerFilters(store) if enable_consume_queue_ext and not read_only else None
            writer = Writer(store, self.name, self._version, self._admit_write, schedule, self._filters)
            self._writer = writer
            self._reader = Reader(store, self.name, self._version, self._admit_read)
            self._arrow = ArrowReader(store, self.name)
            self._finder = Finder(store, self._reader, self._current)
            self._groups = groups = Groups(
                store,
                self.name,
                self._reader,
                self._watch,
                self.readable,
                self._exists,
            )
            # Straight to the store: a layer here would cost a tenth of a send.
            self.append = writer.append
            self.append_batch = writer.append_batch
            self.appender = writer.appender
            self.pull = self._reader.pull
            self.puller = self._filters.pullers(self._reader) if self._filters else self._reader.puller
            self.join = groups.join
            self.group_members = groups.members
            self.group_topics = groups.topics
            self.group_offsets = groups.offsets
            self.group_states = groups.states
            self.reset_offsets = groups.reset
            self.committed = groups.committed
            self.commit = groups.commit
            if not read_only:
                others = [(OFFSETS_INTERVAL, groups.save)]
                self._duties = Duties(
                    store, flush_interval, self._retention_ms, disk_ratio_max, schedule, others
                )
        except BaseException:
            store.close()
            raise

    append: Callable[..., SendResult]
    append_batch: Callable[..., SendResult]
    appender: Callable[[MessageQueue], Appender]
    pull: Callable[..., PullResult]
    puller: Callable[..., Puller]
    join: Callable[..., Membership]
    group_members: Callable[[str], list[Member]]
    group_topics: Callable[[str], list[str]]
    group_offsets: Callable[[str, str], dict[MessageQueue, int]]
    group_states: Callable[[str, str], list[QueueState]]
    reset_offsets: Callable[[str, Mapping[MessageQueue, int]], None]
    committed: Callable[[str, MessageQueue], int | None]
    commit: Callable[[str, MessageQueue, int], None]

    def create_topic(
        self,
        name: str,
        queue_count: int = 4,
        *,
        read_queue_count: int | None = None,
        write_queue_count: int | None = None,
        perm: str = "rw",
        ordered: bool = False,
    ) -> Topic:
        """Make a topic, or change one that is there. The same values again change nothing.

        queue_count queues to read and to write, unless one of the two counts is given on its own; perm is
        "r", "w", "rw" or "". Raises TopicInvalid, NotPermitted for RocketMQ's own topics, ValueError.
        """
        self._writable()
        check_topic(name)
        if is_system_topic(name):
            raise NotPermitted(f"{name} is one of RocketMQ's own topics: choose another name")
        read = queue_count if read_queue_count is None else read_queue_count
        write = queue_count if write_queue_count is None else write_queue_count
        for option, value in (
            ("queue_count", queue_count),
            ("read_queue_count", read),
            ("write_queue_count", write),
        ):
            check_count(option, value, QUEUE_COUNT_MAX)
        if not isinstance(perm, str) or set(perm) - {"r", "w"} or len(set(perm)) != len(perm):
            raise ValueError(f"perm is {perm!r}: give 'r', 'w', 'rw' or ''")
        bits = (PERM_READ if "r" in perm else 0) | (PERM_WRITE if "w" in perm else 0)
        self._put(TopicSettings(name, read, write, bits, bool(ordered)))
        return Topic(self, name)

    def _put(self, settings: TopicSettings) -> None:
        with self._topics.changing():
            topics = self._topics.load() or dict(self._settings)
            known = topics.get(settings.name)
            if known == settings:
                return
            others = known.others if known else {BEGIN_MEMBER: self._store.end()}
            topics[settings.name] = TopicSettings(
                settings.name,
                settings.read_queue_count,
                settings.write_queue_count,
                settings.perm,
                settings.ordered,
                others,
            )
            self._save(topics)

    def _save(self, topics: dict[str, TopicSettings]) -> None:
        topics.setdefault(TEMPLATE_TOPIC, TEMPLATE)
        self._topics.save(topics)
        self._store.topics_changed()

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its queues; its messages leave the log with retention. Raises TopicNotFound,
        NotPermitted."""
        self._writable()
        check_topic(name)
        if is_system_topic(name):
            raise NotPermitted(f"{name} is one of RocketMQ's own topics and stays")
        with self._topics.changing():
            topics = self._topics.load() or dict(self._settings)
            if name not in topics:
                raise TopicNotFound(name)
            del topics[name]
            self._save(topics)
            self._store.delete_queues(name)
            # Again: whoever looked between the two may have found the queues of the deleted topic.
            self._store.topics_changed()
            self._groups.forget_topic(name)

    def topics(self) -> list[str]:
        """Names of all topics but RocketMQ's own, sorted."""
        return sorted(name for name in self._current() if not is_system_topic(name))

    def topic(self, name: str) -> Topic:
        """Raises TopicNotFound, TopicInvalid."""
        check_topic(name)
        if name not in self._current():
            raise TopicNotFound(name)
        return Topic(self, name)

    def settings(self, name: str) -> TopicSettings:
        """Queue counts, permissions and order of a topic. Raises TopicNotFound."""
        try:
            return self._current()[name]
        except KeyError:
            raise TopicNotFound(name) from None

    def _current(self) -> dict[str, TopicSettings]:
        self._store.live()
        version = self._version[0]
        if version != self._seen:
            self._settings = self._topics.load()
            self._seen = version
        return self._settings

    def _exists(self, topic: str) -> bool:
        return topic in self._current() or is_system_topic(topic)

    def _adopt_queues(self) -> None:
        """Topics that have queues but no settings, as a broker's directory or a lost topics.json leaves
        them."""
        found: dict[str, int] = {}
        for topic, queue_id in self._store.queues():
            found[topic] = max(queue_id, found.get(topic, 0))
        unknown = {topic: last for topic, last in found.items() if topic not in self._current()}
        if not unknown:
            return
        topics = dict(self._settings)
        for topic, last in unknown.items():
            topics[topic] = grown(TopicSettings(topic, 0, 0), last)
        if self._store.read_only:
            self._settings = topics
            return
        with self._topics.changing():
            self._save({**topics, **self._topics.load()})

    def route_version(self) -> int:
        return int(self._version[0])

    def publishable(self, topic: str) -> Sequence[MessageQueue]:
        """See Broker.publishable."""
        count = self._sendable(topic).write_queue_count
        return tuple(MessageQueue(topic, self.name, queue_id) for queue_id in range(count))

    def _sendable(self, topic: str) -> TopicSettings:
        """The settings of a topic that may be sent to, which makes it if need be."""
        self._writable()
        settings = self._current().get(topic) or self._auto_created(topic)
        if topic in UNSENDABLE_TOPICS:
            raise NotPermitted(f"{topic} is one of RocketMQ's own topics: nobody sends to it")
        if not settings.perm & PERM_WRITE:
            raise NotPermitted(f"topic {topic} may not be written: its perm is {_letters(settings.perm)!r}")
        return settings

    def _auto_created(self, topic: str) -> TopicSettings:
        check_topic(topic)
        retry = topic.startswith((RETRY_PREFIX, DEAD_PREFIX))
        if topic in UNSENDABLE_TOPICS:
            raise NotPermitted(f"{topic} is one of RocketMQ's own topics: nobody sends to it")
        if not self._auto_create and not retry:
            raise TopicNotFound(topic)
        template = self._current().get(TEMPLATE_TOPIC, TEMPLATE)
        if not template.perm & PERM_INHERIT and not retry:
            raise TopicNotFound(topic)
        count = 1 if retry else min(self._default_queue_count, template.write_queue_count)
        self._put(TopicSettings(topic, count, count, template.perm & ~PERM_INHERIT))
        return self.settings(topic)

    def _have_topic(self, name: str, queue_count: int) -> None:
        if name not in self._current():
            self._put(TopicSettings(name, queue_count, queue_count, PERM_READ | PERM_WRITE))

    def _due_place(self, topic: str, queue_id: int) -> tuple[str, int] | None:
        """Where a delayed message is delivered to: a queue that is still there. See Delivery."""
        try:
            settings = self._current().get(topic) or self._auto_created(topic)
        except TopicNotFound:
            return None
        if queue_id >= settings.read_queue_count > 0:
            queue_id %= settings.read_queue_count
        return topic, queue_id

    def readable(self, topic: str) -> Sequence[MessageQueue]:
        """See Broker.readable."""
        settings = self.settings(topic)
        if not settings.perm & PERM_READ:
            raise NotPermitted(f"topic {topic} may not be read: its perm is {_letters(settings.perm)!r}")
        return tuple(
            MessageQueue(topic, self.name, queue_id) for queue_id in range(settings.read_queue_count)
        )

    def _admit_write(self, topic: str, queue_id: int) -> None:
        settings = self._sendable(topic)
        count = max(settings.write_queue_count, settings.read_queue_count)
        if not isinstance(queue_id, int) or not 0 <= queue_id < count:
            raise ValueError(f"topic {topic} has queues 0 to {count - 1}, none of id {queue_id!r}")

    def _admit_read(self, queue: MessageQueue) -> None:
        topic, broker_name, queue_id = queue
        if broker_name != self.name:
            raise ValueError(f"{queue} is a queue of another broker: this one's name is {self.name!r}")
        settings = self.settings(topic)
        if not settings.perm & PERM_READ:
            raise NotPermitted(f"topic {topic} may not be read: its perm is {_letters(settings.perm)!r}")
        count = settings.read_queue_count
        if not isinstance(queue_id, int) or not 0 <= queue_id < count:
            raise ValueError(f"topic {topic} has queues 0 to {count - 1} to read, none of id {queue_id!r}")

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

    def groups(self) -> list[str]:
        """Names of all consumer groups that have members or offsets, sorted."""
        return self._groups.names()

    def group(self, name: str) -> Group:
        """A consumer group, which need not have been used before. Raises GroupInvalid."""
        check_group(name)
        return Group(self, name)

    def send_back(
        self, message: MessageExt, group: str, *, delay_level: int = 0, max_reconsume_times: int = 16
    ) -> None:
        """See Broker.send_back."""
        self._writable()
        send_back(self._schedule, self._retry_queue_count, message, group, delay_level, max_reconsume_times)

    def _retry_queue_count(self, topic: str) -> int:
        return self._sendable(topic).write_queue_count

    def flush(self) -> None:
        """Have everything on disk that was sent before this call. Raises StorePoisoned."""
        self._writable()
        self._store.flush()

    def expire(self, *, retention_hours: float | None = None) -> int:
        """Delete commit log files whose last change is longer ago than retention_hours (the broker's own if
        None).

        Returns how many files went; the newest stays in any case.
        """
        self._writable()
        if retention_hours is not None:
            check_number("retention_hours", retention_hours, 0, 24 * 365 * 100)
        kept_ms = self._retention_ms if retention_hours is None else int(retention_hours * 3_600_000)
        return retention.expire(
            self._store, time.time_ns() // 1_000_000, kept_ms, disk_ratio_max=self._disk_ratio_max
        )

    def _writable(self) -> None:
        self._store.live()
        if self._store.read_only:
            raise NotPermitted(f"{self.path} was opened with read_only=True")

    def close(self) -> None:
        """Close; sends and reads under way in other threads end with BrokerClosed. Twice is fine."""
        self._groups.close()
        self._watch.close()
        if self._duties is not None:
            self._duties.close()
        try:
            self._store.close()
        finally:
            self._writer.close()
            self._reader.close()
            self._schedule.close()
            self._version = CLOSED  # The word would keep the control file mapped.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LocalBroker({os.fspath(self.path)!r})"


def _letters(perm: int) -> str:
    return ("r" if perm & PERM_READ else "") + ("w" if perm & PERM_WRITE else "")
