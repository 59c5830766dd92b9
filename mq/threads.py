"""Starting a thread, where the system may have none left."""

from __future__ import annotations

import threading
from typing import NoReturn

from mq.errors import InsufficientResources

__all__ = ["refuse", "start"]


def start(thread: threading.Thread) -> None:
    """Start it. Raises InsufficientResources where there can be no more threads."""
    try:
        thread.start()
    except RuntimeError as error:
        refuse(error, f"thread {thread.name}")


def refuse(error: RuntimeError, what: str) -> NoReturn:
    """Raise what such an error means: InsufficientResources, if it says so."""
    if not str(error).startswith("can't start new thread"):
        raise error
    raise InsufficientResources(
        f"{what} cannot be started: raise the limit of threads (ulimit -u, pids.max of the container), or"
        " free some memory",
        resource="threads",
    ) from error
