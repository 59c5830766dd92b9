"""What copies of a store are made of: its log as bytes, and what a copy has to know beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from mq.api.local import no_directory
from mq.broker.delay.schedule import Schedule
from mq.broker.topics.config import TopicSettings
from mq.broker.topics.registry import Catalog
from mq.store.directory.delay_levels import LEVEL_COUNT_MAX
from mq.store.directory.file_sizes import FileSizes
from mq.store.log.source import LogSource, log_range
from mq.store.store import Store
from mq.store.timer.checkpoint import TimerCheck, read_timer_check

__all__ = ["Replicated", "Replication", "replicated"]


class Replication:
    """See LocalBroker.replication."""

    def __init__(self, store: Store, catalog: Catalog, schedule: Schedule) -> None:
        self._store = store
        self._catalog = catalog
        self._schedule = schedule

    def source(self) -> LogSource:
        """The log, to be read and acknowledged. Raises StoreLocked where another process has it for its
        followers; NotPermitted for a directory that was opened to be read alone."""
        self._catalog.check_writable()
        return LogSource(self._store)

    @property
    def log_range(self) -> tuple[int, int]:
        """Where the log begins and ends, as log offsets."""
        return log_range(self._store)

    @property
    def file_sizes(self) -> FileSizes:
        """The sizes of the store's files."""
        return self._store.file_sizes

    def topics(self) -> Mapping[str, TopicSettings]:
        """The settings of all topics by name, RocketMQ's own ones included."""
        return self._catalog.current()

    def delay_offsets(self) -> dict[int, int]:
        """How far each delay level is delivered, of those of which something is."""
        progress = self._schedule.progress()
        if not progress.is_ours():
            return {}
        offsets = {level: progress.delivered(level) for level in range(1, LEVEL_COUNT_MAX + 1)}
        return {level: offset for level, offset in offsets.items() if offset}

    def timer_check(self) -> TimerCheck:
        """How far timer messages are delivered, on disk: at most a second old. What a damaged file says is
        nothing."""
        return read_timer_check(self._store.root) or TimerCheck()


@runtime_checkable
class Replicated(Protocol):
    """A broker whose log can be copied: the broker of a directory."""

    @property
    def path(self) -> Path: ...

    @property
    def replication(self) -> Replication: ...


def replicated(broker: object, what: str, where: str | None = None) -> Replicated:
    """The same broker, as one whose log can be copied. Raises NotSupported, which says that `what` needs a
    directory, and that `where` (the broker) is none."""
    if isinstance(broker, Replicated):
        return broker
    raise no_directory(what, where or repr(broker))
