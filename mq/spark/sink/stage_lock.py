"""The locks of staged files: the holder of one may be stopped, and is not waited for without limit.

A lock is dropped by the kernel when its process dies, however it dies; while a process is stopped, by a
signal or a debugger, it keeps what it has. So the holder of a lock says from time to time that it
goes on, by the time of the file, and a waiting process gives up when that has not changed for a while.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from mq.spark.errors import Refusal

__all__ = ["LOCK_TIMEOUT", "held_by_another", "show_life", "take"]

LOCK_TIMEOUT = 60.0  # seconds without a sign of life
PAUSE_MIN, PAUSE_MAX = 0.001, 0.05
LOCKS = Path("/proc/locks")


def take(
    file: IO[bytes],
    timeout: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Lock an open file exclusively. False if another one has had it for so many seconds without a sign of
    life; 0 tries once."""
    seen, since, seconds = _sign(file), clock(), PAUSE_MIN
    while True:
        # First, whatever the time is: the waiting process may have been stopped as well.
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


def show_life(path: Path) -> None:
    """Of a file that is locked: have the processes that wait for it wait on."""
    with suppress(OSError):  # It tells others, and what is done does not depend on it.
        os.utime(path)


def held_by_another(path: Path, file: IO[bytes], waited: float = LOCK_TIMEOUT) -> Refusal:
    """What there is to say when a lock was not to be had in so many seconds."""
    pid = _holder(file)
    if pid is None:
        holder, way_out = "another process, which the kernel does not name,", "let it go on, or end it"
    else:
        is_stopped = _is_stopped(pid)
        holder = f"process {pid}, which is stopped," if is_stopped else f"process {pid}"
        goes_on = f"let it go on (kill -CONT {pid})" if is_stopped else "let it go on"
        way_out = f"{goes_on}, or end it (kill -9 {pid}), which drops its lock"
    return Refusal(
        "MQ_STAGING_LOCKED",
        f"{path} is locked by {holder} and for {waited:g} s there was no sign that it goes on: {way_out};"
        " then run this again. Of what was to be written now the log has nothing, and nothing is lost",
    )


def _holder(file: IO[bytes]) -> int | None:
    """The process that locked a file, as far as the kernel tells: it does not of other containers."""
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
