"""The table of what was sent under a key: mq/dedup, made and believed here, looked into in C.

Its layout and its rules are in mq/store/native/dedup/dedup_table.h. Here is who may believe it: a process
that goes by the same control file, in the same boot of the machine, if it is the file that others are using,
or that the last of them closed.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import xxhash

from mq.errors import MQError, RequestTimeout, StoreLocked
from mq.fastpath import Guard, bind_keyed, bucket_guard
from mq.store.directory.file_locks import byte_owner, open_own_file, unlock_byte
from mq.store.directory.layouts import LAYOUTS
from mq.store.index.find_records import EVERYWHERE
from mq.store.index.index import IndexFile
from mq.store.log.reappend import Copies
from mq.store.native import check, ffi, lib
from mq.store.os_errors import named_errors
from mq.store.shared.control import boot_id
from mq.store.shared.lock_guards import byte_lock, locked_by_others
from mq.store.shared.queue_table import Numbers
from mq.store.store import Store

__all__ = [
    "BUCKET_COUNT",
    "CLAIMED",
    "EVER",
    "KNOWN",
    "LEFT",
    "NEW",
    "Bucket",
    "SentKeys",
    "digest_of",
    "size_of",
]

STAMP = b"mqdedup%d" % LAYOUTS["mq/dedup"]
HEADER = struct.Struct("=8sq16sqqqQ")
TURN = struct.Struct("=q")
BUCKETS_AT: int = lib.MQ_DEDUP_BUCKETS_AT
BUCKET_SIZE: int = lib.MQ_DEDUP_BUCKET_SIZE
BUCKET_COUNT = 1 << 14
LOCK_SIZE: int = lib.MQ_DEDUP_LOCK_SIZE  # of each bucket, behind all of them
CHECK_SIZE = 8  # in front of a bucket, and behind the header
CLAIMED: int = lib.MQ_DEDUP_CLAIMED
NEW, KNOWN, LEFT = lib.MQ_DEDUP_NEW, lib.MQ_DEDUP_KNOWN, lib.MQ_DEDUP_LEFT
EVER = 1 << 62  # of a doubt: nothing that is missing here was not sent
MAKING_BYTE, MAKING_TIMEOUT, LEAVING_TIMEOUT = 0, 10.0, 1.0
OWNER_BYTES = 1 << 62  # from here on: see OWNERS_AT in mq/store/native/dedup/dedup_table.c
assert HEADER.size == lib.MQ_DEDUP_HEADER_SIZE
bind_keyed(int(ffi.cast("uintptr_t", ffi.addressof(lib, "mq_dedup_append"))))


def digest_of(kind: str, topic: str, key: str) -> bytes:
    """What stands for a key of a topic; a kind of key never meets another one."""
    digest, name, word = ffi.new("uint8_t[]", lib.MQ_DEDUP_DIGEST_SIZE), topic.encode(), key.encode()
    check(lib.mq_dedup_digest(name, len(name), kind.encode(), word, len(word), digest))
    return bytes(digest)


def size_of(count: int) -> int:
    """Of a file with so many buckets, and a lock for each."""
    return BUCKETS_AT + count * (BUCKET_SIZE + LOCK_SIZE)


class Bucket:
    """The entries of one bucket, for the holder of its lock; what changes is written at once."""

    __slots__ = ("_now_ms", "_table")

    def __init__(self, table: Any, now_ms: int) -> None:
        self._table, self._now_ms = table, now_ms

    def look(self, digest: bytes, begin_ms: int) -> tuple[int, int]:
        """NEW, KNOWN, LEFT or ASK, of a window that begins at begin_ms; and the place of what is known, or
        the end of what the index is to be asked for."""
        at = ffi.new("int64_t *")
        return int(lib.mq_dedup_look(self._table, digest, begin_ms, self._now_ms, at)), int(at[0])

    def put(self, digest: bytes, time_ms: int, place: int) -> None:
        """Enter a key, in the place of the oldest one if need be."""
        lib.mq_dedup_put(self._table, digest, time_ms, place, self._now_ms)

    def doubt(self, digest: bytes, time_ms: int) -> None:
        """Have the index asked for this key, as far as it was sent until then."""
        lib.mq_dedup_doubt(self._table, digest, time_ms, self._now_ms)

    def claim(self, digest: bytes) -> tuple[int, int] | None:
        """Enter a key of which a message is about to be stored. Returns the entry that it had: for a longer
        window than the caller's, it may count."""
        found = ffi.new("int64_t[2]")
        had = lib.mq_dedup_get(self._table, digest, self._now_ms, found, found + 1)
        self.put(digest, self._now_ms, CLAIMED)
        return (int(found[0]), int(found[1])) if had else None

    def unclaim(self, digest: bytes, entry: tuple[int, int] | None) -> None:
        """Give a key of which nothing was stored the entry back that it had."""
        if entry is None:
            lib.mq_dedup_drop(self._table, digest, self._now_ms)
        else:
            self.put(digest, *entry)


