"""The errors of system calls under the names that mq has for them.

What a user can act on has a name: no space, no permission, something else in the place of a file.
Everything else stays the OSError that it is.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mq.errors import NotPermitted, StoreCorrupted, StoreFull

__all__ = ["named_errors"]


@contextmanager
def named_errors(root: Path) -> Iterator[None]:
    """Raise StoreFull, NotPermitted or StoreCorrupted for the OSErrors that mean it."""
    try:
        yield
    except OSError as error:
        path = str(error.filename or root)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(f"no space left for {path}: free some, then try again", path=path) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise NotPermitted(
                f"{path} may not be used by this user ({error.strerror}): change its owner or mode, or use"
                " another directory"
            ) from error
        if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.ELOOP) and error.filename is not None:
            raise StoreCorrupted(
                f"{path}: something else stands where a file or directory of the store belongs"
                f" ({error.strerror})",
                path=path,
            ) from error
        raise
