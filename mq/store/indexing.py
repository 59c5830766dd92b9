"""Keeping the index up with the log: by whoever asks it something, and by the duties.

One process at a time, under the index lock; between two steps others get their turn. How far it has come is
a word in shared memory, so a look-up sees every message that was sent before it.
"""

from __future__ import annotations

from typing import Any

from mq.errors import StoreCorrupted
from mq.store.control import Control
from mq.store.index import Index
from mq.store.native import check, ffi, lib

__all__ = ["bring_up"]

STEP = 16 << 20  # Bytes of log indexed between two looks at whether others want the lock.
LOCK_TIMEOUT_MS = 60_000


def bring_up(index: Index, control: Control, log: Any, path: str) -> int:
    """Index all that is in the log when this is called; how many bytes of log that took.

    A damaged record has no keys; what comes after it is indexed all the same. Raises StoreFull.
    """
    until, done = control.get(lib.MQ_LOG_END), 0
    while control.get(lib.MQ_INDEXED_END) < until:
        check(lib.mq_control_lock(control.handle, lib.MQ_LOCK_INDEX, LOCK_TIMEOUT_MS), path)
        try:
            begin = max(control.get(lib.MQ_INDEXED_END), control.get(lib.MQ_LOG_MIN))
            try:
                reached = index.put(log, begin, min(until, begin + STEP))
            except StoreCorrupted:
                if control.get(lib.MQ_LOG_MIN) > begin:
                    continue  # Retention took the file: on from where the log begins now.
                reached = _behind_damage(log, begin, until, path)
            control.raise_to(lib.MQ_INDEXED_END, reached)
        finally:
            lib.mq_control_unlock(control.handle, lib.MQ_LOCK_INDEX)
        done += max(reached - begin, 0)
    return done


def _behind_damage(log: Any, begin: int, until: int, path: str) -> int:
    """Where the index goes on behind a record that cannot be read."""
    walk = ffi.new("mq_walk *")
    check(lib.mq_log_walk(log, begin, until, 0, -1, walk), path)
    resumed = int(lib.mq_log_resync(log, walk.end, until))
    return resumed if resumed >= 0 else until
