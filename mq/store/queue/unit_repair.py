"""Units of a queue that lead to no message of it, though the log has it: made anew where a reader meets them.

A cheap look at the files when a store is opened does not see what is wrong inside one. So a reader that meets
a unit which leads nowhere has it made anew, and those around it, before a message is said to be lost. See
mq/store/native/queue/unit_repair.h.
"""

from __future__ import annotations

from logging import getLogger

from mq.api.results import MessageQueue
from mq.errors import StoreCorrupted
from mq.store.native import check, ffi, lib
from mq.store.store import Store

__all__ = ["made_anew", "unreadable"]

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
    damaged = ffi.new("mq_damaged_units *")
    if store.read_only or check(lib.mq_units_damaged(handle, number, offset, damaged), root) == 0:
        return False
    count = damaged.end - damaged.first
    found = ffi.new("mq_found_unit[]", count)
    at = damaged.log_begin
    while at < damaged.log_end:
        until = min(at + STEP, damaged.log_end)
        at = check(lib.mq_units_search(handle, number, damaged, at, until, found), root)
    written = check(lib.mq_units_rewrite(handle, number, damaged, found), root)
    log.warning(
        "%s: the file of %s was damaged at queue offsets %d to %d: made anew from the log, with %d of %d"
        " messages",
        store.root,
        name,
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
    outcome = "it is lost, and"
    if code == lib.MQ_MISSING and not _has_queue_file(store, queue, offset):
        outcome = "the log may still have it: close the store in all processes, and open it again;"
    elif (
        store.read_only
        and lib.mq_units_damaged(store.live(), number, offset, ffi.new("mq_damaged_units *")) > 0
    ):
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


def _has_queue_file(store: Store, queue: MessageQueue, offset: int) -> bool:
    size = store.file_sizes.queue_file_size
    start = offset * lib.MQ_UNIT_SIZE // size * size
    return (store.root / "consumequeue" / queue.topic / str(queue.queue_id) / f"{start:020}").exists()
