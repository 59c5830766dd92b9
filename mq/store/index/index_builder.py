"""Keeping the index up with the log: by a process that asks it something, and by the leader.

One process at a time, under the index lock; between two steps others get their turn. How far it has come is
a word in shared memory, so a look-up sees every message that was sent before it.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from mq.errors import StoreCorrupted
from mq.store.directory.raw_read import first_keyed
from mq.store.index.index import Index, State
from mq.store.native import check, ffi, lib
from mq.store.shared.control import Control
from mq.store.shared.lock_guards import control_lock

__all__ = ["bring_up", "go_on", "indexed_end"]

STEP = 16 << 20  # Bytes of log indexed between two looks at whether others want the lock.
LOCK_TIMEOUT = 60.0  # seconds: its holder may index much


def indexed_end(index: Index) -> int:
    """The end of the log as far as the index knows of it: no record of the closed log lies before; 0 if
    nobody can tell."""
    try:
        end = index.end_log_offset()
    except StoreCorrupted:
        return 0
    return 0 if end is None or end < 0 else end + int(lib.MQ_RECORD_SIZE_MIN)


def go_on(index: Index, control: Control, root: Path, *, writable: bool) -> None:
    """Have the index go on behind what it has, or begin anew if files of it are missing or of a longer log.
    With nobody else inside."""
    log_min, log_end = control.get(lib.MQ_LOG_MIN), control.get(lib.MQ_LOG_END)
    file_size, indexed = control.get(lib.MQ_FILE_SIZE), control.get(lib.MQ_INDEXED_END)
    try:
        states = [file.state() for file in index.files()]
    except StoreCorrupted:
        if not writable:
            raise
        # One is of another length.
        index.clear()
        states = []
    can_be = all(_can_be(state, log_end) for state in states)
    states = [state for state in states if state.units > 0]
    end = states[-1].end_log_offset if states else log_min
    if not can_be or not _is_whole(states, root, file_size, log_min, log_end):
        if writable:
            index.clear()
        control.set(lib.MQ_INDEXED_END, log_min)
    elif (
        not end < indexed <= log_end
        or first_keyed(root, end, indexed, file_size, behind=bool(states)) < indexed
    ):
        # The word is of other files: they end before it. Otherwise nothing is indexed twice.
        control.set(lib.MQ_INDEXED_END, end)


def _can_be(state: State, log_end: int) -> bool:
    """Whether a header can be what was written."""
    in_order = 0 <= state.begin_log_offset <= state.end_log_offset < max(log_end, 1)
    return in_order and 0 <= state.begin_time <= state.end_time and state.slots_used >= 0


def _is_whole(states: list[State], root: Path, file_size: int, log_min: int, log_end: int) -> bool:
    """Whether the files have every record with a key up to the newest that they have, and none that the log
    has not."""
    if not states:
        return True
    if states[-1].end_log_offset >= log_end or not all(state.full for state in states[:-1]):
        return False
    begin = states[0].begin_log_offset
    if first_keyed(root, log_min, begin, file_size) < begin:
        return False
    for before, after in itertools.pairwise(states):
        at, begin = before.end_log_offset, after.begin_log_offset
        if at >= log_min and first_keyed(root, at, begin, file_size, behind=True) < begin:
            return False
    return True


def bring_up(index: Index, control: Control, log: Any, path: str) -> int:
    """Index all that is in the log when this is called; how many bytes of log that took.

    A damaged record has no keys; what comes after it is indexed all the same. Raises StoreFull.
    """
    until, done = control.get(lib.MQ_LOG_END), 0
    while control.get(lib.MQ_INDEXED_END) < until:
        with control_lock(control, lib.MQ_LOCK_INDEX, Path(path), LOCK_TIMEOUT):
            begin = max(control.get(lib.MQ_INDEXED_END), control.get(lib.MQ_LOG_MIN))
            try:
                reached = index.put(log, begin, min(until, begin + STEP))
            except StoreCorrupted:
                if control.get(lib.MQ_LOG_MIN) > begin:
                    continue  # Retention took the file: on from where the log begins now.
                reached = _behind_damage(log, begin, until, path)
            control.raise_to(lib.MQ_INDEXED_END, reached)
        done += max(reached - begin, 0)
    return done


def _behind_damage(log: Any, begin: int, until: int, path: str) -> int:
    """Where the index goes on behind a record that cannot be read."""
    walk = ffi.new("mq_walk *")
    check(lib.mq_log_walk(log, begin, until, 0, -1, walk), path)
    resumed = int(lib.mq_log_resync(log, walk.end, until))
    return resumed if resumed >= 0 else until
