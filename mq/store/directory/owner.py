"""Files and directories of the store are made here, and belong to the owner of the store.

What a root process makes takes the owner and the group of the directory it is made in: the application, which
has no right to root's files, goes on. What was there before keeps its owner. mq/store/native/base/owner.c
does the same for C.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import mq.store.native  # noqa: F401 - guards call it
from mq.fastpath import Guard, open_guard

__all__ = ["made_file", "make_directory", "open_made", "opened_file"]

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_made(path: str | os.PathLike[str], flags: int = os.O_RDWR, mode: int = 0o600) -> int:
    """A descriptor of a file, which is made if it is missing; never through a link. Raises OSError."""
    path, flags = os.fspath(path), flags | os.O_CLOEXEC | os.O_NOFOLLOW
    if os.geteuid() != 0:
        return os.open(path, flags | os.O_CREAT, mode)
    while True:
        try:
            # Only what this call has made is given away: a file of another may have been linked here.
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            with suppress(FileNotFoundError):
                return os.open(path, flags)
        else:
            _give_to_owner(fd, path)
            return fd


def opened_file(path: str | os.PathLike[str], flags: int = os.O_RDWR) -> Guard:
    """For a with statement, which gives the descriptor of a file that is there, and closes it: whatever a
    signal handler raises, and whenever. Never through a link. Raises OSError."""
    return open_guard(os.fsencode(path), flags | os.O_NOFOLLOW, False)


def made_file(path: str | os.PathLike[str], flags: int = os.O_RDWR) -> Guard:
    """The same of a file that is made if it is missing."""
    return open_guard(os.fsencode(path), flags, True)


def make_directory(path: Path, *, mode: int = 0o700, parents: bool = False) -> None:
    """Make a directory unless it is there, and with `parents` those above it. Raises OSError."""
    if parents and not path.parent.exists():
        make_directory(path.parent, mode=0o777, parents=True)
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    if os.geteuid() == 0:
        with suppress(OSError), opened_file(path, DIRECTORY) as fd:
            _give_to_owner(fd, path)


def _give_to_owner(fd: int, path: str | Path) -> None:
    with suppress(OSError):  # A file system or a name space in which that cannot be: it stays root's.
        directory = Path(path).parent.stat()
        if directory.st_uid or directory.st_gid:
            os.fchown(fd, directory.st_uid, directory.st_gid)
