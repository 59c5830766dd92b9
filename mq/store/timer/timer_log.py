"""The timer log: a unit for each message that was put into the wheel, in the order of the timer topic.

On disk: timerlog/<position of the first byte, 20 digits>, files of 100 MiB; RocketMQ's layout. Positions
count through all files. Integers big-endian:

    offset  size  field
         0     4  size         52
         4     8  previous     position of the unit before of the same slot; -1: none
        12     4  magic        1; + 2: rolled, it goes into the timer topic again; + 4: marker of a recall
        16     8  write_ms     when it was put into the wheel, a multiple of the precision
        24     4  delay_ms     write_ms + delay_ms is in the slot's time
        28     8  log_offset   of the record in the timer topic
        36     4  record_size
        40     4  topic_hash   Java's hash of the real topic
        44     8  mark         0; ours, where RocketMQ leaves 0: delivered, in this life of the store

A file ends where less than 52 + 16 bytes are left; what is left begins with int32 size, int64 0, int32
-875286124.

RocketMQ knows when a message is due to the precision alone: TIMER_OUT_MS, the slot. We know it to the ms:
write_ms + delay_ms is one less than that, which is in the same slot. Where it is the very begin of the slot,
the record says more: TIMER_DELIVER_MS, or its store time + TIMER_DELAY_MS, if that is in the slot of
TIMER_OUT_MS; else the message is due when the slot is over.

RocketMQ: store/timer/TimerLog.java, TimerMessageStore.java.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mq.store.log.commitlog import is_segment_name

__all__ = ["FILE_SIZE", "UNIT_SIZE", "Unit", "directory_of", "files", "units"]

FILE_SIZE = 104_857_600
UNIT = struct.Struct(">iqiqiqiiq")
UNIT_SIZE = UNIT.size
BLANK_SIZE = 16
ROLL, DELETE = 2, 4
assert UNIT_SIZE == 52


class Unit(NamedTuple):
    """What a unit says, and where it is."""

    position: int
    previous: int
    magic: int
    write_ms: int
    delay_ms: int
    log_offset: int
    record_size: int
    topic_hash: int
    mark: int

    @property
    def time_ms(self) -> int:
        """In the slot where it is."""
        return self.write_ms + self.delay_ms


def directory_of(root: Path) -> Path:
    return root / "timerlog"


def files(root: Path) -> list[Path]:
    """The log's files, oldest first."""
    directory = directory_of(root)
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if is_segment_name(path.name))


def units(root: Path) -> Iterator[Unit]:
    """All units, up to where the log ends: before the first that is none."""
    expected: int | None = None
    for path in files(root):
        begin = int(path.name)
        if expected not in (None, begin):
            return
        try:
            file = path.open("rb")
        except FileNotFoundError:
            continue  # Too old to be kept, since its name was read.
        with file:
            at, room = begin, os.fstat(file.fileno()).st_size
            while room - (at - begin) >= UNIT_SIZE + BLANK_SIZE:
                block = file.read(UNIT_SIZE << 10)
                for size, previous, magic, write_ms, delay_ms, *rest in UNIT.iter_unpack(
                    block[: len(block) // UNIT_SIZE * UNIT_SIZE]
                ):
                    if room - (at - begin) < UNIT_SIZE + BLANK_SIZE:
                        break
                    if size != UNIT_SIZE or not magic & 1 or not 0 < magic < 16:
                        return
                    yield Unit(at, previous, magic, write_ms, delay_ms, *rest)
                    at += UNIT_SIZE
        expected = begin + room
