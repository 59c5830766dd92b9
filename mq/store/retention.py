"""What is too old goes: whole commit log files first, then the queue and index files that only spoke of them.

A file of the log expires when its last change is longer ago than the retention; the newest never does.
Readers are not disturbed: the marks of what is kept move up first, and a file that someone still has mapped
lives on for him until he lets go of it.

RocketMQ: store/DefaultMessageStore.java, CleanCommitLogService. Unlike it, nothing is deleted before its
time because a disk is full, unless that was asked for (disk_ratio_max): on a user's machine the disk is
full of other things.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from mq.store.commitlog import segment_files
from mq.store.consumequeueext import extension_files, remove_old_extensions
from mq.store.control import Control
from mq.store.native import check, lib
from mq.store.store import Store

__all__ = ["Aged", "Keep", "disk_ratio", "expire", "expired"]

LOCK_TIMEOUT_MS = 10_000

# Entered with the log offset before which all goes and the time, in ms; it goes inside.
Keep = Callable[[int, int], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Aged:
    """A file of the log, and when it was last written to."""

    log_offset: int
    changed_ms: int


def expired(files: Sequence[Aged], now_ms: int, retention_ms: int, *, force_count: int = 0) -> int:
    """How many of these files, oldest first, are to go. Pure.

    The first that is young enough ends it; the last one stays; the first force_count go whatever their age.
    """
    count = 0
    for file in files[:-1]:
        if count >= force_count and now_ms < file.changed_ms + retention_ms:
            break
        count += 1
    return count


def disk_ratio(path: Path) -> float:
    """How full the file system is: 0 … 1 of what may be used."""
    status = os.statvfs(path)
    used = status.f_blocks - status.f_bfree
    return used / max(1, used + status.f_bavail)


def expire(
    store: Store,
    now_ms: int,
    retention_ms: int,
    *,
    disk_ratio_max: float | None = None,
    keep: Keep | None = None,
) -> int:
    """Delete what is expired now; how many files of the log went. One caller at a time: the duties, or the
    user. keep moves on what is needed for longer."""
    store.stay_in_place()  # Files of another store in the same place are not ours to delete.
    files = segment_files(store.root / "commitlog")
    log_end = store.word(lib.MQ_LOG_END)
    aged = []
    for file in files:
        with suppress(FileNotFoundError):  # Somebody else is at it too.
            if int(file.name) < log_end:
                aged.append(Aged(int(file.name), file.stat().st_mtime_ns // 1_000_000))
    count = expired(aged, now_ms, retention_ms)
    if disk_ratio_max is not None and disk_ratio(store.root) > disk_ratio_max:
        # One at a time: the next round looks again.
        count = expired(aged, now_ms, retention_ms, force_count=max(count, 1))
    if count == 0:
        return 0
    log_min = aged[count].log_offset
    with keep(log_min, now_ms) if keep else nullcontext():
        _delete(store, files, log_min)
    return count


def _delete(store: Store, files: Sequence[Path], log_min: int) -> None:
    log, control = store.live(), store.control
    assert control is not None
    control.raise_to(lib.MQ_LOG_MIN, log_min)
    for number, topic, queue_id in control.queues():
        oldest = check(lib.mq_queue_trim(log, number, log_min), str(store.root))
        _delete_units(store, control, number, topic, queue_id, oldest)
    for file in files:
        if int(file.name) < log_min:
            file.unlink(missing_ok=True)
    store.index.delete_before(log_min)
    store.release_old()


def _delete_units(
    store: Store, control: Control, number: int, topic: str, queue_id: int, oldest: int
) -> None:
    """Remove the files of a queue that only have units, or extensions, of messages before `oldest`."""
    size, unit = store.geometry.queue_file_size, lib.MQ_UNIT_SIZE
    last = max(control.next_offset(number) - 1, 0) * unit // size * size
    for file in segment_files(store.root / "consumequeue" / topic / str(queue_id)):
        if int(file.name) + size <= oldest * unit and int(file.name) < last:
            with _still(control, number) as there:
                if there:
                    file.unlink(missing_ok=True)
    if len(extension_files(store.root, topic, queue_id)) > 1:
        with _still(control, number) as there:
            if there:
                remove_old_extensions(store.root, store.live(), number, topic, queue_id)


@contextmanager
def _still(control: Control, number: int) -> Iterator[bool]:
    """Whether this queue is there, which it stays meanwhile.

    Where its topic was deleted and made again, files of the same names are another queue's, which counts from
    0 again. A topic is deleted under the append lock. Nothing is repaired under it here, where a dead owner
    left something to repair: that may take space, which this is to make.
    """
    check(lib.mq_control_lock(control.handle, lib.MQ_LOCK_APPEND, LOCK_TIMEOUT_MS), str(control.path))
    try:
        yield lib.mq_control_queue_state(control.handle, number) == lib.MQ_QUEUE_LIVE
    finally:
        lib.mq_control_unlock(control.handle, lib.MQ_LOCK_APPEND)
