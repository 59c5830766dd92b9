"""LocalBroker: RocketMQ's broker over a directory, inside the application's own process.

Any number of processes open the same directory, each with a broker of its own; what they share is the
store. A broker may be used from any thread, and is of no use in a forked child, which opens its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mq.api.broker import Broker
from mq.api.consumer_groups import Group
from mq.api.group import (
    Assigned,
    BroadcastOffsets,
    Claim,
    Member,
    Membership,
    QueueState,
    Subscription,
    Waiter,
)
from mq.api.handled_keys import Handled
from mq.api.queues import Appender, Puller
from mq.api.results import MessageQueue, SendResult
from mq.api.topic import Topic
from mq.broker.delay.pending import Delayed, delayed
from mq.broker.delay.recall import Recall
from mq.broker.groups.retry import send_back
from mq.broker.options import Options, known_options
from mq.broker.parts import NAME, Parts
from mq.broker.topics.config import TopicSettings
from mq.broker.transactions.transactions import LocalTransactions
from mq.broker.waiter import LocalWaiter
from mq.message import Message, MessageExt
from mq.names import check_group, check_topic
from mq.uninterrupted import handed_over

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LocalBroker"]


class LocalBroker(Parts, Broker):
    """The broker of a directory. Made by mq.open, which documents the options.

    Beside what every Broker does, it has what only a directory can do: expire, delayed, settings, the options
    that the store keeps, `retention` and `bulk`.
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

    # Topics.

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

    # Queues. The fast paths are in the appenders and pullers.

    def route_version(self) -> int:
        return self._catalog.route_version()

    def publishable(self, topic: str) -> Sequence[MessageQueue]:
        return self._catalog.publishable(topic)

    def readable(self, topic: str) -> Sequence[MessageQueue]:
        return self._catalog.readable(topic)

    def appender(self, queue: MessageQueue) -> Appender:
        return self._writer.appender(queue)

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

    def puller(self, queue: MessageQueue, claim: Claim | None = None) -> Puller:
        return self._puller(queue, claim)

    def read_arrow(self, queue: MessageQueue, offset: int, count_max: int, byte_max: int) -> Any:
        """Messages from offset on as one pyarrow.RecordBatch. Needs pyarrow: pip install 'mq[arrow]'."""
        return self._arrow.read(queue, self._reader.number(queue), offset, count_max, byte_max)

    def min_offset(self, queue: MessageQueue) -> int:
        return self._reader.min_offset(queue)

    def max_offset(self, queue: MessageQueue) -> int:
        return self._reader.max_offset(queue)

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

    # Consumer groups.

    def groups(self) -> list[str]:
        """Names of all consumer groups but RocketMQ's own that have members or offsets, sorted."""
        return sorted({*self._groups.names(), *self._broadcast.names()})

    def group(self, name: str) -> Group:
        """A consumer group, which need not have been used before. Raises GroupInvalid."""
        check_group(name)
        return Group(self, name)

    def send_back(
        self,
        message: MessageExt,
        group: str,
        *,
        delay_level: int = 0,
        max_reconsume_times: int = 16,
        claim: Claim | None = None,
    ) -> bool:
        self._catalog.check_writable()
        return send_back(
            self._schedule, self._catalog, message, group, delay_level, max_reconsume_times, claim
        )

    def join(
        self,
        group: str,
        *,
        client_id: str,
        model: str,
        consume_type: str,
        ordered: bool,
        subscriptions: Sequence[Subscription],
        consume_from: str | int = "first",
    ) -> Membership:
        return self._groups.join(
            group,
            client_id=client_id,
            model=model,
            consume_type=consume_type,
            ordered=ordered,
            subscriptions=subscriptions,
            consume_from=consume_from,
        )

    def assigned(self, group: str) -> Assigned:
        return self._groups.assigned(group)

    def broadcast_offsets(
        self, group: str, client_id: str | None, directory: Path | None
    ) -> BroadcastOffsets:
        return self._broadcast.offsets(group, client_id, directory)

    def group_members(self, group: str) -> list[Member]:
        return self._groups.members(group)

    def group_topics(self, group: str) -> list[str]:
        return self._groups.topics(group)

    def group_offsets(self, group: str, topic: str) -> dict[MessageQueue, int]:
        return self._groups.offsets(group, topic)

    def group_states(self, group: str, topic: str) -> list[QueueState]:
        return self._groups.states(group, topic)

    def group_retrying(self, group: str) -> dict[str, int]:
        return self._retries.of(group)

    def reset_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        self._broadcast.reset(group, offsets)

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        return self._groups.committed(group, queue)

    def commit(self, group: str, queue: MessageQueue, offset: int) -> bool:
        return self._groups.commit(group, queue, offset)

    def handled(self, group: str, size: int | None = None) -> Handled:
        return self._once.handled(group, size)

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
        return self.retention.expire(retention_hours)

    def kept_settings(self) -> dict[str, Any]:
        """The options that the store keeps, by now."""
        return self._settings.kept()

    def change_settings(self, **changes: Any) -> None:
        """Change options that the store keeps, for all processes: retention_hours, flush_interval, and the
        others that docs/files.md names.

        Retention and transactions go by them within 10 s, all else as soon as a process opens the store.
        Raises TypeError, ValueError, NotPermitted.
        """
        self._settings.change_kept(**changes)

    def __enter__(self) -> Self:
        return self

    @handed_over
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __repr__(self) -> str:
        return f"LocalBroker({os.fspath(self.path)!r})"
