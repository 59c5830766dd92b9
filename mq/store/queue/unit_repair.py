"""Units of a queue that lead to no message of it, though the log has it: made anew where a reader meets them.

A cheap look at the files when a store is opened does not see what is wrong inside one, nor what goes missing
later. So a reader that meets a unit which leads nowhere, or has no file, has it made anew, and those around
it, before a message is said to be lost. See mq/store/native/queue/unit_repair.h.
"""

from __future__ import annotations

from logging import getLogger
from pathlib import Path

from mq.api.results import MessageQueue
from mq.errors import StoreCorrupted
from mq.store.native import check, ffi, lib
from mq.store.store import Store

__all__ = ["UNREADABLE", "made_anew", "unreadable"]

UNREADABLE = lib.MQ_CORRUPT, lib.MQ_MISSING
STEP = 64 << 20  # bytes of log between two looks for signals

log = getLogger("mq.store")


def made_anew(store: Store, name: str, number: int, offset: int) -> bool:
    """Have the damaged units around one of a queue made anew from the log; whether that one leads to its
    message now. name: topic/queue_id, for the log of `mq.store`.

    Raises StoreLocked and StoreFull: it can be tried again. A store that is read only stays as it is.
    """
    handle, root = store.live(), str(store.root)
    if lib.mq_unit_is_sound(handle, number, offset):
        return True  # Another process was faster.
    damaged, is_missing = ffi.new("mq_damaged_units *"), not _file_of(store, name, offset).exists()
    if check(lib.mq_units_damaged(handle, number, offset, damaged), root) == 0 or store.read_only:
        return bool(lib.mq_unit_is_sound(handle, number, offset))  # Now that a deleted file is let go.
    count = damaged.end - damaged.first
    found = ffi.new("mq_found_unit[]", count)
    at = damaged.log_begin
    while at < damaged.log_end:
        until = min(at + STEP, damaged.log_end)
        at = check(lib.mq_units_search(handle, number, damaged, at, until, found), root)
    written = check(lib.mq_units_rewrite(handle, number, damaged, found), root)
    if is_missing and not written:
        return False  # Nor is the file made: there may never have been one.
    log.warning(
        "%s: the file of %s was %s at queue offsets %d to %d: made anew from the log, with %d of %d messages",
        store.root,
        name,
        "missing" if is_missing else "damaged",
        damaged.first,
        damaged.end - 1,
        written,
        count,
    )
    return bool(lib.mq_unit_is_sound(handle, number, offset))


def unreadable(
    store: Store, queue: MessageQueue, number: int, offset: int, log_offset: int, code: int
) -> StoreCorrupted:
    """The error for a message that cannot be read, with what can be done about it."""
    what = "a file is missing" if code == lib.MQ_MISSING else "the bytes there are not what was stored"
    outcome, file = "it is lost, and", _file_of(store, f"{queue.topic}/{queue.queue_id}", offset)
    if lib.mq_units_damaged(store.live(), number, offset, ffi.new("mq_damaged_units *")) > 0:
        what = f"its queue's file {file} is {'damaged' if file.exists() else 'missing'}"
        # A process that writes looked there.
        outcome = "the log does not have it: it is lost, and"
        if store.read_only:
            outcome = "the log may still have it: read it in a process that opens the store to write;"
    return StoreCorrupted(
        f"{store.root}: the message at queue offset {offset} of {queue.topic}/{queue.queue_id}"
        f" (log offset {log_offset}) cannot be read, {what}; {outcome} reading goes on at queue offset"
        f" {offset + 1}",
        path=str(store.root),
        log_offset=log_offset,
        queue=queue,
        queue_offset=offset,
    )


def _file_of(store: Store, name: str, offset: int) -> Path:
    size = store.file_sizes.queue_file_size
    return store.root / "consumequeue" / name / f"{offset * lib.MQ_UNIT_SIZE // size * size:020}"
