"""The directory of a replica. Its store is open while the replica runs, except while its tail is truncated.

The process does a leader's work except appends: it flushes, indexes, writes checkpoints, and deletes the
files that the master has deleted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mq.broker.leader import Duties
from mq.remoting.replica.tables import Tables
from mq.store.log.commitlog import segment_files
from mq.store.log.follow import FollowedLog
from mq.store.recovery.tail_cut import cut_tail
from mq.store.retention import Due, delete
from mq.store.store import Store

__all__ = ["ReplicaDirectory"]

FLUSH_INTERVAL = 0.5

log = logging.getLogger("mq.remoting")


class ReplicaDirectory:
    """Opens the store. others: more periodic work for the same thread, with intervals in seconds.

    Raises StoreLocked if another process replicates into the directory, or if it is an open master;
    ConfigMismatch, StoreCorrupted.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync: bool,
        log_file_size: int | None,
        others: Sequence[tuple[float, Callable[[], object]]] = (),
    ) -> None:
        self._sync, self._log_file_size, self._others = sync, log_file_size, others
        self._given = path
        self._is_open = False
        self.master_begin = 0  # files before this log offset are deleted here too
        self._open()

    def _open(self) -> None:
        self.store = Store(self._given, follow=True, sync=self._sync, commitlog_file_size=self._log_file_size)
        self.path: Path = self.store.root
        try:
            self.log = FollowedLog(self.store)
            self.tables = Tables(self.store, self.log)
            self._duties = Duties(self.store, lambda: FLUSH_INTERVAL, self._expire, (), self._others)
        except BaseException:
            self.store.close()
            raise
        self._is_open = True

    def be_open(self) -> None:
        """Open the store again, if that has failed after a tail was truncated."""
        if not self._is_open:
            self._open()

    def _expire(self) -> None:
        """Delete the log files that the master has deleted, except for the newest one."""
        control, size = self.store.control, self.log.file_size
        begin = min(self.master_begin, self.log.end) // size * size
        old = [file for file in segment_files(self.path / "commitlog")[:-1] if int(file.name) < begin]
        if not old or control is None:
            return
        log.info("%s: %d files that the master has deleted are deleted here", self.path, len(old))
        delete(self.store, Due(tuple(old), int(old[-1].name) + size), control.duties_term)

    def cut(self, begin: int, store_time_ms: int) -> Path:
        """Truncate the log at `begin`; returns the file that the tail was saved to. Raises StoreLocked if
        another process has the directory open for writing."""
        end, file_size = self.log.end, self.log.file_size
        self.close()
        try:
            return cut_tail(self.path, begin, end, file_size, store_time_ms)
        finally:
            self._open()

    def close(self) -> None:
        self._is_open = False
        self._duties.close()
        self.store.close()
