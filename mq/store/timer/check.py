"""Every invariant of the timer wheel and its log, as a list of what breaks it.

    sizes    wheel, files of the log and check have RocketMQ's lengths; the log has no gap
    units    each has a sound magic, leads to one before it of the same slot, and stands where its record is;
             one that is done with may be linked as slots of another length were
    slots    each is in its place, and its last unit, of that slot, is in the log; no unit that is to come is
             in no slot
    check    says no more than there is

Looks at files alone, so what it finds beside running processes may be of another moment: then the slots and
the check are not looked at.
"""

from __future__ import annotations

import itertools
import os
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

from mq.store.directory.root import size_of
from mq.store.timer import timer_log
from mq.store.timer import wheel as timerwheel
from mq.store.timer.checkpoint import path_of, read_timer_check
from mq.store.timer.timer_log import Unit
from mq.store.timer.wheel import Slot

__all__ = ["problems"]

LISTED_MAX = 100
TOPIC = "rmq_sys_wheel_timer"
QUEUE_UNIT = struct.Struct(">qiq")
SLOT_MS_MAX = 60_000  # timer_precision_ms
BLANK_SIZE = (1 << 31) - 1  # of a unit before the first message of a queue that begins late


def problems(
    root: str | os.PathLike[str], *, is_used: bool = False, file_size: int = timer_log.FILE_SIZE
) -> Iterator[str]:
    """Yield what is wrong, in words; nothing if there is no wheel. is_used: somebody may be at work."""
    root = Path(os.fspath(root))
    found = _all(root, is_used, file_size)
    for problem in itertools.islice(found, LISTED_MAX):
        yield f"{problem}; it is made anew when the store is next used"
    if next(found, None) is not None:
        yield f"{root}: and more of these in the timer wheel or its log"


def _all(root: Path, is_used: bool, file_size: int) -> Iterator[str]:
    check = read_timer_check(root)
    if check is None and not is_used:
        yield f"{path_of(root)} is damaged"
    wheel, files = timerwheel.path_of(root), timer_log.files(root)
    if not wheel.exists() and not files:
        if check is not None and check.log_end > 0:
            yield f"{wheel} and {timer_log.directory_of(root)} are missing"
        return
    size = timerwheel.SLOT_COUNT * timerwheel.SLOT_SIZE
    if not wheel.exists():
        yield f"{wheel} is missing"
    for path, wanted in [(wheel, size), *((path, file_size) for path in files)]:
        found = size_of(path)
        if found is not None and found != wanted and not (is_used and found == 0):
            yield f"{path}: {found:,} bytes, not {wanted:,}"
    for before, after in itertools.pairwise(files):
        between = before.parent / f"{int(before.name) + file_size:020}"
        # Names are read while the oldest go and new ones come.
        changed = not before.exists() or (between.name < after.name and between.exists())
        if between.name != after.name and not changed:
            yield f"{before.parent}: no file between {before.name} and {after.name}"
    units, slots = list(timer_log.units(root)), list(timerwheel.slots(root))
    precision = _precision(units, slots)
    read = check.read_ms // precision if check is not None else 0
    yield from _of_units(units, precision, units[0].position if units else 0, read)
    yield from _of_records(root, units)
    if is_used or check is None:
        return
    end = units[-1].position + timer_log.UNIT_SIZE if units else 0
    if check.log_end > end:
        yield f"timer log: it ends at {end}, and was on disk up to {check.log_end}"
    yield from _of_slots(units, slots, read, precision)


def _of_units(units: list[Unit], precision: int, begin: int, read: int) -> Iterator[str]:
    time_of: dict[int, int] = {}
    for unit in units:
        time_of[unit.position] = unit.time_ms
        if not -1 <= unit.previous < unit.position:
            yield f"timer log, unit at {unit.position}: it leads to {unit.previous}"
        elif unit.previous >= begin and not _is_one_slot(unit, time_of.get(unit.previous), precision, read):
            yield f"timer log, unit at {unit.position}: it leads to one of another slot, at {unit.previous}"


def _is_one_slot(unit: Unit, before_ms: int | None, precision: int, read: int) -> bool:
    """Whether a unit is in one slot with the one that it leads to."""
    if before_ms is None:
        return False
    slot = unit.time_ms // precision
    is_done = unit.mark != 0 or slot < read
    return slot == before_ms // precision or (is_done and abs(unit.time_ms - before_ms) < SLOT_MS_MAX)


def _of_records(root: Path, units: list[Unit]) -> Iterator[str]:
    """Whether each unit is of a message of the timer topic, as far as its queue still has units of them."""
    offsets, sizes = array("q"), array("i")
    for path in sorted((root / "consumequeue" / TOPIC / "0").glob("[0-9]*")):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            del offsets[:], sizes[:]  # Too old to be kept, since its name was read, as are those before.
            continue
        for log_offset, size, _ in QUEUE_UNIT.iter_unpack(content):
            if size == 0:
                break
            if size == BLANK_SIZE:
                continue
            offsets.append(log_offset)
            sizes.append(size)
    for unit in units:
        place = bisect_left(offsets, unit.log_offset)
        if offsets and unit.log_offset < offsets[0]:
            continue
        if place == len(offsets) or (offsets[place], sizes[place]) != (unit.log_offset, unit.record_size):
            yield (
                f"timer log, unit at {unit.position}: the timer topic has no such record at {unit.log_offset}"
            )


def _of_slots(units: list[Unit], slots: list[Slot], read: int, precision: int) -> Iterator[str]:
    times = range(read, read + timerwheel.SLOT_COUNT)
    last = {time: unit.position for unit in units if (time := unit.time_ms // precision) in times}
    found = {slot.time: slot for slot in slots if slot.time in times}
    for slot in slots:
        if slot.time and slot.time % timerwheel.SLOT_COUNT != slot.number:
            yield f"timer wheel, slot {slot.number}: it says that it is of time {slot.time}"
    for time, slot in found.items():
        if last.get(time, -1) != slot.last:
            yield (
                f"timer wheel, slot {slot.number}: its last unit is at {last.get(time, -1)} of the timer log,"
                f" and not at {slot.last}"
            )
    for time in last.keys() - found.keys():
        # Once delivered it may be in none: what was not when the wheel was made anew, is.
        if any(unit.time_ms // precision == time and not unit.mark for unit in units):
            yield f"timer wheel: no slot for time {time}, of which the timer log has units"


def _precision(units: list[Unit], slots: list[Slot]) -> int:
    """How long a slot is, as the slots show; RocketMQ's if there is none."""
    at = {unit.position: unit.time_ms for unit in units}
    for slot in slots:
        time_ms = at.get(slot.last)
        if time_ms is not None and slot.time > 0:
            for precision in (round(time_ms / slot.time), time_ms // slot.time):
                if precision > 0 and time_ms // precision == slot.time:
                    return precision
    return 1000
