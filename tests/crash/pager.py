"""A process that syncs pages in all the ways there are, for the test of the recorder: see test_replay.py."""

from __future__ import annotations

import ctypes
import mmap
import os

__all__ = ["pager"]

PAGE = 4096
PUNCH = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE


def pager(root: str) -> None:
    """Writes pages of a file and syncs them, in all the ways there are: see test_replay.py."""
    path = f"{root}/pages"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, 3 * PAGE)
    held = mmap.mmap(fd, 3 * PAGE)
    for page, letter in enumerate((b"a", b"b", b"c")):
        held[page * PAGE : (page + 1) * PAGE] = letter * PAGE
    held.flush(PAGE, PAGE)
    held.flush(PAGE, PAGE)
    other = os.open(path, os.O_RDWR)
    os.fdatasync(other)
    punch = ctypes.CDLL(None, use_errno=True).fallocate
    punch.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    assert punch(other, PUNCH, 2 * PAGE, PAGE) == 0
    os.fsync(fd)
