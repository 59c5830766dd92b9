"""The locks of a store for with statements, and what is said when one is not to be had.

Each function returns a guard (mq/fastpath/guards.c): `with file_lock(...):` gives the lock back however the
statement is left, also by an exception that a signal handler raises between two instructions of Python. A
wait ends within the limit of the call that it is part of (time_limit), and may be interrupted.

Work under a lock may be cut short by such an exception. It leaves what a process that dies there would leave:
something that the next one under the lock takes for what it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

from mq.errors import MQError, StoreLocked
from mq.fastpath import (
    Guard,
    byte_guard,
    close_guarded_files,
    file_guard,
    log_guard,
    mutex_guard,
    thread_guard,
    time_guard,
)
from mq.store.native import check, ffi, lib
from mq.store.os_errors import named
from mq.store.shared.control import Control
from mq.store.shared.members import living
from mq.store.shared.process_state import describe, process_state

__all__ = [
    "LOCK_TIMEOUT",
    "append_lock",
    "byte_lock",
    "control_lock",
    "file_lock",
    "locked_by_others",
    "thread_lock",
    "time_limit",
]

LOCK_TIMEOUT = 10.0  # seconds, of a call that has no time limit of its own
os.register_at_fork(after_in_child=close_guarded_files)

Busy = Callable[[], MQError]


def append_lock(log: Any, path: Path) -> Guard:
    """The lock under which messages are appended. What a dead owner left is repaired first."""
    return log_guard(log, int(ffi.cast("uintptr_t", log)), LOCK_TIMEOUT, partial(_refused, path))


def control_lock(control: Control, which: int, path: Path, timeout: float = LOCK_TIMEOUT) -> Guard:
    """One of lib.MQ_LOCK_..., without a repair."""
    handle = control.handle
    return mutex_guard(handle, int(ffi.cast("uintptr_t", handle)), which, timeout, partial(_refused, path))


def _refused(path: Path, result: int) -> NoReturn:
    check(result, str(path))
    raise AssertionError(result)


def byte_lock(fd: int, byte: int, timeout: float, busy: Busy) -> Guard:
    """A byte of an open file, for seconds; busy() makes the error after that."""
    return byte_guard(fd, byte, timeout, partial(_busy, busy))


def file_lock(
    path: Path,
    byte: int,
    doing: str,
    timeout: float = LOCK_TIMEOUT,
    *,
    create: bool = True,
    busy: Busy | None = None,
) -> Guard:
    """A byte of a file, which is opened for this alone: its descriptor is what the with statement gives.

    `doing` is what others do under the lock, for the StoreLocked that is raised when they do not let go of it
    in time, unless busy() makes another error. Errors of the opening have their names: see
    mq/store/os_errors.py.
    """
    failed = partial(_busy_file, path, doing, monotonic(), busy)
    try:
        return file_guard(bytes(path), byte, timeout, failed, create)
    except OSError as error:
        found = named(error, path)
        if found is error:
            raise
        raise found from error


def _busy_file(path: Path, doing: str, since: float, busy: Busy | None, result: int) -> NoReturn:
    if busy is not None:
        raise busy()
    if result == lib.MQ_REENTERED:
        check(result, str(path))
    raise locked_by_others(path, doing, since)


def thread_lock(lock: Any, timeout: float, busy: Busy, reentered: Busy) -> Guard:
    """A threading.Lock. reentered() makes the error for a thread that has it already: in what a signal
    handler interrupted, which would wait for itself."""

    def failed(result: int) -> NoReturn:
        raise reentered() if result == lib.MQ_REENTERED else busy()

    return thread_guard(lock, timeout, failed)


def time_limit(seconds: float) -> Guard:
    """Until when this thread waits for locks, in whatever it calls; a limit around it counts as well."""
    return time_guard(seconds)


def _busy(busy: Busy, _result: int) -> NoReturn:
    raise busy()


def locked_by_others(path: Path, doing: str, since: float) -> StoreLocked:
    """The error for a lock of a file under mq/ that was waited for since then, in monotonic seconds. The
    kernel does not tell which process has it: of those that have the store open one that is stopped is named,
    or the only one."""
    pid = _suspect(path)
    text = f"{path}: another process has been {doing} for more than {monotonic() - since:.2g} s"
    if pid is not None:
        text += f", most likely {describe(pid)}"
    return StoreLocked(text, path=str(path), pid=pid)


def _suspect(path: Path) -> int | None:
    root = next((parent for parent in path.parents if (parent / "members").is_file()), None)
    if root is None:
        return None
    pids = {member.pid for member in living(root / "members")} - {os.getpid()}
    stopped = sorted(pid for pid in pids if process_state(pid).is_stopped)
    if stopped:
        return stopped[0]
    return pids.pop() if len(pids) == 1 else None
