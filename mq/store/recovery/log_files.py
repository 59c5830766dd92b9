"""The log's files as a recovery finds them: of one length, without a gap, and as far as the log is known to
have been.

A file that is missing, or in which no record is whole, gets a filler in its place: a file that begins with a
BLANK, so that a walk over the log goes on with the next one. No record of ours is ever behind a BLANK
at a file's first byte; so a filler tells, for as long as it is kept, that messages were lost there, and no
log offset is given again.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

from mq.errors import StoreCorrupted
from mq.store.directory.owner import make_directory, open_made
from mq.store.directory.raw_read import peek
from mq.store.directory.root import sync_file, sync_names
from mq.store.log.commitlog import segment_files
from mq.store.native import check, lib

__all__ = ["FILES_MISSING_MAX", "cut_files", "fill", "log_files", "missing", "set_aside", "write_blank"]

FILES_MISSING_MAX = 100_000  # A number of files that asks for more is damaged.
BLANK = struct.Struct(">ii")
BLANK_SIZE_MAX = (1 << 31) - 1


def log_files(root: Path, size: int, log_end: int, *, writable: bool) -> tuple[list[Path], list[int]]:
    """The log's files, and the offsets of those that had another length, which writable makes right. An empty
    one behind the end is a crash while it was made. Raises StoreCorrupted for a name that can be no file's of
    this log."""
    files = segment_files(root / "commitlog")
    while files and files[-1].stat().st_size == 0 and int(files[-1].name) >= log_end:
        empty = files.pop()
        if writable:
            empty.unlink()
    changed = []
    for file in files:
        if int(file.name) % size:
            raise StoreCorrupted(
                f"{file} is not a file of {size:,} bytes at a multiple of that: it is none of this log;"
                " move it out of the directory",
                path=str(file),
            )
        if file.stat().st_size == size:
            continue
        changed.append(int(file.name))
        if writable:
            os.truncate(file, size)
            sync_file(file)
    return files, changed


def missing(root: Path, size: int, begin: int, end: int) -> list[int]:
    """The offsets of files that should be there to hold [begin, end), and are not."""
    present = {int(file.name) for file in segment_files(root / "commitlog")}
    starts = range(begin // size * size, end, size)
    if len(starts) - len(present) > FILES_MISSING_MAX:
        return []
    return [start for start in starts if start not in present]


def fill(root: Path, start: int, size: int) -> None:
    """Have a filler where the log has no file, or one of zeros. It is as old as the file behind it: neither
    outlives the other by retention."""
    path = root / "commitlog" / f"{start:020}"
    fd = open_made(path, os.O_WRONLY)
    try:
        os.ftruncate(fd, size)
        os.pwrite(fd, BLANK.pack(min(size, BLANK_SIZE_MAX), lib.MQ_MAGIC_BLANK), 0)
        following = path.with_name(f"{start + size:020}")
        if following.exists():
            status = following.stat()
            os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_names(path.parent)


def set_aside(root: Path, start: int) -> Path | None:
    """Move a file of the log in which no record is whole out of the way; where it is now, None if it is of
    zeros alone, or was not there. Somebody may yet make sense of it."""
    path = root / "commitlog" / f"{start:020}"
    try:
        with path.open("rb") as file:
            is_zero = all(piece.count(0) == len(piece) for piece in iter(lambda: file.read(1 << 20), b""))
    except FileNotFoundError:
        return None
    if is_zero:
        path.unlink()
        return None
    target = root / "mq" / "damaged" / path.name
    make_directory(target.parent)
    path.replace(target)
    sync_names(target.parent)
    sync_names(path.parent)
    return target


def write_blank(root: Path, log_offset: int, size: int) -> None:
    """Say that nothing follows in the file that holds this offset."""
    room = size - log_offset % size
    path = root / "commitlog" / f"{log_offset // size * size:020}"
    if log_offset % size == 0 or room < BLANK.size or any(peek(path, log_offset % size, BLANK.size)):
        return
    with path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), BLANK.pack(min(room, BLANK_SIZE_MAX), lib.MQ_MAGIC_BLANK), log_offset % size)
        os.fsync(file.fileno())


def cut_files(root: Path, log: Any, end: int, size: int) -> None:
    """Have nothing of the log behind its end. The last file first, as in a recovery: the log never lacks a
    file between two others."""
    control = lib.mq_log_control(log)
    # First of all: blocks that are gone must not be taken for allocated, should this be cut short.
    lib.mq_control_set(control, lib.MQ_RESERVED_END, 0)
    lib.mq_control_set(control, lib.MQ_ALLOCATED_END, end)
    files = lib.mq_log_files(log)
    for file in reversed(segment_files(root / "commitlog")):
        if int(file.name) >= end:
            check(lib.mq_files_remove(files, int(file.name)), str(file))
        elif int(file.name) + size > end:
            check(lib.mq_files_clear(files, end), str(file))
