"""Whether the files of a store can be what was written to them: one cheap look at each before a control file
is believed.

Every file has its length. A file of the log begins with a record of its own place, or with a BLANK; one of a
queue begins and ends with units that lead into the log; an extension that such a unit has is there. That
takes two short reads a file. What is wrong further inside a queue is made anew by a read there (see
mq/store/queue/unit_repair.py), and found by `verify`; inside the log, found by both.
"""

from __future__ import annotations

import itertools
import os
import struct
from pathlib import Path

from mq.store.directory.file_sizes import FileSizes
from mq.store.directory.raw_read import head_at, peek
from mq.store.directory.root import size_of
from mq.store.log.commitlog import segment_files
from mq.store.native import check, lib
from mq.store.queue.consumequeue import queue_directories
from mq.store.shared.control import Control

__all__ = ["Unit", "are_extensions_sound", "first_bad_file", "has_bytes", "is_complete", "unit_at"]

FILES_LOOKED_INTO = 250  # Of queues; some 50 µs each.
BLANK_SIZE = 8  # What a record or a BLANK at the least has that is not zero.
UNIT = struct.Struct(">qiq")
EXTENSION = struct.Struct(
    ">hqqh"
)  # size, tags_code, store_time, bitmap_size: see mq/store/queue/extensions.py
ADDRESS_BASE = -(1 << 63)
HASH_MIN = -(1 << 31)  # A tags code below is the address of an extension.

Unit = tuple[int, int, int]  # log offset, size, tags code


def has_bytes(root: Path, log_offset: int, file_size: int) -> bool:
    """Whether a record or a BLANK may begin there."""
    path = root / "commitlog" / f"{log_offset // file_size * file_size:020}"
    try:
        return any(peek(path, log_offset % file_size, BLANK_SIZE))
    except FileNotFoundError:
        return False


def _bytes_at(file: Path, inside: int, size: int) -> bytes | None:
    """So many bytes of a file from there on; None if there are fewer."""
    try:
        data = peek(file, inside, size)
    except FileNotFoundError:
        return None
    return data if len(data) == size else None


def unit_at(file: Path, inside: int) -> Unit | None:
    """The unit at a byte of a queue file; None if there is none."""
    data = _bytes_at(file, inside, UNIT.size)
    if data is None:
        return None
    log_offset, size, tags_code = UNIT.unpack(data)
    return (log_offset, size, tags_code) if size > 0 else None


def _leads_into_log(unit: Unit, log_end: int) -> bool:
    log_offset, size, _ = unit
    if size == lib.MQ_UNIT_BLANK_SIZE:
        return log_offset == 0
    return 0 <= log_offset < log_end and size <= log_end - log_offset


def first_bad_file(
    files: list[Path],
    size: int,
    log_end: int,
    *,
    seen: list[tuple[int, Unit]] | None = None,
) -> int | None:
    """The place in the list of a queue's first file that cannot be what was written; None if all can. Of the
    last one, only the length and the first unit are told: nobody knows here where it ends. seen: gets the
    units that were looked at, with their places in bytes."""
    newest = -1
    for place, file in enumerate(files):
        if size_of(file) != size or (place and int(file.name) != int(files[place - 1].name) + size):
            return place
        both_ends = (0, size - UNIT.size) if place < len(files) - 1 else (0,)
        for inside in both_ends:
            unit = unit_at(file, inside)
            if unit is None or not _leads_into_log(unit, log_end):
                return place
            if unit[1] != lib.MQ_UNIT_BLANK_SIZE:
                if unit[0] < newest:
                    return place
                newest = unit[0]
            if seen is not None:
                seen.append((int(file.name) + inside, unit))
    return None


def _extension_begins(file: Path, inside: int) -> bool:
    data = _bytes_at(file, inside, EXTENSION.size)
    if data is None:
        return False
    size, _, store_time, bitmap_size = EXTENSION.unpack(data)
    return bool(size == EXTENSION.size + bitmap_size and bitmap_size >= 0 and store_time > 0)


def are_extensions_sound(root: Path, topic: str, queue_id: int, units: list[Unit], size: int) -> bool:
    """Whether the files of a queue's extensions can be whole, and have those that these units of it point
    to."""
    directory = root / "consumequeue_ext" / topic / str(queue_id)
    files = segment_files(directory)
    if any(size_of(file) != size or not _extension_begins(file, 0) for file in files):
        return False
    if any(int(after.name) - int(before.name) != size for before, after in itertools.pairwise(files)):
        return False
    addresses = {code - ADDRESS_BASE for _, _, code in units if code < HASH_MIN}
    return all(_extension_begins(directory / f"{at // size * size:020}", at % size) for at in addresses)


