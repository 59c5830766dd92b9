"""Whether the control file that the last ones left behind may be believed, and what it tells if not.

Believed, it is attached to at once, whatever the size of the store. It is not if a RocketMQ broker was here
since (which shows in the mtime of `lock`), if it is of another boot and not of a clean end, if a flush had
failed, or if files that it speaks of are gone or cannot be what was written. Then the directory is recovered,
and the control file still says which queues there were, and where the log and they ended.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mq.errors import StoreCorrupted, StoreLocked
from mq.names import is_topic_name
from mq.store.directory.file_sizes import FileSizes
from mq.store.directory.layouts import check_control, check_layouts, packed
from mq.store.directory.log_begin import read_log_begin
from mq.store.directory.open_lock import OpenLock
from mq.store.native import check, ffi, lib
from mq.store.recovery.plausibility import has_bytes, is_complete
from mq.store.shared.control import Control

__all__ = ["Hint", "believable", "fresh_control", "hint", "open_log", "shared"]


def shared(path: Path) -> Control:
    """The control file of the processes that have the store open. Raises VersionMismatch, StoreCorrupted, and
    StoreLocked for a file that none of them has attached to."""
    root = path.parents[1]
    check_control(root)
    try:
        control = Control(path, create=False)
        check_layouts(root, control.get(lib.MQ_LAYOUTS))
    except (FileNotFoundError, StoreCorrupted) as error:
        raise StoreCorrupted(
            f"{path} was deleted or changed while other processes have the store open ({error}):"
            " close it in all of them, then open it again",
            path=str(path),
        ) from error
    if control.same_boot():
        return control
    control.close()
    raise StoreLocked(
        f"{root}: another process is about to open or to close this store: try again", path=str(root)
    )


def fresh_control(path: Path, sizes: FileSizes) -> Control:
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
        (lib.MQ_EPOCH, int.from_bytes(os.urandom(8), "little") >> 2),
    ):
        control.set(word, value)
    return control


def open_log(root: Path, control: Control, mode: int, *, sync: bool) -> Any:
    """The mq_log of a directory. Freed when the last call that uses it has returned, in whichever thread; the
    control file after it."""
    handle, out = control.handle, ffi.new("mq_log **")
    check(lib.mq_log_open(handle, bytes(root), mode, sync, out), str(root))
    return ffi.gc(out[0], lambda log, _control=handle: lib.mq_log_close(log))


def believable(root: Path, open_lock: OpenLock, sizes: FileSizes, lock_mtime: int) -> Control | None:
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
        and (control.same_boot() or open_lock.was_closed())
    )
    if believed and is_complete(control, root, sizes):
        return control
    control.close()
    return None


def _as_it_was_closed(control: Control) -> bool:
    """Whether a control file of a clean end says what it said then: after a reboot its pages may be of
    different times, and bytes of any file may change while nobody looks."""
    if lib.mq_control_armed(control.handle):
        return False
    return int(lib.mq_control_checksum(control.handle)) == control.get(lib.MQ_CHECKSUM)


def _is_possible(control: Control, root: Path, sizes: FileSizes) -> bool:
    """Whether the ends are in order, and the log is zero where it ends, unless an append was cut short
    there."""
    low, flushed, end = (control.get(word) for word in (lib.MQ_LOG_MIN, lib.MQ_FLUSHED_END, lib.MQ_LOG_END))
    indexed = control.get(lib.MQ_INDEXED_END)
    if not (0 <= low <= end and flushed <= end and 0 <= indexed <= end) or low % sizes.commitlog_file_size:
        return False
    if lib.mq_control_armed(control.handle):
        return True
    return not has_bytes(root, end, sizes.commitlog_file_size)


@dataclass(slots=True)
class Hint:
    """What is known of a directory from a control file that is not believed as a whole; of a copy, too."""

    ours: bool = False  # nobody but mq was here since
    clean: bool = False  # and it was closed
    log_min: int = -1  # where the log began; -1: nobody knows
    log_end: int = 0  # up to where it was for certain; 0: nobody knows
    queues: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # first and next offset
    # Whether a queue had all units up to its next offset on disk: not before its last flush, over a power
    # cut.
    is_certain: bool = False
    was_closed: bool = False  # the directory was, whatever the control file says
    epoch: int = 0  # of its queue numbers, by which group files go
    names: dict[int, tuple[str, int]] = field(default_factory=dict)  # number to (topic, queue id)

    @classmethod
    def of_closed(cls, control: Control) -> Hint | None:
        """Of a control file that is attached to: its numbers are the present ones. None: of no clean end."""
        if control.get(lib.MQ_CLEAN) != 1:
            return None
        return cls(ours=True, clean=True, was_closed=True, epoch=control.get(lib.MQ_EPOCH))


def hint(root: Path, sizes: FileSizes, lock_mtime: int) -> Hint:
    """What a control file that is not believed still tells, and mq/log_begin."""
    found = _of_control(root, sizes, lock_mtime)
    found.log_min = max(found.log_min, read_log_begin(root, lock_mtime, sizes.commitlog_file_size))
    return found


def _of_control(root: Path, sizes: FileSizes, lock_mtime: int) -> Hint:
    found = Hint()
    try:
        control = Control(root / "mq" / "control", create=False, peek=True)
        if control.get(lib.MQ_FILE_SIZE) != sizes.commitlog_file_size:
            return found
        # Of a name that no topic has the page was not written when the power failed.
        found.names = {
            number: (topic, queue_id) for number, topic, queue_id in control.queues() if is_topic_name(topic)
        }
        found.queues = {
            queue: (control.min_offset(n), control.next_offset(n)) for n, queue in found.names.items()
        }
        found.epoch = control.get(lib.MQ_EPOCH)
    except (FileNotFoundError, StoreCorrupted, OSError):
        return found
    found.ours = control.get(lib.MQ_LOCK_MTIME) == lock_mtime
    found.clean = found.ours and control.get(lib.MQ_CLEAN) == 1
    if found.ours:
        _limits(control, found, sizes.commitlog_file_size)
    return found


def _limits(control: Control, found: Hint, file_size: int) -> None:
    """Where the log was for certain. A closed store's words have a checksum; else one word vouches for
    another."""
    low, flushed, end, allocated = (
        control.get(word)
        for word in (lib.MQ_LOG_MIN, lib.MQ_FLUSHED_END, lib.MQ_LOG_END, lib.MQ_ALLOCATED_END)
    )
    if not 0 <= low <= flushed <= end <= allocated or low % file_size:
        return
    if found.clean:
        found.is_certain = _as_it_was_closed(control)
    else:
        # What the kernel failed to write is not certain.
        found.is_certain = control.same_boot() and control.get(lib.MQ_POISONED_WORD) == 0
    if found.is_certain or not found.clean:
        found.log_min, found.log_end = low, end if found.is_certain else flushed
