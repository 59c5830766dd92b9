"""Old messages are deleted: whole commit log files, then queue and index files that only told of it.

A file of the log expires when its last change is longer ago than the retention; the newest never does.
Readers are not disturbed: the marks of what is kept move up first, and a file that a reader still has mapped
lives on for it until it is unmapped.

RocketMQ: store/DefaultMessageStore.java, CleanCommitLogService. Unlike it, nothing is deleted before its
time because a disk is full, unless that was asked for (disk_ratio_max): on a user's machine the disk is
full of other things.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import NamedTuple

from mq.api.retention import Range
from mq.store.directory.log_begin import keep_log_begin
from mq.store.directory.root import sync_names
from mq.store.log.commitlog import segment_files
from mq.store.native import check, lib
from mq.store.queue.extensions import extension_files, remove_old_extensions
from mq.store.shared.control import Control
from mq.store.shared.lock_guards import control_lock
from mq.store.store import Store

__all__ = ["Aged", "Away", "Due", "before", "delete", "disk_excess", "due", "expired", "ranges"]

SET_BACK_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Aged:
    """A file of the log, and when it was last written to."""

    log_offset: int
    changed_ms: int


class Away(NamedTuple):
    """A time in which no process had the store open: what was there before does not age in it."""

    begin_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be deleted: the oldest files of the log, with all that begins before log_min."""

    files: tuple[Path, ...]
    log_min: int


def age_ms(changed_ms: int, now_ms: int, absences: Iterable[Away]) -> int:
    """How old a file counts for that was last written then. Pure.

    An absence that ends ahead is of a clock that was set back since. Where that is at most a day, as from
    local time to UTC, it lasts until now; else nothing would be deleted for too long. Absences may overlap.
    """
    age, counted_ms = now_ms - changed_ms, changed_ms
    for begin_ms, end_ms in sorted(absences):
        first_ms, last_ms = max(begin_ms, counted_ms), min(end_ms, now_ms)
        if first_ms < last_ms and end_ms <= now_ms + SET_BACK_MS:
            age -= last_ms - first_ms
            counted_ms = last_ms
    return age


def expired(
    files: Sequence[Aged],
    now_ms: int,
    retention_ms: int,
    *,
    force_count: int = 0,
    absences: Sequence[Away] = (),
) -> int:
    """How many of these files, oldest first, are to go. Pure.

    The first that is young enough ends it; the last one stays; the first force_count go whatever their age.
    """
    count = 0
    for file in files[:-1]:
        if count >= force_count and age_ms(file.changed_ms, now_ms, absences) < retention_ms:
            break
        count += 1
    return count


def disk_excess(path: Path, ratio_max: float) -> int:
    """By how many bytes the file system is fuller than this ratio, 0 … 1 of what may be used."""
    status = os.statvfs(path)
    used = status.f_blocks - status.f_bfree
    return max(0, ceil((used - ratio_max * (used + status.f_bavail)) * status.f_frsize))


