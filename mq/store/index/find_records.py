"""Finds the log records of a unique id or a key through the index.

The caller is about to store the message, if it is not there. So what counts is all that is in the log: what a
process died in the middle of storing, which is mended first; what waits for its flush, which is done, so that
nobody goes by what a power cut may take; and what lies in a topic of this name that was deleted since.
"""

from __future__ import annotations

from collections.abc import Iterator

from mq.message import MessageExt
from mq.store.directory.raw_read import head_at
from mq.store.log.reappend import Copies
from mq.store.native import check, ffi, lib
from mq.store.store import Store

__all__ = ["is_delivery", "record_at", "stored", "unindexed"]

TOLD_APART = (
    "UNIQ_KEY",
    "DELAY",
    "REAL_TOPIC",
    "REAL_QID",
    "ORIGIN_MESSAGE_ID",
    "TIMER_OUT_MS",
    "TIMER_DEL_UNIQKEY",  # of a marker, which has the unique id of the message that it recalls
)
SIZE = 4096  # of most records
EVERYWHERE = 1 << 62  # a log offset that no message reaches


def stored(
    store: Store, topic: str, key: str, since_ms: int = 0, broker_name: str = "", until: int = EVERYWHERE
) -> Iterator[MessageExt]:
    """The records of a topic, stored at since_ms or later, that may have this key or unique id, newest first:
    the index goes by a hash. A reader goes by the index as it is. until: a log offset below which all that
    counts lies, with no append cut short there."""
    if not store.read_only:
        _make_findable(store, until)
    for log_offset in store.index.find(topic, key, since_ms):
        if log_offset >= until:
            continue
        found = record_at(store, log_offset, broker_name)
        if found is not None and found.log_offset == log_offset and found.topic == topic:
            yield found


def _make_findable(store: Store, until: int) -> None:
    copies = Copies(store)
    if until >= store.end():
        copies.repair_tail()
        until = store.end()
    if store.sync and store.visible_end() < until:
        copies.flush()  # What is not on disk yet, nobody sees.
    if store.word(lib.MQ_INDEXED_END) < until:
        store.bring_index_up()


def unindexed(store: Store, broker_name: str) -> Iterator[MessageExt]:
    """The messages that readers see and the index has not, oldest first: where there is no space for it."""
    log, until = store.live(), store.visible_end()
    at = max(store.word(lib.MQ_INDEXED_END), store.word(lib.MQ_LOG_MIN))
    while at < until:
        size, magic = head_at(store.root, at, store.file_sizes.commitlog_file_size)
        if size == 0:  # Damaged, or retention took the file.
            at = int(lib.mq_log_resync(log, at, until))
            if at < 0:
                return
            continue
        if magic != lib.MQ_MAGIC_BLANK:
            found = record_at(store, at, broker_name)
            if found is not None:
                yield found
        at += size


def is_delivery(message: MessageExt, of: MessageExt) -> bool:
    """Whether a message is what anybody's delivery makes of one that was put aside: a RocketMQ broker's has
    its properties in another order, and one or the other besides."""
    ours, theirs = message.properties, of.properties
    return (
        all(ours.get(name) == theirs.get(name) for name in TOLD_APART)
        and message.log_offset > of.log_offset
        and (message.born_time_ms, message.reconsume_times) == (of.born_time_ms, of.reconsume_times)
        and message.stored_body == of.stored_body
    )


def record_at(store: Store, log_offset: int, broker_name: str) -> MessageExt | None:
    """The message whose record is at this place of the log; None if there is none, or not any more."""
    size = ffi.new("int64_t *", SIZE)
    while True:
        buffer = ffi.new("char[]", size[0])
        code = lib.mq_log_record(store.live(), log_offset, buffer, len(buffer), size)
        if code == lib.MQ_ROOM:
            continue
        if code in (lib.MQ_GONE, lib.MQ_CORRUPT, lib.MQ_MISSING, lib.MQ_INVALID):
            return None
        return MessageExt(ffi.buffer(buffer, check(code, str(store.root)))[:], broker_name)
