"""The locks of a store for with statements, and what is said when one is not to be had.

Each function returns a guard (mq/fastpath/guards.c): `with file_lock(...):` gives the lock back however the
statement is left, also by an exception that a signal handler raises between two instructions of Python. A
wait ends within the limit of the call that it is part of (time_limit), and may be interrupted.

Work under a lock may be cut short by such an exception. It leaves what a process that dies there would leave:
something that the next one under the lock takes for what it is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

from mq.errors import MQError, StoreLocked
from mq.fastpath import (
    Guard,
    TimeLimit,
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
    "held_by_stopped",
    "locked_by_others",
    "thread_lock",
    "thread_locks",
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
    failed = partial(_busy_file, path, byte, doing, monotonic(), busy)
    try:
        return file_guard(bytes(path), byte, timeout, failed, create)
    except OSError as error:
        found = named(error, path)
        if found is error:
            raise
        raise found from error


def _busy_file(path: Path, byte: int, doing: str, since: float, busy: Busy | None, result: int) -> NoReturn:
    if busy is not None:
        raise busy()
    if result == lib.MQ_REENTERED:
        check(result, str(path))
    raise locked_by_others(path, doing, since, byte)


def thread_lock(lock: Any, timeout: float, busy: Busy, reentered: Busy) -> Guard:
    """A threading.Lock. reentered() makes the error for a thread that has it already: in what a signal
    handler interrupted, which would wait for itself."""

    def failed(result: int) -> NoReturn:
        raise reentered() if result == lib.MQ_REENTERED else busy()

    return thread_guard(lock, timeout, failed)


def thread_locks(path: Path, doing: str, timeout: float = LOCK_TIMEOUT) -> Callable[[], Guard]:
    """A lock among the threads of this process, for with statements: `with locked():`. Threads that have it
    are `doing` something with what `path` is the file of. Raises StoreLocked, at once for a signal handler
    whose thread has it already."""
    return partial(thread_guard, threading.Lock(), timeout, partial(_busy_here, path, doing))


def _busy_here(path: Path, doing: str, result: int) -> NoReturn:
    if result == lib.MQ_REENTERED:
        text = (
            f"{path}: a signal handler calls what its thread is in the middle of ({doing}): have the handler"
            " set a flag, and call it from a thread"
        )
    else:
        text = f"{path}: another thread of this process is {doing}: {_what_it_waits_for(_pids(path))}"
    raise StoreLocked(text, path=str(path), pid=os.getpid())


def time_limit(seconds: float) -> TimeLimit:
    """Until when this thread waits for locks, in whatever it calls; a limit around it counts as well."""
    return time_guard(seconds)


def _busy(busy: Busy, _result: int) -> NoReturn:
    raise busy()


def locked_by_others(path: Path, doing: str, since: float, byte: int | None = None) -> StoreLocked:
    """The error for a lock of a file under mq/ that was waited for since then, in monotonic seconds. The
    kernel tells by the byte which process has it, where it may be asked. Else, of those that have the store
    open, one that is stopped is named, or the only one."""
    pids = _pids(path)
    pid = _holder(path, byte, pids) if byte is not None else None
    seconds = f"{monotonic() - since:.2g} s"
    if pid == os.getpid():
        text = f"{path}: another thread of this process has been {doing} for more than {seconds}"
        return StoreLocked(f"{text}: {_what_it_waits_for(pids)}", path=str(path), pid=pid)
    text = f"{path}: another process has been {doing} for more than {seconds}"
    if pid is not None:
        text += f": {describe(pid)}"
    elif (pid := _suspect(pids - {os.getpid()})) is not None:
        text += f", most likely {describe(pid)}"
    return StoreLocked(text, path=str(path), pid=pid)


def _pids(path: Path) -> set[int]:
    """The processes that have the store open."""
    root = next((parent for parent in path.parents if (parent / "members").is_file()), None)
    return set() if root is None else {member.pid for member in living(root / "members")}


def _holder(path: Path, byte: int, pids: Iterable[int]) -> int | None:
    """The process that has locked a byte of a file: each shows the locks of its descriptors."""
    with suppress(OSError):
        inode = path.stat().st_ino
        for pid in pids:
            with suppress(OSError):  # It ended meanwhile, or is another user's.
                for each in Path(f"/proc/{pid}/fdinfo").iterdir():
                    if any(_covers(line.split(), inode, byte) for line in _lines(each)):
                        return pid
    return None


def held_by_stopped(path: Path) -> set[int]:
    """The bytes of a file under mq/ that stopped processes have locked, each by itself."""
    found: set[int] = set()
    stopped = [pid for pid in _pids(path) if process_state(pid).is_stopped]
    with suppress(OSError):
        inode = str(path.stat().st_ino)
        for pid in stopped:
            with suppress(OSError):  # It is another user's.
                lines = [
                    line.split() for each in Path(f"/proc/{pid}/fdinfo").iterdir() for line in _lines(each)
                ]
                locks = [words for words in lines if len(words) == 9 and words[0] == "lock:"]
                found.update(int(words[7]) for words in locks if words[6].rpartition(":")[2] == inode)
    return found


def _lines(path: Path) -> list[str]:
    with suppress(OSError):  # It was closed meanwhile.
        return path.read_text().splitlines()
    return []


def _covers(words: list[str], inode: int, byte: int) -> bool:
    """Whether it is a lock of this byte: lock: 1: OFDLCK ADVISORY WRITE -1 <major>:<minor>:<inode> <begin>
    <end>, the end included, or EOF."""
    if len(words) != 9 or words[0] != "lock:" or words[6].rpartition(":")[2] != str(inode):
        return False
    return int(words[7]) <= byte and (words[8] == "EOF" or byte <= int(words[8]))


def _what_it_waits_for(pids: set[int]) -> str:
    """Of a thread of this process that has a lock for so long."""
    pid = _stopped(pids)
    return "see what it waits for" if pid is None else f"it waits most likely for {describe(pid)}"


def _suspect(pids: set[int]) -> int | None:
    pid = _stopped(pids)
    if pid is not None:
        return pid
    return pids.pop() if len(pids) == 1 else None


def _stopped(pids: set[int]) -> int | None:
    return min((pid for pid in pids if process_state(pid).is_stopped), default=None)
