"""What stands where a queue's directory or file belongs, and is none, goes to mq/damaged: it would keep the
queue from being made anew. Where a link leads to another file system, it stays there under another name."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path

from mq.store.directory.owner import make_directory
from mq.store.directory.root import sync_names

__all__ = ["set_aside"]

_log = logging.getLogger("mq.store")


def set_aside(root: Path, paths: Sequence[Path]) -> None:
    """Move these out of the way, and say so in the log."""
    damaged = root / "mq" / "damaged"
    make_directory(damaged)
    for path in paths:
        target = _free(damaged / "-".join(path.relative_to(root).parts))
        try:
            path.rename(target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # No topic, queue or file of one has a dot in its name: it is in the way of nothing there.
            target = _free(path.with_name(f"damaged.{path.name}"))
            path.rename(target)
        sync_names(path.parent)
        _log.warning(
            "%s is no file or directory of a queue, and was moved to %s: the queue is made anew from the log",
            *(path, target),
        )
    sync_names(damaged)


def _free(path: Path) -> Path:
    """This, or with a number behind it, if there is something already."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(1))
    return next(each for each in chain([path], numbered) if not os.path.lexists(each))
