"""Where the log begins, kept apart from the control file: without both, a first file of the log that is lost
would be taken for one that retention deleted.

On disk: mq/log_begin, big-endian:

    offset  size  field
         0     8  log_begin    log offset: all before it was deleted by retention
         8     8  lock_mtime   ns, of the file `lock`: a RocketMQ broker, which changes it, deletes files too
        16     4  crc32        of these

It is on disk before retention deletes a file, so it may name a later offset than that of the first file, but
never an earlier one. Written in place: that needs no room, and a full disk is when files have to go.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from pathlib import Path

from mq.store.native import lib
from mq.store.shared.control import Control
from mq.store.shared.lock_guards import file_lock

__all__ = ["keep_log_begin", "read_log_begin"]

FIELDS = struct.Struct(">qq")
CHECKSUM = struct.Struct(">I")

log = logging.getLogger("mq.store")


def _path(root: Path) -> Path:
    return root / "mq" / "log_begin"


def read_log_begin(root: Path, lock_mtime: int, file_size: int) -> int:
    """Where the log of these files began; -1 if nobody knows."""
    try:
        data = _path(root).read_bytes()
    except OSError:
        return -1
    if len(data) != FIELDS.size + CHECKSUM.size:
        return -1
    fields = data[: FIELDS.size]
    if CHECKSUM.pack(zlib.crc32(fields)) != data[FIELDS.size :]:
        return -1
    begin, known_mtime = FIELDS.unpack(fields)
    return int(begin) if known_mtime == lock_mtime and begin >= 0 and begin % file_size == 0 else -1


def keep_log_begin(root: Path, control: Control) -> None:
    """Write down where the log begins. What cannot be written is not there any more afterwards."""
    path = _path(root)
    try:
        with file_lock(path, 0, "writes down where the log begins") as fd:
            # Under the lock: two processes may delete at a time, and the later offset is to stay.
            fields = FIELDS.pack(control.get(lib.MQ_LOG_MIN), control.get(lib.MQ_LOCK_MTIME))
            data = fields + CHECKSUM.pack(zlib.crc32(fields))
            if os.pread(fd, len(data) + 1, 0) != data:
                os.ftruncate(fd, len(data))
                os.pwrite(fd, data, 0)
                os.fdatasync(fd)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)
        path.unlink(missing_ok=True)
