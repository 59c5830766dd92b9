"""LocalBroker: RocketMQ's broker over a directory, inside the application's own process.

Any number of processes open the same directory, each with a broker of its own; what they share is the
store. A broker may be used from any thread, and is of no use in a forked child, which opens its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from mq.api.broker import DirectoryBroker
from mq.api.local import Delayed, Redriven
from mq.api.queues import Appender, OnceAppender, Puller
from mq.api.results import MessageQueue, SendResult
from mq.api.topic import Topic, TopicChange
from mq.api.waiter import Waiter
from mq.broker.bulk import LocalBulk
from mq.broker.delay.pending import delayed
from mq.broker.delay.recall import Recall
from mq.broker.groups.consumer_groups import LocalConsumerGroups
from mq.broker.groups.redrive import Redrive
from mq.broker.once.handled_key_files import OnceFiles
from mq.broker.options import Options, known_options, options_signature
from mq.broker.parts import NAME, Parts
from mq.broker.replication import Replication
from mq.broker.retention import LocalRetention
from mq.broker.topics.config import TopicSettings
from mq.broker.transactions.transactions import LocalTransactions
from mq.broker.waiter import LocalWaiter
from mq.errors import MQError
from mq.filter.selection import Selection
from mq.message import Message, MessageExt
from mq.names import check_topic
from mq.uninterrupted import handed_over, uninterrupted

__all__ = ["LocalBroker"]


class LocalBroker(Parts, DirectoryBroker):
    """The broker of a directory. Made by mq.open, which documents the options.

    Beside what every Broker does, it has what only a directory can do: see mq.api.local.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(path, Options(**known_options(options, Options, "mq.open for a directory")))

    @property
    def name(self) -> str:
        return NAME

    @property
    def message_size_max(self) -> int:
        return self._options.message_size_max

    @property
    def may_wait(self) -> bool:
        return self._options.flush == "sync"

    @property
    def transactions(self) -> LocalTransactions:
        return self._transactions

    @property
    def consumer_groups(self) -> LocalConsumerGroups:
        return self._consumer_groups

    @property
    def path(self) -> Path:
        return self._path

    @property
    def bulk(self) -> LocalBulk:
        """Many messages at once, as columns."""
        return self._bulk

    @property
    def retention(self) -> LocalRetention:
        """How long messages are kept."""
        return self._retention

    @property
    def handled_keys(self) -> OnceFiles:
        """The keys that groups have handled: see mq.Once."""
        return self._once

    @property
    def replication(self) -> Replication:
        """What copies of the store are made of: see mq.remoting.serve with ha_port."""
        return Replication(self._store, self._catalog, self._schedule)

    # Topics.

    def change_topic(self, name: str, change: TopicChange) -> None:
        self._catalog.check_master()
        self._catalog.change(name, change, self._groups.unread)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its queues; its messages leave the log with retention. Raises TopicNotFound,
        NotPermitted."""
        self._catalog.check_master()
        with suppress(MQError, OSError):  # A full disk, say, of which the deletion may free some.
            # So a group that has just begun the topic awaits the next one of its name, too.
            uninterrupted(self._groups.save, of=self._store)
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

    # Queues. The fast paths are in the appenders and pullers.

    def route_version(self) -> int:
        return self._catalog.route_version()

    def publishable(self, topic: str) -> Sequence[MessageQueue]:
        return self._catalog.publishable(topic)

    def readable(self, topic: str) -> Sequence[MessageQueue]:
        return self._catalog.readable(topic)

    def appender(self, queue: MessageQueue) -> Appender:
        return self._writer.appender(queue)

    def oneway_appender(self, queue: MessageQueue) -> Appender:
        return self._writer.appender(queue, waits=False)

    def append_batch(self, queue: MessageQueue, messages: Sequence[Message]) -> SendResult:
        return self._writer.append_batch(queue, messages)

    def append_once(
        self,
        queue: MessageQueue,
        message: Message,
        body: bytes,
        sys_flag: int,
        key: str | None,
        window_ms: int,
        unique_id: str | None = None,
        wait: float = 3.0,
    ) -> SendResult:
        return self._dedup.append_once(queue, message, body, sys_flag, key, window_ms, unique_id, wait)

    def once_appender(self, queue: MessageQueue, window_ms: int) -> OnceAppender:
        return self._dedup.appender(queue, window_ms)

    def puller(self, queue: MessageQueue) -> Puller:
        return self._reader.puller(queue)

    def read_arrow(self, queue: MessageQueue, offset: int, count_max: int, byte_max: int) -> Any:
        """Messages from offset on as one pyarrow.RecordBatch. Needs pyarrow: pip install 'mq[arrow]'."""
        return self._arrow.read(queue, self._reader.number(queue), offset, count_max, byte_max)

    def min_offset(self, queue: MessageQueue) -> int:
        return self._reader.min_offset(queue)

    def max_offset(self, queue: MessageQueue) -> int:
        return self._reader.max_offset(queue)

    def queue_offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """See Directory.queue_offsets."""
        self._catalog.settings(topic)
        return self._groups.numbers.extents(topic)

    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        return self._reader.offset_at(queue, time_ms)

    def waiter(self) -> Waiter:
        return LocalWaiter(self._store, self._groups.numbers)

    # Messages.

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
        self._catalog.check_writable()
        recall = Recall(self._store, self.name, self._timer, self._finder, self._writer)
        return recall.recall(handle)

    def delayed(self) -> Iterator[Delayed]:
        """All messages that wait to be delivered: those with a delay level, and those with a time of their
        own."""
        return delayed(self._store, self.name, self._catalog.version, self._schedule, self._timer)

    # The directory.

    def flush(self) -> None:
        """Have everything on disk that was sent before this call. Raises StorePoisoned."""
        self._catalog.check_writable()
        self._store.flush()

    def expire(self, *, retention_hours: float | None = None) -> int:
        """Delete commit log files whose last change is longer ago than retention_hours (the store's if None).

        Returns how many files went; the newest stays in any case. See Retention.expire.
        """
        self._catalog.check_writable()
        return self._retention.expire(retention_hours)

    def redrive(
        self,
        group: str,
        *,
        selection: Selection | None = None,
        count_max: int | None = None,
        dry_run: bool = False,
        all_groups: bool = False,
    ) -> Redriven:
        """Have a group consume its dead letters again, oldest first; each one is sent once.

        They go to the group's retry topic, so no other group gets them. With all_groups they are sent to the
        topic that they came from, for every group to consume. selection leaves out some, which a later call
        may send; count_max is how many to send at the most. Raises GroupInvalid; ValueError for a negative
        count_max; NotPermitted where another process is at it.
        """
        if count_max is not None and count_max < 0:
            raise ValueError(f"count_max is {count_max}, must be 0 or more, or None for all")
        redrive = Redrive(
            self._path,
            group,
            self._catalog,
            self._groups,
            self._schedule,
            self._reader,
            self._finder,
            selection=selection,
            dry_run=dry_run,
            all_groups=all_groups,
        )
        return redrive.run(count_max)

    def kept_settings(self) -> dict[str, Any]:
        """The options that the store keeps, by now."""
        return self._settings.kept()

    def change_settings(self, **changes: Any) -> None:
        """Change options that the store keeps, for all processes: retention_hours, flush_interval, and the
        others that docs/guide.md names.

        Retention and transactions go by them within 10 s, all else as soon as a process opens the store.
        Raises TypeError, ValueError, NotPermitted.
        """
        self._settings.change_kept(**changes)

    @handed_over
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __repr__(self) -> str:
        return f"LocalBroker({os.fspath(self._path)!r})"


vars(LocalBroker.__init__)["__signature__"] = options_signature("path", Options, returns="None", bound=True)