def is_complete(control: Control, root: Path, sizes: FileSizes) -> bool:
    """Whether the files that a control file speaks of are there, and can be what was written: users delete
    derived ones, and copy others."""
    size = sizes.commitlog_file_size
    log_min, log_end = control.get(lib.MQ_LOG_MIN), control.get(lib.MQ_LOG_END)
    present = {int(file.name): file for file in segment_files(root / "commitlog")}
    if log_min < 0 or not all(offset in present for offset in range(log_min, log_end, size)):
        return False
    for offset, file in present.items():
        if offset < log_min or size_of(file) not in (size, 0 if offset >= log_end else size):
            return False
        if offset < log_end and head_at(root, offset, size)[0] == 0:
            return False
    newest = _newest_unit(control, root, sizes)
    if newest is None:
        return False
    # Nothing there is what an older copy of the log leaves that was put in its place.
    return newest == -1 or not log_min < newest < log_end or has_bytes(root, newest, size)


def _newest_unit(control: Control, root: Path, sizes: FileSizes) -> int | None:
    """Where the newest message lies that a queue has, as a log offset; -1 if the files of all queues can be
    right, but none was looked into; None if one cannot be right."""
    if not _are_queues_there(control, root, sizes.queue_file_size):
        return None
    queue_size, newest, looked_into = sizes.queue_file_size, -1, 0
    for number, topic, queue_id in control.queues():
        if looked_into == FILES_LOOKED_INTO:
            break
        low, high = control.min_offset(number) * UNIT.size, control.next_offset(number) * UNIT.size
        starts = range(low // queue_size * queue_size, high, queue_size)
        if high == low or looked_into + len(starts) > FILES_LOOKED_INTO:
            continue
        looked_into += len(starts)
        place = _newest_of_queue(control, root, sizes, (topic, queue_id), starts, low, high)
        if place is None:
            return None
        newest = max(newest, place)
    return newest


def _are_queues_there(control: Control, root: Path, file_size: int) -> bool:
    """Whether each queue of the table has its files, with their length, and no other queue has any."""
    queues = root / "consumequeue"
    try:
        fd = os.open(queues, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        count = lib.mq_queue_files_count(control.handle, fd, file_size)
        if count in (lib.MQ_MISSING, lib.MQ_CORRUPT):
            return False
        if check(count, str(queues)) == lib.mq_queue_directories_count(fd):
            return True
    finally:
        os.close(fd)
    # There are others, or the file system does not count them. To read all takes several times as long.
    known = {(topic, queue_id) for _, topic, queue_id in control.queues()}
    return not any(
        segment_files(directory)
        for topic, queue_id, directory in queue_directories(root)
        if (topic, queue_id) not in known
    )


def _newest_of_queue(
    control: Control, root: Path, sizes: FileSizes, queue: tuple[str, int], starts: range, low: int, high: int
) -> int | None:
    """The log offset in the last unit of a queue, whose files of these starts have their length; None if a
    unit that was looked at, or an extension, cannot be right. low, high: of the queue, in bytes."""
    (topic, queue_id), size = queue, sizes.queue_file_size
    files = [root / f"consumequeue/{topic}/{queue_id}/{start:020}" for start in starts]
    seen: list[tuple[int, Unit]] = []
    if first_bad_file(files, size, control.get(lib.MQ_LOG_END), seen=seen) is not None:
        return None
    # An append that was cut short has its units there already.
    is_armed = bool(lib.mq_control_armed(control.handle))
    last = _last_unit(files[-1], (high - UNIT.size) % size, is_armed=is_armed)
    if last is None:
        return None
    units = [last, *(unit for place, unit in seen if place >= low)]
    is_extended = (root / "consumequeue_ext").is_dir() or any(code < HASH_MIN for _, _, code in units)
    if is_extended and not are_extensions_sound(
        root, topic, queue_id, units, sizes.consume_queue_ext_file_size
    ):
        return None
    return last[0]


def _last_unit(file: Path, inside: int, *, is_armed: bool) -> Unit | None:
    """A queue's last unit, at a byte of its last file; None if it is none, or if something follows, unless an
    append was cut short."""
    data = peek(file, inside, 2 * UNIT.size)
    log_offset, size, tags_code = UNIT.unpack(data[: UNIT.size])
    if size <= 0 or (any(data[UNIT.size :]) and not is_armed):
        return None
    return log_offset, size, tags_code
