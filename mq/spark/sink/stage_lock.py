"""The locks of staged files, with a heartbeat: a process does not wait forever for a stopped lock holder.

The kernel releases the lock of a dead process, but a process stopped by a signal or a debugger keeps its
lock. So the holder updates the file's modification time while it works. A waiting process gives up when that
time has not changed for the timeout.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from mq.spark.errors import SparkError

__all__ = ["LOCK_TIMEOUT", "lock_timeout_error", "take_lock", "touch_lock"]

LOCK_TIMEOUT = 60.0  # seconds without a heartbeat
PAUSE_MIN, PAUSE_MAX = 0.001, 0.05
LOCKS = Path("/proc/locks")


def take_lock(
    file: IO[bytes],
    timeout: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Lock an open file exclusively. Returns False if another process holds the lock for `timeout` seconds
    without a heartbeat; 0 tries once."""
    seen, since, seconds = _sign(file), clock(), PAUSE_MIN
    while True:
        # Try before looking at the clock: this process may have been stopped itself.
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        sign, now = _sign(file), clock()
        if sign != seen:
            seen, since = sign, now
        if now - since >= timeout:
            return False
        pause(seconds)
        seconds = min(2 * seconds, PAUSE_MAX)


def _sign(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_mtime_ns


def touch_lock(path: Path) -> None:
    """Heartbeat of a lock holder: waiting processes keep waiting."""
    with suppress(OSError):  # The holder's work does not depend on it.
        os.utime(path)


def lock_timeout_error(path: Path, file: IO[bytes], waited: float = LOCK_TIMEOUT) -> SparkError:
    """The error for a lock that could not be taken within `waited` seconds; it names the holder."""
    pid = _holder(file)
    if pid is None:
        holder, advice = "another process, which the kernel does not name,", "let it go on, or end it"
    else:
        is_stopped = _is_stopped(pid)
        holder = f"process {pid}, which is stopped," if is_stopped else f"process {pid}"
        goes_on = f"let it go on (kill -CONT {pid})" if is_stopped else "let it go on"
        advice = f"{goes_on}, or end it (kill -9 {pid}), which drops its lock"
    return SparkError(
        "MQ_STAGING_LOCKED",
        f"{path} is locked by {holder} and for {waited:g} s there was no sign that it goes on: {advice};"
        " then run this again. Nothing of this write is in the log, and nothing is lost",
    )


def _holder(file: IO[bytes]) -> int | None:
    """The id of the process that locked a file; None if it is in another container."""
    found = os.fstat(file.fileno())
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with suppress(OSError, ValueError):
        for line in LOCKS.read_text().splitlines():
            # Number, kind, ADVISORY, access, process, place, and the range; waiting processes have an arrow.
            _, kind, _, _, pid, where, *_ = line.split()
            if kind == "FLOCK" and where == place and int(pid) > 0:
                return int(pid)
    return None


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
    except (OSError, IndexError):
        return False
