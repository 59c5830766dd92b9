"""Locks that the kernel drops when their owner dies, however it dies.

Open file description locks on single bytes: they belong to the open file, not to the process, so they
hold between threads and brokers of one process as well, and closing some other descriptor of the file
does not drop them (which is the trap of POSIX record locks). RocketMQ's Java lock is a POSIX record lock;
the kernel lets the two kinds see each other.

A forked child inherits the open file and would hold the lock as long as it lives: stores close their
descriptors in the child at once (see store.py).
"""

import errno
import fcntl
import os
import struct
import time
from pathlib import Path

from mq.store.directory.owner import open_made

__all__ = ["byte_owner", "lock_byte", "open_own_file", "unlock_byte"]

# struct flock on 64-bit Linux: type, whence, start, length, pid.
FLOCK = struct.Struct("@hhqqi4x")


def _flock(kind: int, byte: int, count: int = 1) -> bytes:
    return FLOCK.pack(kind, os.SEEK_SET, byte, count, 0)


def open_own_file(path: Path) -> int:
    """A descriptor of a file of the store, to lock or write it; made if missing, never through a link."""
    return open_made(path)


def lock_byte(fd: int, byte: int, *, shared: bool = False, timeout: float | None = 0.0) -> bool:
    """Lock one byte of an open file, exclusively or shared; whether that succeeded.

    timeout in seconds; 0 tries once, None waits for as long as it takes. Locking again changes the kind.
    """
    request = _flock(fcntl.F_RDLCK if shared else fcntl.F_WRLCK, byte)
    if timeout is None:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, request)
        return True
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.002)  # Only opening and closing wait here, and only for each other.
        else:
            return True


def unlock_byte(fd: int, byte: int, count: int = 1) -> None:
    """Let go of these bytes; count 0: of all from there on."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, byte, count))


def byte_owner(fd: int, byte: int, count: int = 1) -> int | None:
    """The process that keeps this file from locking these bytes exclusively (count 0: all from there on): a
    pid, -1 if unknown, None if nobody."""
    request = _flock(fcntl.F_WRLCK, byte, count)
    kind, _, _, _, pid = FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, request))
    return None if kind == fcntl.F_UNLCK else pid
