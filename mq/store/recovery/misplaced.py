"""What stands where a queue's directory or file belongs, and is none, goes to mq/damaged: it would keep the
queue from being made anew."""

from __future__ import annotations

import logging
from collections.abc import Sequence
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
        name = "-".join(path.relative_to(root).parts)
        target = next(
            each
            for number in range(1 << 30)
            if not (each := damaged / (f"{name}.{number}" if number else name)).exists()
        )
        path.rename(target)
        sync_names(path.parent)
        _log.warning(
            "%s is no file or directory of a queue, and was moved to %s: the queue is made anew from the log",
            *(path, target),
        )
    sync_names(damaged)
