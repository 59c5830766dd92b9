"""The timer wheel: for each moment of the days to come, which messages are due.

On disk: timerwheel, 1,209,600 slots of 32 bytes; RocketMQ's layout. A moment is as long as the precision, a
second unless the broker says otherwise, so the wheel turns once in fourteen days. Integers big-endian:

    offset  size  field
         0     8  time         ms / precision; the slot's number is that modulo 1,209,600
         8     8  first        position of the slot's first unit in the timer log
        16     8  last         and of its last one, from which each leads to the one before
        24     4  messages     how many, less those that were recalled
        28     4  magic        0, unused

A slot is not emptied when its time has passed: it is in use while its time is the one that is asked for. What
is in no timer log is in no slot: the wheel can be made anew from the log (see timer_log.py), and that from
the timer topic.

RocketMQ: store/timer/TimerWheel.java, Slot.java.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["SLOT_COUNT", "SLOT_SIZE", "Slot", "path_of", "slots"]

SLOT_COUNT = 1_209_600
SLOT = struct.Struct(">qqqii")
SLOT_SIZE = SLOT.size
assert SLOT_SIZE == 32


class Slot(NamedTuple):
    """What a slot says; `number` is its place in the file."""

    number: int
    time: int
    first: int
    last: int
    messages: int


def path_of(root: Path) -> Path:
    return root / "timerwheel"


def slots(root: Path) -> Iterator[Slot]:
    """All slots that have been used, in the order of the file; none if there is no such file."""
    try:
        file = path_of(root).open("rb")
    except FileNotFoundError:
        return
    with file:
        end = 0
        while True:
            try:
                begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return  # A hole up to the end of the file, which is most of one.
            end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            begin -= begin % SLOT_SIZE
            file.seek(begin)
            while begin < end and (block := file.read(min(SLOT_SIZE << 10, end - begin))):
                yield from _used(block, begin // SLOT_SIZE)
                begin += len(block)


def _used(block: bytes, number: int) -> Iterator[Slot]:
    """The slots in use of a piece of the file, which begins with this one."""
    if block.count(0) == len(block):
        return
    whole = block[: len(block) // SLOT_SIZE * SLOT_SIZE]
    for place, (time, first, last, messages, _) in enumerate(SLOT.iter_unpack(whole), number):
        if time or first or last or messages:
            yield Slot(place, time, first, last, messages)
