"""How far the timer messages are on disk: what counts after a reboot, and for a RocketMQ broker.

On disk: config/timercheck, 4096 bytes of which 56 are used; RocketMQ's layout. Integers big-endian:

    offset  size  field
         0     8  read_ms        slots before this time are delivered
         8     8  log_end        of the timer log, as far as it is on disk
        16     8  queue_offset   the next of the timer topic to be put into the wheel
        24     8  master_offset  the same, of RocketMQ's master; here it is the same
        32     8  state_version  0
        40     8  timestamp      ms
        48     8  counter        how often this was written

What it says is on disk before it is said: messages delivered, log, wheel. So after a power cut messages may
come twice, and none is lost.

RocketMQ: store/timer/TimerCheckpoint.java.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

from mq.store.directory.file_locks import open_own_file
from mq.store.directory.owner import make_directory
from mq.store.directory.root import sync_names

__all__ = ["TimerCheck", "read_timer_check", "write_timer_check"]

CHECK = struct.Struct(">qqqqqqq")
SIZE = 4096


class TimerCheck(NamedTuple):
    """What the file says. counter 0: there was none, or none to be believed."""

    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    master_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def packed(self) -> bytes:
        """As the file begins, and as RocketMQ's master tells its slaves."""
        return CHECK.pack(*self)


def path_of(root: Path) -> Path:
    return root / "config" / "timercheck"


def read_timer_check(root: Path) -> TimerCheck | None:
    """What the file says; None if it is damaged. Without a file, a check of nothing."""
    try:
        with path_of(root).open("rb") as file:
            content = file.read(SIZE + 1)
    except FileNotFoundError:
        return TimerCheck()
    if len(content) != SIZE:
        return None
    check = TimerCheck(*CHECK.unpack(content[: CHECK.size]))
    return check if min(check) >= 0 else None


def write_timer_check(root: Path, check: TimerCheck) -> None:
    """Write the file, and have it on disk."""
    path = path_of(root)
    is_new = not path.exists()
    if not path.parent.is_dir():
        make_directory(path.parent)
        sync_names(path.parent.parent)
    fd = open_own_file(path)
    try:
        if os.fstat(fd).st_size != SIZE:
            os.posix_fallocate(fd, 0, SIZE)
            os.ftruncate(fd, SIZE)
        os.pwrite(fd, check.packed(), 0)
        os.fdatasync(fd)
    finally:
        os.close(fd)
    if is_new:
        sync_names(path.parent)
