"""The log as bytes, for followers to copy: what readers may see of it, and up to where followers have it.

One process of a store accepts followers at a time: it has byte 1 of mq/follower locked (see shared/role.py).
What they have is told to senders of all processes, for a few seconds at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mq.errors import StoreLocked
from mq.store.directory.file_locks import byte_owner, lock_byte, open_own_file
from mq.store.log.replication import REPLICAS_MAX
from mq.store.native import check, ffi, lib
from mq.store.store import Store

__all__ = ["LogFile", "LogSource", "log_range"]

ACCEPTING_BYTE = 1
LEASE_NS = 5_000_000_000


def log_range(store: Store) -> tuple[int, int]:
    """Where the log of a store begins and ends."""
    return store.word(lib.MQ_LOG_MIN), store.end()


class LogFile(NamedTuple):
    """An open file of the log, and the log offsets between which it is."""

    fd: int
    begin: int
    end: int


class LogSource:
    """The log of one open store. Raises StoreLocked where another process accepts followers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fd = open_own_file(store.root / "mq" / "follower")
        store.close_in_child(self._fd)
        if not lock_byte(self._fd, ACCEPTING_BYTE):
            pid = byte_owner(self._fd, ACCEPTING_BYTE) or 0
            self.close()
            raise StoreLocked(
                f"{store.root}: followers of this store are accepted by another server already"
                f"{f' (process {pid})' if pid > 0 else ''}: close that one, or leave the HA port out here",
                path=str(store.root),
                pid=pid if pid > 0 else None,
            )

    @property
    def root(self) -> Path:
        return self._store.root

    @property
    def begin(self) -> int:
        """Where the oldest file begins."""
        return self._store.word(lib.MQ_LOG_MIN)

    @property
    def end(self) -> int:
        """Where the log ends, whether or not readers may see all of it yet."""
        return self._store.end()

    @property
    def visible_end(self) -> int:
        """Where it ends for readers: with flush="sync" no more than what is on disk."""
        return self._store.visible_end()

    @property
    def is_live(self) -> bool:
        """Whether the store still is open."""
        return self._fd >= 0 and self._store.control is not None and self._store.log is not None

    def wait(self, seen: int, seconds: float) -> int:
        """Sleep until readers may see more than `seen`, or for so long; where it ends then."""
        return int(check(lib.mq_log_wait(self._store.live(), seen, int(seconds * 1e9)), str(self.root)))

    def open_file(self, at: int) -> LogFile | None:
        """The file that has this log offset, to read; None where it is gone. The caller closes it."""
        size = self._store.file_sizes.commitlog_file_size
        begin = at // size * size
        try:
            fd = os.open(self.root / "commitlog" / f"{begin:020}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        return LogFile(fd, begin, begin + size)

    def tell(self, acked: Iterable[int]) -> None:
        """Say for the next seconds up to which log offset each follower has everything."""
        control = self._store.control
        if control is None or not self.is_live:  # A closed store keeps it.
            return
        offsets = sorted(acked, reverse=True)[:REPLICAS_MAX]
        words = ffi.new("int64_t[]", offsets + [-1] * (REPLICAS_MAX - len(offsets)))
        lib.mq_replication_tell(control.handle, words, LEASE_NS)

    def close(self) -> None:
        """Let others accept followers. Twice is fine."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._store.closed_here(fd)
