"""The data plane in C, and the one table from its results to errors.

Only modules of `mq.store` import this. No cdata leaves them.
"""

import errno
import os
from pathlib import Path
from typing import Any

from mq.errors import (
    BrokerClosed,
    MQError,
    NotPermitted,
    StoreCorrupted,
    StoreFull,
    StoreLocked,
    StorePoisoned,
)
from mq.fastpath import bind_guards
from mq.store.native import _native  # type: ignore[attr-defined]  # made by the build
from mq.store.os_errors import named
from mq.store.shared.process_state import describe

lib: Any = _native.lib
ffi: Any = _native.ffi

__all__ = ["check", "ffi", "lib"]

# What the guards of mq.fastpath call.
GUARDED = (
    "mq_control_enter",
    "mq_control_leave",
    "mq_control_abandon",
    "mq_log_enter",
    "mq_log_control",
    "mq_wait_deadline",
    "mq_create_file",
    "mq_dedup_lock",
    "mq_dedup_unlock",
    "mq_dedup_stripe",
)
bind_guards(*(int(ffi.cast("uintptr_t", ffi.addressof(lib, name))) for name in GUARDED))

# By number: see control.h.
LOCKS = (
    "the lock for appending",
    "the lock for flushing",
    "the lock of the index",
    "the lock of the timer wheel",
)
# Something else stands where one of our files should: a directory, a file, a link.
MISPLACED = (errno.EISDIR, errno.ENOTDIR, errno.ELOOP)


def check(result: int, path: str = "") -> int:
    """The result of a C call, or the error that it stands for.

    `path` names what the call was about. Raises the MQError of the code; OSError where a system call
    failed for a reason that is none of ours.
    """
    if result >= 0:
        return result
    raise _error(result, ffi.errno, path)


def _error(result: int, number: int, path: str) -> Exception:
    where = path or "the store"
    if result in (lib.MQ_CORRUPT, lib.MQ_INVALID) or (result == lib.MQ_IO and number in MISPLACED):
        return StoreCorrupted(f"{where} holds bytes that contradict its layout", path=path)
    if result in (lib.MQ_BUSY, lib.MQ_REENTERED, lib.MQ_DEPOSED):
        return _locked(result, where, path)
    if result == lib.MQ_MEMORY:
        return named(MemoryError(), Path(where))
    if result in (lib.MQ_IO, lib.MQ_UNSYNCED) or (result == lib.MQ_FULL and number == errno.EFBIG):
        text = f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"
        return named(OSError(number, text, path or None), Path(where))
    if result == lib.MQ_FULL:
        return StoreFull(
            f"no space left for {where}: free some, then send again; nothing was written", path=path
        )
    if result == lib.MQ_MISSING:
        return StoreCorrupted(f"{where} lacks a file that should be there", path=path)
    if result == lib.MQ_POISONED:
        return StorePoisoned(
            "an earlier flush to disk failed, so nothing more is accepted: messages stay readable; "
            "close all brokers of this store and open it again once the disk is sound"
        )
    if result == lib.MQ_TABLE_FULL:
        return MQError(
            f"this store already has {lib.MQ_QUEUE_MAX:,} queues, its limit: delete topics that are not used"
        )
    if result in (lib.MQ_GONE, lib.MQ_STALE):
        return MQError(f"{where}: a topic was deleted while this was under way: look again")
    if result == lib.MQ_READ_ONLY:
        return NotPermitted("this broker was opened with read_only=True")
    if result == lib.MQ_FOLLOWS:
        return NotPermitted(
            f"{where} is a replica: it follows a master, which alone appends to it. Send to the master; or,"
            " to have this copy take its place, end the process that follows, and open the directory while"
            " nobody else has it open"
        )
    if result == lib.MQ_CLOSED:
        return BrokerClosed(f"{where} was closed meanwhile: call mq.open() again")
    if result == lib.MQ_TOO_LARGE:
        return AssertionError("the caller checks sizes first, since it knows them")
    return AssertionError(f"unexpected result {result} of a C call: the caller handles it")


def _locked(result: int, where: str, path: str) -> StoreLocked:
    if result == lib.MQ_BUSY:
        pid = int(lib.mq_busy_pid()) or None
        return StoreLocked(
            f"{where}: not to be had within {lib.mq_busy_waited_ms() / 1000:g} s was"
            f" {LOCKS[lib.mq_busy_lock()]}, held by {describe(pid)}; nothing was written",
            path=path,
            pid=pid,
        )
    if result == lib.MQ_REENTERED:
        return StoreLocked(
            f"{where}: this thread was interrupted by a signal handler while it held a lock, and the handler"
            " wants it: have handlers set a flag, and use the broker from a thread",
            path=path,
            pid=os.getpid(),
        )
    return StoreLocked(
        f"{where}: another process has the duties, which it took over while this one was stopped", path=path
    )
