"""The checkpoint: up to which store time everything is known to be on disk.

On disk: checkpoint, 4096 bytes, of which, big-endian:

    offset  size  field
         0     8  physic_time   ms: every record stored until then is on disk
         8     8  logics_time   ms: so is every queue unit
        16     8  index_time    ms: index files that end until then are full and on disk
        24     8  master_flushed_offset   unused here
        32     8  confirm_offset          unused here

Recovery after a crash of the machine starts at the last file whose first record is older than the smaller
of the first two, less three seconds. Too early a time costs only work; so each is set after the sync it
stands for.

RocketMQ: store/StoreCheckpoint.java.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from mq.store.directory.owner import made_file

__all__ = ["Checkpoint", "read_checkpoint", "write_checkpoint"]

SIZE = 4096
FIELDS = struct.Struct(">qqqqq")
MARGIN_MS = 3000
TIME_MAX = 1 << 44  # Later is nonsense.
assert FIELDS.size == 40


@dataclass(frozen=True, slots=True)
class Checkpoint:
    physic_time: int = 0
    logics_time: int = 0
    index_time: int = 0

    @property
    def start_time(self) -> int:
        """Records stored until then need not be looked at again."""
        return max(0, min(self.physic_time, self.logics_time) - MARGIN_MS)


def read_checkpoint(root: Path) -> Checkpoint:
    """What is there; zeros, which are always safe, if it is missing, short or nonsense."""
    try:
        data = (root / "checkpoint").read_bytes()
    except OSError:
        return Checkpoint()
    if len(data) < FIELDS.size:
        return Checkpoint()
    times = FIELDS.unpack_from(data)[:3]
    return Checkpoint(*(time if 0 <= time < TIME_MAX else 0 for time in times))


def write_checkpoint(root: Path, checkpoint: Checkpoint, *, sync: bool) -> None:
    with made_file(root / "checkpoint") as fd:
        if os.fstat(fd).st_size != SIZE:
            os.ftruncate(fd, SIZE)
        fields = FIELDS.pack(checkpoint.physic_time, checkpoint.logics_time, checkpoint.index_time, 0, 0)
        os.pwrite(fd, fields, 0)
        if sync:
            os.fdatasync(fd)
