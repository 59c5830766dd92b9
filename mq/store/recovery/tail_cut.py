"""The tail of a log is cut off: of a replica that went on otherwise than the master that it is to follow.

What is cut is kept in mq/diverged/<log offset>, raw records as they were in the log. The control file goes
first, and the directory counts as one that was not closed: so the next process that opens it recovers it, as
after a crash, and finds the log's new end, cuts the queues and the index, and lowers the offsets of groups.
A process that dies on the way leaves the whole log, or one that was cut.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from mq.errors import StoreLocked
from mq.store.directory.checkpoint import read_checkpoint, write_checkpoint
from mq.store.directory.open_lock import OpenLock
from mq.store.directory.owner import make_directory, open_made
from mq.store.directory.root import sync_file, sync_names
from mq.store.log.commitlog import segment_files
from mq.store.native import check, ffi, lib
from mq.store.os_errors import named_errors

__all__ = ["cut_tail"]

PIECE_SIZE = 4 << 20


def cut_tail(root: Path, begin: int, end: int, file_size: int, store_time_ms: int) -> Path:
    """Cut [begin, end) off the log of a store that is closed here; the file that has it now.

    begin: log offset of a record, or the end. file_size: of the log's files. store_time_ms: of the last
    record that stays. Raises StoreLocked where another process has the store open, StoreFull.
    """
    with named_errors(root):
        open_lock = OpenLock(root)
        try:
            with open_lock.opening():
                open_lock.opened_by()
                try:
                    return _cut_alone(open_lock, root, begin, end, file_size, store_time_ms)
                finally:
                    # Before the next process may open the store: it must find itself alone, and recover.
                    open_lock.leave()
        finally:
            open_lock.close()


def _cut_alone(
    open_lock: OpenLock, root: Path, begin: int, end: int, file_size: int, store_time_ms: int
) -> Path:
    if not open_lock.is_alone():
        raise StoreLocked(
            f"{root}: its log has {end - begin:,} bytes from log offset {begin:,} on that its"
            " master has not, and they cannot be cut off while other processes have it open:"
            " close them, or open it there with read_only=True",
            path=str(root),
        )
    open_lock.mark_open()
    kept = _keep(root, begin, end, file_size)
    known = read_checkpoint(root)
    times = (min(time, store_time_ms) for time in (known.physic_time, known.logics_time))
    write_checkpoint(root, replace(known, physic_time=next(times), logics_time=next(times)), sync=True)
    (root / "mq" / "control").unlink(missing_ok=True)
    sync_names(root / "mq")
    _cut(root, begin, file_size)
    return kept


def _keep(root: Path, begin: int, end: int, file_size: int) -> Path:
    """Copy a part of the log; what an earlier cut left there has another name."""
    directory = root / "mq" / "diverged"
    make_directory(directory)
    path = directory / f"{begin:020}"
    number = 1
    while path.exists():
        number += 1
        path = directory / f"{begin:020}-{number}"
    fd = open_made(path, os.O_WRONLY | os.O_EXCL)
    try:
        at = begin
        while at < end:
            start = at // file_size * file_size
            size = min(end, start + file_size, at + PIECE_SIZE) - at
            with (root / "commitlog" / f"{start:020}").open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), size, at - start)
            at += os.pwrite(fd, data.ljust(size, b"\0"), at - begin)
        os.fsync(fd)
    except BaseException:
        path.unlink()  # It takes what space there is, and each attempt would leave one.
        raise
    finally:
        os.close(fd)
    sync_names(directory)
    sync_names(directory.parent)
    return path


def _cut(root: Path, begin: int, file_size: int) -> None:
    directory = root / "commitlog"
    out = ffi.new("mq_files **")
    check(lib.mq_files_open(bytes(directory), 1, file_size, True, out), str(directory))
    files = ffi.gc(out[0], lib.mq_files_close)
    for file in reversed(segment_files(directory)):
        start = int(file.name)
        if start >= begin:
            file.unlink()
        elif start + file_size > begin:
            # Never shorter: a process that only reads may have it mapped, and would be killed by a signal.
            check(lib.mq_files_clear(files, begin), str(file))
            sync_file(file)
    sync_names(directory)
