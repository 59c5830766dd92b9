"""Whether the control file that the last ones left behind may be believed, and what it tells if not.

Believed, it is attached to at once, whatever the size of the store. It is not if a RocketMQ broker was here
since (which shows in the mtime of `lock`), if it is of another boot and not of a clean end, if a flush had
failed, or if files that it speaks of are gone. Then the directory is recovered, and the control file still
says which queues there were.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mq.errors import StoreCorrupted
from mq.store.commitlog import segment_files
from mq.store.consumequeue import queue_directories
from mq.store.control import Control
from mq.store.gate import Gate
from mq.store.geometry import Geometry
from mq.store.layouts import check_control, check_layouts, packed
from mq.store.native import check, ffi, lib
from mq.store.peeking import peek

__all__ = ["Hint", "believable", "fresh_control", "hint", "open_log", "shared"]

QUEUES_LOOKED_INTO = 1000  # Some 15 µs each.
BLANK_SIZE = 8  # What a record or a BLANK at the least has that is not zero.


def shared(path: Path) -> Control:
    """The control file of those who are inside. Raises VersionMismatch, StoreCorrupted."""
    root = path.parents[1]
    check_control(root)
    try:
        control = Control(path, create=False)
        check_layouts(root, control.get(lib.MQ_LAYOUTS))
        return control
    except (FileNotFoundError, StoreCorrupted) as error:
        raise StoreCorrupted(
            f"{path} was deleted or changed while other processes have the store open ({error}):"
            " close it in all of them, then open it again",
            path=str(path),
        ) from error


def fresh_control(path: Path, sizes: Geometry) -> Control:
    """One that knows nothing yet but sizes, for a recovery to fill."""
    path.unlink(missing_ok=True)
    control = Control(path, create=True)
    for word, value in (
        (lib.MQ_FILE_SIZE, sizes.commitlog_file_size),
        (lib.MQ_QUEUE_FILE_SIZE, sizes.queue_file_size),
        (lib.MQ_INDEX_SLOTS, sizes.index_slot_count),
        (lib.MQ_INDEX_UNITS, sizes.index_unit_count),
        (lib.MQ_EXT_FILE_SIZE, sizes.consume_queue_ext_file_size),
        (lib.MQ_LAYOUTS, packed()),
        (lib.MQ_EPOCH, secrets.randbits(62)),
    ):
        control.set(word, value)
    return control


def open_log(root: Path, control: Control, mode: int, *, sync: bool) -> Any:
    """The mq_log of a directory. Freed when the last call that uses it has returned, in whichever thread; the
    control file after it."""
    handle, out = control.handle, ffi.new("mq_log **")
    check(lib.mq_log_open(handle, bytes(root), mode, sync, out), str(root))
    return ffi.gc(out[0], lambda log, _control=handle: lib.mq_log_close(log))


def believable(root: Path, gate: Gate, sizes: Geometry, lock_mtime: int) -> Control | None:
    """The control file that the last ones left behind, if what it says can be so."""
    try:
        control = Control(root / "mq" / "control", create=False)
    except (FileNotFoundError, StoreCorrupted, OSError):
        return None
    believed = (
        control.get(lib.MQ_LOCK_MTIME) == lock_mtime
        and control.get(lib.MQ_LAYOUTS) == packed()
        and control.get(lib.MQ_FILE_SIZE) == sizes.commitlog_file_size
        and control.get(lib.MQ_QUEUE_FILE_SIZE) == sizes.queue_file_size
        # What the kernel failed to write may be lost from memory too: look at the disk again.
        and control.get(lib.MQ_POISONED_WORD) == 0
        and _is_possible(control, root, sizes)
        and (_as_it_was_closed(control) if control.get(lib.MQ_CLEAN) else control.same_boot())
        and (control.same_boot() or gate.was_closed())
    )
    if believed and _complete(control, root, sizes):
        return control
    control.close()
    return None


def _as_it_was_closed(control: Control) -> bool:
    """Whether a control file of a clean end says what it said then: after a reboot its pages may be of
    different times, and bytes of any file may change while nobody looks."""
    if lib.mq_control_armed(control.handle):
        return False
    return int(lib.mq_control_checksum(control.handle)) == control.get(lib.MQ_CHECKSUM)


def _is_possible(control: Control, root: Path, sizes: Geometry) -> bool:
    """Whether the ends are in order, and the log is zero where it ends, unless an append was cut short
    there."""
    low, flushed, end = (control.get(word) for word in (lib.MQ_LOG_MIN, lib.MQ_FLUSHED_END, lib.MQ_LOG_END))
    indexed = control.get(lib.MQ_INDEXED_END)
    if not (0 <= low <= end and flushed <= end and 0 <= indexed <= end) or low % sizes.commitlog_file_size:
        return False
    if lib.mq_control_armed(control.handle):
        return True
    return not _has_bytes(root, end, sizes.commitlog_file_size)


@dataclass(slots=True)
class Hint:
    """What is known of a directory from a control file that is not believed as a whole."""

    ours: bool = False  # nobody but mq was here since
    clean: bool = False  # and it was closed
    log: range = range(0)  # starts of log files that were on disk
    queues: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # first and next offset


def hint(root: Path, sizes: Geometry, lock_mtime: int) -> Hint:
    """What a control file that is not believed still tells. Raises StoreCorrupted for a log file that is
    gone."""
    path, found = root / "mq" / "control", Hint()
    try:
        control = Control(path, create=False)
        if control.get(lib.MQ_FILE_SIZE) == sizes.commitlog_file_size:
            found.ours = control.get(lib.MQ_LOCK_MTIME) == lock_mtime
            found.clean = found.ours and control.get(lib.MQ_CLEAN) == 1
            found.log = range(
                control.get(lib.MQ_LOG_MIN),
                control.get(lib.MQ_FLUSHED_END),
                sizes.commitlog_file_size,
            )
            found.queues = {
                (t, q): (control.min_offset(n), control.next_offset(n)) for n, t, q in control.queues()
            }
    except (FileNotFoundError, StoreCorrupted, OSError):
        pass
    if found.ours:
        present = {int(file.name) for file in segment_files(root / "commitlog")}
        # One after the other: the numbers may be nonsense, and then the first file they name is missing.
        gone = next((offset for offset in found.log if offset not in present), None)
        if gone is not None:
            raise StoreCorrupted(
                f"{root}/commitlog/{gone:020} is missing, with the messages in it: put it back, or delete"
                f" {path} to go on without them",
                path=f"{root}/commitlog/{gone:020}",
                log_offset=gone,
            )
    return found


def _complete(control: Control, root: Path, sizes: Geometry) -> bool:
    """Whether the files that the control file speaks of are there: users delete derived ones."""
    size = sizes.commitlog_file_size
    log_min, log_end = control.get(lib.MQ_LOG_MIN), control.get(lib.MQ_LOG_END)
    present = {int(file.name) for file in segment_files(root / "commitlog")}
    if log_min < 0 or not all(offset in present for offset in range(log_min, log_end, size)):
        return False
    if any(offset < log_min for offset in present):
        return False
    unit, queue_size = lib.MQ_UNIT_SIZE, sizes.queue_file_size
    known, newest = set(), log_min
    for number, topic, queue_id in control.queues():
        known.add((topic, queue_id))
        low, high = control.min_offset(number) * unit, control.next_offset(number) * unit
        if not 0 <= low <= high:
            return False
        directory = root / "consumequeue" / topic / str(queue_id)
        for start in range(low // queue_size * queue_size, high, queue_size):
            if not (directory / f"{start:020}").exists():
                return False
        if len(known) <= QUEUES_LOOKED_INTO and high > low:
            last = _last_unit(directory, high, queue_size)
            if last is None:
                return bool(lib.mq_control_armed(control.handle))
            newest = max(newest, last)
    # Nothing there is what an older copy of the log leaves that was put in its place.
    if log_min < newest < log_end and not _has_bytes(root, newest, size):
        return False
    # A queue that the table does not know is one whose entry was damaged.
    return all(
        (topic, queue_id) in known or not segment_files(directory)
        for topic, queue_id, directory in queue_directories(root)
    )


def _last_unit(directory: Path, end: int, queue_size: int) -> int | None:
    """Where a queue's last message lies, as a log offset; None if its last unit does not end at this byte:
    one is before it, and none behind."""
    unit = lib.MQ_UNIT_SIZE
    file = directory / f"{(end - unit) // queue_size * queue_size:020}"
    units = peek(file, (end - unit) % queue_size, 2 * unit)
    return int.from_bytes(units[:8], "big") if any(units[8:12]) and not any(units[unit:]) else None


def _has_bytes(root: Path, log_offset: int, file_size: int) -> bool:
    """Whether a record or a BLANK may begin there."""
    path = root / "commitlog" / f"{log_offset // file_size * file_size:020}"
    try:
        return any(peek(path, log_offset % file_size, BLANK_SIZE))
    except FileNotFoundError:
        return False