def due(
    store: Store,
    now_ms: int,
    retention_ms: int,
    *,
    disk_ratio_max: float = 1.0,
    one_by_one: bool = True,
    absences: Sequence[Away] = (),
) -> Due | None:
    """What is expired at a time; None if nothing is.

    While the disk is fuller than disk_ratio_max, each look takes a file. Not one_by_one: as many as it takes.
    """
    store.stay_in_place()  # Files of another store in the same place are not ours to delete.
    log_end = store.word(lib.MQ_LOG_END)
    files, aged = [], []
    for file in segment_files(store.root / "commitlog"):
        with suppress(FileNotFoundError):  # Somebody else is at it too.
            if int(file.name) < log_end:
                aged.append(Aged(int(file.name), file.stat().st_mtime_ns // 1_000_000))
                files.append(file)
    count = expired(aged, now_ms, retention_ms, absences=absences)
    if disk_ratio_max < 1.0 and (excess := disk_excess(store.root, disk_ratio_max)):
        forced = 1 if one_by_one else ceil(excess / store.file_sizes.commitlog_file_size)
        count = expired(aged, now_ms, retention_ms, force_count=max(count, forced), absences=absences)
    return Due(tuple(files[:count]), aged[count].log_offset) if count else None


def before(due: Due, log_offset: int) -> Due | None:
    """What of it goes where the record at this log offset is to stay; None if nothing does. Pure."""
    count = bisect_right([int(file.name) for file in due.files], log_offset) - 1
    return Due(due.files[:count], int(due.files[count].name)) if count > 0 else None


def ranges(store: Store, log_min: int) -> list[Range]:
    """Which messages go with all that begins before a log offset. Of a queue that cannot be read: none."""
    log, control = store.live(), store.control
    assert control is not None
    found = []
    for number, topic, queue_id in control.queues():
        first = max(control.min_offset(number), 0)
        end = int(lib.mq_queue_first(log, number, log_min))
        if end > first:
            found.append(Range(topic, queue_id, first, end - 1))
    return found


def delete(store: Store, due: Due, term: int = 0) -> None:
    """Delete it. One caller at a time: the duties, or the user. term: of the duties. Raises StoreLocked, and
    deletes nothing, once that is over.

    From when on it is told where the log begins, what lies before is nobody's any more, and deleting it
    again is of no matter: so the term is looked at there.
    """
    log, control, log_min = store.live(), store.control, due.log_min
    assert control is not None
    # What is behind stays, with all units: if nothing were left after a power cut that tells how far a queue
    # was, its offsets would be given once more.
    store.flush_log()
    store.flush_queues()
    control.raise_in_term(term, lib.MQ_LOG_MIN, log_min)
    # Before any file goes: after a power cut an older control file would tell of files that are missing.
    control.sync()
    keep_log_begin(store.root, control)
    sync_names(store.root / "mq")  # So are the names of both: a recovery may have made the former anew.
    trimmed = []
    for queue in control.queues():
        oldest = lib.mq_queue_trim(log, queue[0], log_min)
        if oldest != lib.MQ_GONE:  # Its topic was deleted meanwhile.
            trimmed.append((*queue, check(oldest, str(store.root))))
    for file in due.files:
        file.unlink(missing_ok=True)
    # Units go after their records, over a power cut too: a record without its unit counts as damage.
    sync_names(store.root / "commitlog")
    for number, topic, queue_id, oldest in trimmed:
        _delete_units(store, control, number, topic, queue_id, oldest)
    store.index.delete_before(log_min)
    store.release_old()


def _delete_units(
    store: Store, control: Control, number: int, topic: str, queue_id: int, oldest: int
) -> None:
    """Remove the files of a queue that only have units, or extensions, of messages before `oldest`."""
    size, unit = store.file_sizes.queue_file_size, lib.MQ_UNIT_SIZE
    last = max(control.next_offset(number) - 1, 0) * unit // size * size
    for file in segment_files(store.root / "consumequeue" / topic / str(queue_id)):
        if int(file.name) + size <= oldest * unit and int(file.name) < last:
            with control_lock(control, lib.MQ_LOCK_APPEND, control.path):
                if _is_there(control, number):
                    file.unlink(missing_ok=True)
    if len(extension_files(store.root, topic, queue_id)) > 1:
        with control_lock(control, lib.MQ_LOCK_APPEND, control.path):
            if _is_there(control, number):
                remove_old_extensions(store.root, store.live(), number, topic, queue_id)


def _is_there(control: Control, number: int) -> bool:
    """Whether this queue is there, which it stays as long as the append lock is held.

    Where its topic was deleted and made again, files of the same names are another queue's, which counts from
    0 again. A topic is deleted under the append lock. Nothing is repaired under it here, where a dead owner
    left something to repair: that may take space, which this is to make.
    """
    return bool(lib.mq_control_queue_state(control.handle, number) == lib.MQ_QUEUE_LIVE)
