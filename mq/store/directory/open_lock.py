"""The order in which processes open and close a directory.

    mq/gate, byte 0   exclusive while opening or closing: one at a time
    mq/gate, byte 1   shared by all open brokers; its exclusive holder is alone
    lock, byte 0      RocketMQ's lock: shared by everyone inside, which keeps a broker out
    abort             exists while anyone is inside, and after a crash of all

The first one in recovers, the last one out closes cleanly. RocketMQ's own broker reads a directory
before it looks at `lock`: nothing here can keep it from that.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path
from time import monotonic

from mq.errors import StoreLocked
from mq.fastpath import Guard
from mq.store.directory.file_locks import byte_owner, lock_byte, open_own_file, unlock_byte
from mq.store.directory.owner import open_made
from mq.store.directory.root import sync_names
from mq.store.shared.lock_guards import byte_lock
from mq.store.shared.members import pid_namespace_here
from mq.store.shared.process_state import describe, process_state

__all__ = ["OpenLock"]

OPENING, INSIDE = 0, 1
OPEN_TIMEOUT, LOOK_AGAIN = 300.0, 2.0  # seconds
PID = struct.Struct("=qq")  # of the process that opens or closes, and its namespace: at the start of the file


class OpenLock:
    """The lock around opening and closing one store root, for one broker."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._fd = open_own_file(root / "mq" / "gate")
        own = os.fstat(self._fd)
        self._identity = own.st_dev, own.st_ino
        self._lock_fd = -1

    def opening(self) -> Guard:
        """For a with statement: the time of opening or closing, one process at a time. Raises StoreLocked, at
        once where the process that is at it is stopped."""
        deadline = monotonic() + OPEN_TIMEOUT
        while True:
            try:
                return byte_lock(self._fd, OPENING, LOOK_AGAIN, self._locked)
            except StoreLocked as error:
                # A recovery of the machine's crash may be under way, which takes its time.
                if monotonic() > deadline or (error.pid and process_state(error.pid).is_stopped):
                    raise

    def opened_by(self) -> None:
        """Tell others which process is at it. Within `opening`."""
        with suppress(OSError):  # A full disk keeps nobody out.
            os.pwrite(self._fd, PID.pack(os.getpid(), pid_namespace_here()), 0)

    def _locked(self) -> StoreLocked:
        data = os.pread(self._fd, PID.size, 0)
        pid, namespace = PID.unpack(data) if len(data) == PID.size else (0, 0)
        if namespace != pid_namespace_here():
            pid = 0
        return StoreLocked(
            f"{self.root}: this store is being opened or closed by {describe(pid)}",
            path=str(self.root),
            pid=pid or None,
        )

    def is_alone(self) -> bool:
        """Whether nobody else is inside; they stay out as long as the lock is held."""
        return lock_byte(self._fd, INSIDE)

    def enter(self) -> None:
        """Count as inside from now on."""
        lock_byte(self._fd, INSIDE, shared=True, timeout=None)

    def keep_brokers_out(self) -> int:
        """Hold RocketMQ's lock. Its file's mtime in ns: a broker that was here has changed it.

        Raises StoreLocked if a RocketMQ broker has the directory open.
        """
        path = self.root / "lock"
        self._lock_fd = open_own_file(path)
        if not lock_byte(self._lock_fd, 0, shared=True):
            pid = byte_owner(self._lock_fd, 0)
            self._close_lock()
            raise StoreLocked(
                f"{self.root} is open in a RocketMQ broker"
                + (f" (pid {pid})" if pid and pid > 0 else "")
                + ": stop the broker first",
                path=str(self.root),
                pid=pid if pid and pid > 0 else None,
            )
        if os.fstat(self._lock_fd).st_size != 4:
            os.pwrite(self._lock_fd, b"lock", 0)
        return os.fstat(self._lock_fd).st_mtime_ns

    def mark_open(self) -> None:
        """`abort` with this process's id: a directory found with it and nobody inside was not closed.

        The mark is on disk after it, also where another process made it: without it, after a power cut, all
        would count as closed.
        A process that died may have made it without having it there; and so may one have put a file of
        config/ in place: messages of a topic must not be on disk without the topic.
        """
        try:
            fd = open_made(self.root / "abort", os.O_WRONLY | os.O_EXCL)
        except FileExistsError:
            with suppress(FileNotFoundError):
                sync_names(self.root / "config")
        else:
            try:
                os.write(fd, str(os.getpid()).encode())
            finally:
                os.close(fd)
        sync_names(self.root)

    def mark_closed(self) -> None:
        (self.root / "abort").unlink(missing_ok=True)

    def was_closed(self) -> bool:
        return not (self.root / "abort").exists()

    def is_in_place(self) -> bool:
        """Whether the directory is where it was opened: not moved, deleted, or another one in its place."""
        try:
            there = (self.root / "mq" / "gate").stat()
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == self._identity

    def leave(self) -> None:
        """Stop counting as inside; the lock may still be held."""
        unlock_byte(self._fd, INSIDE)

    def _close_lock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def close(self) -> None:
        """Drop every lock. Twice is fine; also what a forked child does with its copies."""
        self._close_lock()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