class SentKeys:
    """The table of one store, for one broker. Made anew where it cannot be believed. Raises StoreFull.

    is_told_all: whether every send under a key will look into a table that is made now. kept: what is to be
    kept as long as its `address` is used.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock_ms: Callable[[], int],
        bucket_count: int = BUCKET_COUNT,
        is_told_all: bool = True,
    ) -> None:
        self._store = store
        self._clock_ms = clock_ms
        self._is_told_all = is_told_all
        self.path = store.root / "mq" / "dedup"
        # Before it is opened: an interrupt may come between the return of the call and the next instruction.
        self._opened = ffi.gc(ffi.new("mq_dedup **"), lib.mq_dedup_free)
        self.kept: list[Any] = [self._opened]
        assert store.control is not None
        self._turn = store.control.word(lib.MQ_DEDUP_TURN)  # The store may be closed before this is.
        self._learning = threading.Lock()
        self._known_files: list[IndexFile] | None = None
        store.detach_with(self._forked)
        with named_errors(self.path):
            self._fd = open_own_file(self.path)
            store.close_in_child(self._fd)
            try:
                busy = partial(locked_by_others, self.path, "making it", time.monotonic())
                with byte_lock(self._fd, MAKING_BYTE, MAKING_TIMEOUT, busy):
                    count = self._believed()
                    if count is None:
                        count = bucket_count
                        self._make(count)
                    self._take_turn()
                    # It has its number before the next one looks who uses the file.
                    opened = lib.mq_dedup_open(bytes(self.path), self._fd, count, self._opened)
                    check(opened, str(self.path))
            except BaseException:
                self.close()
                raise
        self._table = self._opened[0]
        self.address = int(ffi.cast("uintptr_t", self._table))

    def _believed(self) -> int | None:
        """How many buckets there are; None for a file that is of no use."""
        data = os.pread(self._fd, HEADER.size, 0)
        if len(data) < HEADER.size:
            return None
        stamp, epoch, boot, count, *_ = HEADER.unpack(data)
        if stamp != STAMP or xxhash.xxh3_64_digest(data[:-CHECK_SIZE]) != data[-CHECK_SIZE:]:
            return None
        if epoch != Numbers(self._store).epoch or boot != boot_id():
            return None
        if os.fstat(self._fd).st_size < size_of(count) or not self._is_in_turn():
            return None
        return int(count)

    def _is_in_turn(self) -> bool:
        """Whether the file is the one that others are using, or that the last one to use it closed; not an
        older copy, nor one whose users were killed, in which the last keys may be missing."""
        turn = self._turn[0]
        wanted = turn if byte_owner(self._fd, OWNER_BYTES, 0) is None else -turn
        return turn > 0 and os.pread(self._fd, TURN.size, HEADER.size) == TURN.pack(wanted)

    def _take_turn(self) -> None:
        assert self._store.control is not None
        turn = self._store.control.add(lib.MQ_DEDUP_TURN) + 1
        os.pwrite(self._fd, TURN.pack(-turn), HEADER.size)

    def _leave(self, fd: int) -> None:
        """Have the next one believe the file, if nobody else is using it. One that does not get there in time
        leaves it as a killed one does."""
        with suppress(MQError, OSError):
            busy = partial(locked_by_others, self.path, "making it", time.monotonic())
            with byte_lock(fd, MAKING_BYTE, LEAVING_TIMEOUT, busy):
                unlock_byte(fd, OWNER_BYTES, 0)
                turn, is_last = self._turn[0], byte_owner(fd, OWNER_BYTES, 0) is None
                if is_last and os.pread(fd, TURN.size, HEADER.size) == TURN.pack(-turn):
                    os.pwrite(fd, TURN.pack(turn), HEADER.size)

    def _make(self, count: int) -> None:
        """Where others have it mapped, they go on with what is written here, and with the locks that they
        have, which are not written: it never becomes shorter."""
        os.pwrite(self._fd, bytes(HEADER.size), 0)
        os.posix_fallocate(self._fd, 0, size_of(count))
        content = bytes(BUCKET_SIZE - CHECK_SIZE)
        empty = (xxhash.xxh3_64_digest(content) + content) * min(count, 4096)
        # By writing, not through memory: what there is no room for is an error here, and no signal later.
        at, end = BUCKETS_AT, BUCKETS_AT + count * BUCKET_SIZE
        while at < end:
            at += os.pwrite(self._fd, empty[: end - at], at)
        # What a dead process is in the middle of ends before: it is repaired, and lies below since_end.
        Copies(self._store).repair_tail()
        end, epoch = self._store.end(), Numbers(self._store).epoch
        since_ms = self._clock_ms() + 1 if end else 0
        since_end = end if self._is_told_all else EVERYWHERE
        head = HEADER.pack(STAMP, epoch, boot_id(), count, since_ms, since_end, 0)[:-CHECK_SIZE]
        os.pwrite(self._fd, head + xxhash.xxh3_64_digest(head), 0)

    def know_index(self, waiting_topics: Sequence[str]) -> None:
        """Have the index as it is looked into without asking, and what its files get from now on; messages of
        any topic may wait in those topics."""
        if not self._learning.acquire(blocking=False):
            return  # Another thread is at it, or the call that a signal handler interrupted.
        try:
            end = self._store.word(lib.MQ_INDEXED_END)  # before the files, which have what lies below
            files = self._store.index.files()
            if files == self._known_files:
                return
            handles = ffi.new("mq_index *[]", [file.handle for file in files])
            names = [ffi.new("char[]", topic.encode()) for topic in waiting_topics]
            topics = ffi.new("char *[]", names)
            told = [handles, names, topics, *files]
            self.kept += told
            former = lib.mq_dedup_know_index(self._table, handles, len(files), topics, len(names), end)
            check(min(former, 0), str(self.path))
            if former:  # Nobody looks into those any more: files that were deleted take no more room.
                self.kept[:] = [self._opened, *told]
            self._known_files = files
        finally:
            self._learning.release()

    def number(self, digest: bytes) -> int:
        """Of the bucket of a key."""
        return int(lib.mq_dedup_bucket(self._table, digest))

    def locked(self, number: int, wait: float) -> Guard:
        """For a with statement: nobody else is at this bucket. Raises RequestTimeout, and StoreLocked where
        this thread is at it already, in what a signal handler interrupted."""
        return bucket_guard(self._opened, self.address, number, wait, partial(self._not_locked, wait))

    def _not_locked(self, wait: float, result: int) -> NoReturn:
        if result == lib.MQ_BUSY:
            raise self._timed_out(wait)
        if result == lib.MQ_REENTERED:
            raise self._reentered()
        if result == lib.MQ_CLOSED:  # while this one waited
            raise self._store.refusal()
        check(result, str(self.path))
        raise AssertionError(result)

    def _reentered(self) -> MQError:
        return StoreLocked(
            f"{self.path}: a signal handler sends under a dedup key while the thread that it interrupted"
            " does so: have the handler set a flag, and send from a thread",
            path=str(self.path),
            pid=os.getpid(),
        )

    def _timed_out(self, wait: float) -> MQError:
        busy = locked_by_others(self.path, "storing a message of this key", time.monotonic() - wait)
        return RequestTimeout(f"{busy}; whether it is stored is not known: send it again under the same key")

    def bucket(self) -> Bucket:
        """The buckets as they are now, for the holder of the lock of the one that is looked into."""
        return Bucket(self._table, self._clock_ms())

    def _forked(self) -> None:
        self._fd = -1  # The store closes the child's copy.
        if self._opened[0]:
            lib.mq_dedup_forked(self._opened[0])

    def close(self) -> None:
        """Let go of the file, once other threads are done with it."""
        fd, self._fd = self._fd, -1
        if self._opened[0]:
            lib.mq_dedup_close(self._opened[0])
            self.kept[:] = [self._opened]
        if fd >= 0:
            try:
                if self._opened[0]:
                    self._leave(fd)
            finally:
                self._store.closed_here(fd)
