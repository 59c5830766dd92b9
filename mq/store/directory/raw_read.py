"""A few bytes of a store's files, read before anything of them is mapped.

Nothing is read ahead: that takes a millisecond, and leaves large folios behind, of which a flush writes the
whole for one small message. What is read is not verified.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from mq.errors import MQError
from mq.message import MessageExt
from mq.store.native import lib

__all__ = ["first_keyed", "head_at", "peek"]

HEAD = struct.Struct(">ii20xq")  # total_size, magic, log_offset: see mq/store/log/commitlog.py
KEYLESS_MAX = 1000  # Records without a key in a row: a broker's own few, or a part of the index is missing.


def peek(path: Path, offset: int, size: int) -> bytes:
    """Raises FileNotFoundError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return os.pread(fd, size, offset)
    finally:
        os.close(fd)


def head_at(root: Path, log_offset: int, file_size: int) -> tuple[int, int]:
    """Size and magic of what begins at a log offset, a record or a BLANK; 0, 0 if neither does."""
    try:
        head = peek(_file(root, log_offset, file_size), log_offset % file_size, HEAD.size)
    except FileNotFoundError:
        return 0, 0
    if len(head) < HEAD.size:
        head += bytes(HEAD.size - len(head))
    size, magic, own_offset = HEAD.unpack(head)
    room = file_size - log_offset % file_size
    if magic == lib.MQ_MAGIC_BLANK:
        return room, magic
    is_record = magic in (lib.MQ_MAGIC_V1, lib.MQ_MAGIC_V2) and own_offset == log_offset
    return (size, magic) if is_record and 0 < size <= room else (0, 0)


def first_keyed(root: Path, log_offset: int, until: int, file_size: int, *, behind: bool = False) -> int:
    """Where the first record from a log offset on is that the index has a key of; `until` if there is none
    before, or nobody can tell. behind: the record at log_offset itself does not count."""
    for _ in range(KEYLESS_MAX):
        if log_offset >= until:
            break
        size, magic = head_at(root, log_offset, file_size)
        if size == 0:
            break  # Damaged: the index has none of its keys.
        if magic != lib.MQ_MAGIC_BLANK and not behind and _is_keyed(root, log_offset, size, file_size):
            return log_offset
        behind = False
        log_offset += size
    else:
        return log_offset
    return until


def _is_keyed(root: Path, log_offset: int, size: int, file_size: int) -> bool:
    message = MessageExt(peek(_file(root, log_offset, file_size), log_offset % file_size, size), "")
    try:
        is_rolled_back = message.sys_flag & lib.MQ_FLAG_TRANSACTION == lib.MQ_FLAG_TRANSACTION
        return not is_rolled_back and any(message.properties.get(name) for name in ("UNIQ_KEY", "KEYS"))
    except (MQError, ValueError, LookupError, struct.error):
        return False


def _file(root: Path, log_offset: int, file_size: int) -> Path:
    return root / "commitlog" / f"{log_offset // file_size * file_size:020}"
