"""The code of a unit of a queue: of a message with a delay level, when it is due, in ms.

The process that stored it knew the delay, also where the level is one that nobody has any more. In a queue
that was recovered the codes are by RocketMQ's own levels; in those of other messages they are hashes of tags.
"""

from __future__ import annotations

from mq.store.native import check, ffi, lib
from mq.store.store import Store

__all__ = ["unit_code"]


def unit_code(store: Store, number: int, offset: int) -> int:
    """The code of the unit at an offset of the queue with this number."""
    log_offset, size, code = ffi.new("int64_t *"), ffi.new("int32_t *"), ffi.new("int64_t *")
    check(lib.mq_queue_unit(store.live(), number, offset, log_offset, size, code), str(store.root))
    return int(code[0])
