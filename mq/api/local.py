"""What only the broker of a directory can do, and how it is asked for.

Producers and consumers need none of it. What does need it, such as Spark and some verbs of the command line,
asks for it by name, and gets one error where there is no directory:

    directory(broker, "deleting old messages").expire(retention_hours=24)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from mq.api.bulk import Bulk
from mq.api.handled_keys import HandledKeys
from mq.api.queues import OnceAppender
from mq.api.recall import RecallHandle
from mq.api.results import MessageQueue, SendResult
from mq.api.retention import Retention
from mq.errors import NotSupported
from mq.filter.selection import Selection
from mq.message import Message

__all__ = ["Delayed", "Directory", "Redriven", "directory", "no_directory"]


class Delayed(NamedTuple):
    """A message that waits: which, where it goes, and when."""

    due_ms: int
    queue: MessageQueue
    msg_id: str
    delay_level: int
    """0 for one that is due at a time of its own."""
    out_ms: int
    """The slot of such a one, else 0."""

    @property
    def recall_handle(self) -> str | None:
        """For broker.recall; None of a message with a delay level."""
        if not self.out_ms:
            return None
        return str(RecallHandle(self.queue.topic, self.queue.broker_name, self.out_ms, self.msg_id))


class Redriven(NamedTuple):
    """What became of a group's dead letters."""

    sent: int  # to be consumed again; with dry_run, that would be
    left: int  # not selected
    known: int  # sent back before
    stuck: int  # whose topic is gone, or may not be written; the log says which


@runtime_checkable
class Directory(Protocol):
    """What the broker of a directory can do beside what every broker does."""

    @property
    def path(self) -> Path: ...

    @property
    def bulk(self) -> Bulk:
        """Many messages at once, as columns."""
        ...

    @property
    def retention(self) -> Retention:
        """How long messages are kept."""
        ...

    @property
    def handled_keys(self) -> HandledKeys:
        """The keys that groups have handled: see mq.Once."""
        ...

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
        """Store a message as an appender does, unless one of this topic was stored under the same key in the
        last window_ms: then the result is that one's. Without a key the unique id counts. Another sender that
        is just storing one is waited for, up to `wait` seconds (RequestTimeout)."""
        ...

    def once_appender(self, queue: MessageQueue, window_ms: int) -> OnceAppender:
        """What stores messages under a key as append_once does, as often as wanted. Raises what forbids to
        write there."""
        ...

    def read_arrow(self, queue: MessageQueue, offset: int, count_max: int, byte_max: int) -> Any:
        """Messages from offset on as one pyarrow.RecordBatch, in the columns of the Spark source."""
        ...

    def delayed(self) -> Iterator[Delayed]:
        """All messages that wait to be delivered: those with a delay level, and those with a time of their
        own."""
        ...

    def redrive(
        self,
        group: str,
        *,
        selection: Selection | None = None,
        count_max: int | None = None,
        dry_run: bool = False,
        all_groups: bool = False,
    ) -> Redriven:
        """Have a group, or all groups, consume the group's dead letters again, oldest first; each one is sent
        once. selection leaves out some, count_max is how many to send at the most. Raises GroupInvalid;
        NotPermitted where another process is at it."""
        ...

    def expire(self, *, retention_hours: float | None = None) -> int:
        """Delete commit log files whose last change is longer ago than retention_hours (the store's if None);
        how many went. The newest stays in any case."""
        ...

    def queue_offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Queue id to the offset of the oldest message and of the next to come, of each queue that ever had a
        message, whether it may be read or not. Raises TopicNotFound."""
        ...

    def kept_settings(self) -> dict[str, Any]:
        """The options that the store keeps, by now."""
        ...

    def change_settings(self, **changes: Any) -> None:
        """Change options that the store keeps, for all processes. Raises TypeError, ValueError,
        NotPermitted."""
        ...


def directory(broker: object, what: str) -> Directory:
    """The same broker, which is to do what only that of a directory can. Raises NotSupported, which says so
    of `what`."""
    if isinstance(broker, Directory):
        return broker
    raise no_directory(what, repr(broker))


def no_directory(what: str, where: str) -> NotSupported:
    """The error for what was asked of something else than a directory."""
    return NotSupported(
        f"{what} needs the broker of a directory on this machine, mq.open('path'): {where} is none"
    )
