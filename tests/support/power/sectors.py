"""Where two files differ: what a process holds in memory, and what of it is on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator

__all__ = ["different", "extents"]


def extents(fd: int) -> Iterator[tuple[int, int]]:
    """Where a file holds bytes."""
    at, size = 0, os.fstat(fd).st_size
    while at < size:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole follows.
            return
        at = os.lseek(fd, begin, os.SEEK_HOLE)
        yield begin, at


def different(live: int, disk: int, sector: int) -> Iterator[tuple[int, bytes, bytes]]:
    """(offset, live bytes, disk bytes) of each sector that differs."""
    starts = {
        start
        for fd in (live, disk)
        for begin, end in extents(fd)
        for start in range(begin // sector * sector, end, sector)
    }
    for start in sorted(starts):
        now, synced = (os.pread(fd, sector, start).ljust(sector, b"\0") for fd in (live, disk))
        if now != synced:
            yield start, now, synced
