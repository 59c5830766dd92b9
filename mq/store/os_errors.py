"""The errors of system calls under the names that mq has for them.

What a user can act on has a name: no space, no permission, something else in the place of a file, too few
descriptors, too little memory.
Everything else stays the OSError that it is.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mq.errors import InsufficientResources, MQError, NotPermitted, StoreCorrupted, StoreFull

__all__ = ["named", "named_errors"]

SHORTAGES = {
    errno.EMFILE: ("descriptors", "raise the limit of this process (ulimit -n)"),
    errno.ENFILE: ("descriptors", "raise the limit of this machine (fs.file-max)"),
    errno.ENOMEM: ("memory", "free some, or raise the limit on maps (vm.max_map_count, ulimit -v)"),
}


@contextmanager
def named_errors(root: Path) -> Iterator[None]:
    """Raise the MQError of what fails within, where there is one: see named."""
    try:
        yield
    except (OSError, MemoryError) as error:
        found = named(error, root)
        if found is error:
            raise
        raise found from error


def named(error: OSError | MemoryError, root: Path) -> Exception:
    """StoreFull, NotPermitted, StoreCorrupted or InsufficientResources for what means it; else the error."""
    if isinstance(error, MQError):
        return error
    if isinstance(error, MemoryError):
        return InsufficientResources(f"{root}: there is no memory left", resource="memory")
    path = str(error.filename or root)
    number = error.errno
    if number in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"no space left for {path}: free some, then try again", path=path)
    if number == errno.EFBIG:
        return StoreFull(
            f"{path} would be longer than a file of this process may be: raise the limit (ulimit -f)",
            path=path,
        )
    if number in SHORTAGES:
        resource, way_out = SHORTAGES[number]
        return InsufficientResources(f"{path}: {error.strerror}: {way_out}", resource=resource)
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NotPermitted(
            f"{path} may not be used by this user ({error.strerror}): change its owner or mode, or use"
            " another directory"
        )
    if number in (errno.EISDIR, errno.ENOTDIR, errno.ELOOP) and error.filename is not None:
        return StoreCorrupted(
            f"{path}: something else stands where a file or directory of the store belongs"
            f" ({error.strerror})",
            path=path,
        )
    return error
