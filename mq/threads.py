"""Starting a thread, where the system may have none left; a lock that no signal handler enters again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from mq.errors import InsufficientResources, StoreLocked

__all__ = ["HandlerLock", "refuse", "start"]


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


class HandlerLock:
    """A lock among threads, for with statements: `with lock.entered():`. A signal handler whose thread has it
    already is refused. A callback that its holder makes by `lock.call` may enter it once more.
    """

    __slots__ = ("_calling", "_doing", "_lock", "_nested", "_path")

    def __init__(self, doing: str, path: str) -> None:
        self._doing = doing
        self._path = path
        # RLocks, since these tell whether this thread has them; none is taken twice.
        self._lock: Any = threading.RLock()
        self._nested: Any = threading.RLock()
        self._calling = threading.Lock()

    def entered(self) -> Any:
        """The lock to take. Raises StoreLocked; does not wait."""
        lock = self._lock
        if not lock._is_owned():
            return lock
        if self._calling.locked() and not self._nested._is_owned():
            return self._nested
        raise StoreLocked(
            f"a signal handler calls what its thread is in the middle of ({self._doing}): have the handler"
            " set a flag, and call it from a thread",
            path=self._path,
            pid=os.getpid(),
        )

    def call(self, callback: Callable[..., object], *arguments: object) -> None:
        """Make a callback, with the lock held."""
        if self._calling.locked():  # A callback that closes its caller is within one.
            callback(*arguments)
            return
        with self._calling:
            callback(*arguments)
