"""A log that is put back from a backup, beside files that are newer than it."""

from __future__ import annotations

import shutil
from pathlib import Path

# What docs/files.md has deleted, and all that is allowed to be.
DERIVED = {
    "what is derived": ("consumequeue", "index", "mq/control"),
    "all of mq": ("consumequeue", "index", "mq"),
}


def put_log_back(directory: Path, backup: Path, deleted: tuple[str, ...]) -> None:
    """Restore the log of a backup, and delete the files that are made of it."""
    shutil.rmtree(directory / "commitlog")
    shutil.copytree(backup / "commitlog", directory / "commitlog")
    for name in deleted:
        path = directory / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
