"""Starting a thread, where the system may have none left."""

from __future__ import annotations

import threading

from mq.errors import InsufficientResources

__all__ = ["start"]


def start(thread: threading.Thread) -> None:
    """Start it. Raises InsufficientResources where there can be no more threads."""
    try:
        thread.start()
    except RuntimeError as error:
        if not str(error).startswith("can't start new thread"):
            raise
        raise InsufficientResources(
            f"thread {thread.name} cannot be started: raise the limit of threads (ulimit -u, pids.max of the"
            " container), or free some memory",
            resource="threads",
        ) from error
