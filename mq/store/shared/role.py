"""Whether a store is a master of its own, or a replica: a copy of another one's log.

On disk: mq/follower, an empty file; the process that follows a master has its byte 0 locked. In shared
memory: `following`, which every append looks at (see native/control/replication.h).

    opened by                 nobody else inside             others inside
    a follower                is a replica from now on       StoreLocked, unless it is a replica already
    a program that writes     is a master from now on,       stays what it is
                              unless its follower lives
    a reader                  stays what it is               stays what it is

A store that changes from one to the other begins a new epoch: what shared memory and the files under mq/ know
of groups, delays, timers and transactions is of the life before, and is made anew out of the log and config/.
So a replica that becomes a master looks for each delayed message that is due, whether its master delivered it
already, as after a crash of the machine.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from mq.errors import StoreLocked
from mq.store.directory.file_locks import byte_owner, lock_byte, open_own_file
from mq.store.native import lib
from mq.store.shared.control import Control

__all__ = ["Role"]

FOLLOWING_BYTE = 0

log = logging.getLogger("mq.store")


class Role:
    """What one open store is. follows: this is the process that follows a master."""

    def __init__(self, root: Path, *, follows: bool) -> None:
        self.follows = follows
        self._root = root
        self._fd = -1

    def settle(self, control: Control, *, alone: bool, read_only: bool) -> bool:
        """Decide it when the store is opened, under the open lock. Whether it changed, and a new
        epoch begins.

        Raises StoreLocked where another process follows, or the store is a master that others have open.
        """
        was_replica = self.is_replica(control)
        if self.follows:
            self._lock()
            if not alone and not was_replica:
                pid = control.get(lib.MQ_DUTIES_PID)
                raise self._locked("is open as a master, and cannot be a copy of another one", pid)
            changes = not was_replica
        else:
            changes = was_replica and alone and not read_only
        if changes:
            control.set(lib.MQ_EPOCH, int.from_bytes(os.urandom(8), "little") >> 2)
            lib.mq_control_set_following(control.handle, int(self.follows))
            what = "follows a master" if self.follows else "follows no master any more, and may be sent to"
            log.info("%s %s from now on", self._root, what)
        return changes

    @staticmethod
    def is_replica(control: Control | None) -> bool:
        """Whether a master's log is followed here, by whichever process."""
        return control is not None and bool(lib.mq_control_following(control.handle))

    def _lock(self) -> None:
        self._fd = open_own_file(self._root / "mq" / "follower")
        if not lock_byte(self._fd, FOLLOWING_BYTE):
            owner = byte_owner(self._fd, FOLLOWING_BYTE) or 0
            raise self._locked("is a replica that another process keeps", owner)

    def _locked(self, what: str, pid: int) -> StoreLocked:
        known = pid if pid > 0 else None
        where = f" (process {known})" if known else ""
        return StoreLocked(
            f"{self._root} {what}{where}: close it there, or name another directory",
            path=str(self._root),
            pid=known,
        )

    def close(self) -> None:
        """Let go of the lock; in a forked child of the child's copy."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
