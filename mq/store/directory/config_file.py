"""A file of config/ is replaced as a whole: old state or new one is what is found, also after a crash."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from mq.store.directory.owner import made_file
from mq.store.directory.root import sync_names
from mq.store.os_errors import named_errors

__all__ = ["write_config"]


def write_config(
    path: Path, text: str | Callable[[int], str], *, check: Callable[[], object] | None = None
) -> None:
    """Replace a config file so that either the old or the new state is found; the old one stays as .bak.

    text may be a function that gets the descriptor of the new file: a file that tells of itself. check is
    called right before the file is replaced, and may raise what forbids that.
    """
    with named_errors(path):
        _write_config(path, text, check)


def _write_config(path: Path, text: str | Callable[[int], str], check: Callable[[], object] | None) -> None:
    fresh = path.with_name(path.name + ".new")
    with made_file(fresh, os.O_WRONLY | os.O_TRUNC) as fd:
        data = (text if isinstance(text, str) else text(fd)).encode()
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    backup = path.with_name(path.name + ".bak")
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists():
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    if check is not None:
        check()
    fresh.replace(path)
    sync_names(path.parent)
