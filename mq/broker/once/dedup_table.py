"""What was sent under a key, and when: mq/dedup, a bounded table in front of the log and its index.

The record of what was sent is the log; this only spares looking there. On disk: mq/dedup, mapped by all that
send with a key, in native byte order:

    offset  size  field
         0     8  stamp
         8     8  epoch        of the control file that it belongs to
        16    16  boot_id      pages of another boot may be of different times
        32     8  buckets      how many
        40     8  since_ms     every send with a key since then passed through here; 0: every one that is kept
        48     8  check        XXH3 of the words before

From 4096 on, buckets of 256 bytes; the first 8 bytes of a key's digest choose its bucket:

         0     8  check        XXH3 of what follows: a bucket left half written, or flipped, is not believed
         8     8  lost_ms      of what was sent until then some is not here: an entry had to go for another
                               one, or a message was stored without a look at the table
        16    16  -
        32   112  digests      7 XXH3-128 of topic and key; zeros: free
       144    56  times        7, ms: when it was sent, or was about to be
       200    56  places       7 log offsets; -1: claimed by a sender that has not come back

A sender that looks a key up holds the byte of its bucket, from before it looks until what it stored is
marked: an open file description lock, which the kernel drops when it dies, and a lock of the threads of one
broker. So a claim that is found by its next reader is always a dead one's, and says: look whether the message
was stored.

A key that is not found was not sent within a window if the window begins after since_ms and after lost_ms.
Otherwise the answer is in the index. Which makes it safe to lose any bucket, or the file.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import xxhash

from mq.errors import MQError, RequestTimeout, StoreLocked
from mq.fastpath import Guard
from mq.store.directory.file_locks import open_own_file
from mq.store.directory.layouts import LAYOUTS
from mq.store.directory.owner import opened_file
from mq.store.os_errors import named_errors
from mq.store.shared.control import boot_id
from mq.store.shared.lock_guards import byte_lock, locked_by_others, thread_lock
from mq.store.shared.queue_table import Numbers
from mq.store.store import Store

__all__ = ["BUCKET_COUNT", "CLAIMED", "Bucket", "SentKeys", "digest_of"]

STAMP = b"mqdedup%d" % LAYOUTS["mq/dedup"]
HEADER = struct.Struct("=8sq16sqqQ")
BUCKETS_AT, BUCKET_SIZE, BUCKET_COUNT = 4096, 256, 1 << 14
ENTRY_COUNT, DIGEST_SIZE = 7, 16
# Of a bucket, counted from behind its check.
CHECK_SIZE, CONTENT_SIZE = 8, 248
DIGESTS_AT, TIMES_AT, PLACES_AT = 24, 136, 192
WORD, TIMES = struct.Struct("=q"), struct.Struct("=7q")
FREE = bytes(DIGEST_SIZE)
CLAIMED = -1
EVER = 1 << 62  # As lost_ms: nothing that is missing here was not sent.
STRIPES = 64
MAKING_BYTE, MAKING_TIMEOUT = 0, 10.0
assert DIGESTS_AT + ENTRY_COUNT * DIGEST_SIZE == TIMES_AT
assert TIMES_AT + ENTRY_COUNT * 8 == PLACES_AT
assert CHECK_SIZE + PLACES_AT + ENTRY_COUNT * 8 == CHECK_SIZE + CONTENT_SIZE == BUCKET_SIZE
assert HEADER.size == 56


def digest_of(kind: str, topic: str, key: str) -> bytes:
    """What stands for a key of a topic; a kind of key never meets another one."""
    return xxhash.xxh3_128_digest(f"{topic}\0{kind}\0{key}".encode())


class Bucket:
    """The entries of one bucket, for the holder of its lock; what changes is written at once."""

    __slots__ = ("_at", "_content", "_memory")

    def __init__(self, memory: mmap.mmap, at: int, now_ms: int) -> None:
        self._memory, self._at = memory, at
        self._content = content = bytearray(memory[at + CHECK_SIZE : at + BUCKET_SIZE])
        if xxhash.xxh3_64_digest(content) != memory[at : at + CHECK_SIZE]:
            # Whatever was in it is to be asked for elsewhere, as far as it was sent until now.
            self._content = bytearray(CONTENT_SIZE)
            WORD.pack_into(self._content, 0, now_ms)

    @property
    def lost_ms(self) -> int:
        lost_ms: int = WORD.unpack_from(self._content)[0]
        return lost_ms

    def find(self, digest: bytes) -> tuple[int, int] | None:
        """Time and place of an entry."""
        at = self._index(digest)
        if at is None:
            return None
        (time_ms,) = WORD.unpack_from(self._content, TIMES_AT + 8 * at)
        (place,) = WORD.unpack_from(self._content, PLACES_AT + 8 * at)
        return time_ms, place

    def _index(self, digest: bytes) -> int | None:
        found = self._content.find(digest, DIGESTS_AT, TIMES_AT)
        while found >= 0 and (found - DIGESTS_AT) % DIGEST_SIZE:
            found = self._content.find(digest, found + 1, TIMES_AT)
        return None if found < 0 else (found - DIGESTS_AT) // DIGEST_SIZE

    def put(self, digest: bytes, time_ms: int, place: int) -> None:
        """Enter a key, in the place of the oldest one if need be."""
        at = self._index(digest)
        if at is None:
            times = TIMES.unpack_from(self._content, TIMES_AT)
            oldest = min(times)
            at = times.index(oldest)
            if oldest > self.lost_ms:
                WORD.pack_into(self._content, 0, oldest)
        self._set(at, digest, time_ms, place)

    def doubt(self, digest: bytes, time_ms: int) -> None:
        """Have the index asked for this key, as far as it was sent until then."""
        if time_ms > self.lost_ms:
            WORD.pack_into(self._content, 0, time_ms)
        at = self._index(digest)
        if at is None:
            self._write()
        else:
            self._set(at, FREE, 0, 0)

    def drop(self, digest: bytes) -> None:
        """Forget a key of which nothing was stored."""
        at = self._index(digest)
        if at is not None:
            self._set(at, FREE, 0, 0)

    def _set(self, at: int, digest: bytes, time_ms: int, place: int) -> None:
        content, begin = self._content, DIGESTS_AT + at * DIGEST_SIZE
        content[begin : begin + DIGEST_SIZE] = digest
        WORD.pack_into(content, TIMES_AT + 8 * at, time_ms)
        WORD.pack_into(content, PLACES_AT + 8 * at, place)
        self._write()

    def _write(self) -> None:
        content = self._content
        self._memory[self._at : self._at + BUCKET_SIZE] = xxhash.xxh3_64_digest(content) + content


class SentKeys:
    """The table of one store, for one broker. Made anew where it cannot be believed. Raises StoreFull."""

    def __init__(
        self, store: Store, *, clock_ms: Callable[[], int], bucket_count: int = BUCKET_COUNT
    ) -> None:
        self._store = store
        self._clock_ms = clock_ms
        self.path = store.root / "mq" / "dedup"
        self._since: tuple[bytes, int] = b"", EVER  # by the header as it was seen last
        self._locks = [threading.Lock() for _ in range(STRIPES)]
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
                self._bucket_count = count
                self._memory = _mapped(self.path, BUCKETS_AT + count * BUCKET_SIZE)
            except BaseException:
                self.close()
                raise

    def _believed(self) -> int | None:
        """How many buckets there are; None for a file that is of no use."""
        data = os.pread(self._fd, HEADER.size, 0)
        if len(data) < HEADER.size:
            return None
        stamp, epoch, boot, count, _, _ = HEADER.unpack(data)
        if stamp != STAMP or xxhash.xxh3_64_digest(data[:-CHECK_SIZE]) != data[-CHECK_SIZE:]:
            return None
        if epoch != Numbers(self._store).epoch or boot != boot_id():
            return None
        if os.fstat(self._fd).st_size < BUCKETS_AT + count * BUCKET_SIZE:
            return None
        return int(count)

    def _make(self, count: int) -> None:
        """Where others have it mapped, they go on with what is written here: it never becomes shorter."""
        os.pwrite(self._fd, bytes(HEADER.size), 0)
        os.posix_fallocate(self._fd, 0, BUCKETS_AT + count * BUCKET_SIZE)
        since = self._clock_ms() + 1 if self._store.end() else 0
        content = bytes(CONTENT_SIZE)
        empty = (xxhash.xxh3_64_digest(content) + content) * min(count, 4096)
        # By writing, not through memory: what there is no room for is an error here, and no signal later.
        at, end = BUCKETS_AT, BUCKETS_AT + count * BUCKET_SIZE
        while at < end:
            at += os.pwrite(self._fd, empty[: end - at], at)
        head = HEADER.pack(STAMP, Numbers(self._store).epoch, boot_id(), count, since, 0)[:-CHECK_SIZE]
        os.pwrite(self._fd, head + xxhash.xxh3_64_digest(head), 0)

    def complete_since(self, bucket: Bucket) -> int:
        """A key that is not in the bucket was not sent at this time or later."""
        data = self._memory[: HEADER.size]
        seen, since = self._since
        if data != seen:
            sound = xxhash.xxh3_64_digest(data[:-CHECK_SIZE]) == data[-CHECK_SIZE:]
            since = HEADER.unpack(data)[4] if sound else EVER
            self._since = data, since
        return max(since, bucket.lost_ms + 1)

    def number(self, digest: bytes) -> int:
        """Of the bucket of a key."""
        return int.from_bytes(digest[:8], "little") % self._bucket_count

    def among_threads(self, number: int, wait: float) -> Guard:
        """For a with statement: no other thread of this broker is at this bucket. Raises RequestTimeout, and
        StoreLocked where this thread is at it already, in what a signal handler interrupted."""
        return thread_lock(
            self._locks[number % STRIPES], wait, partial(self._timed_out, wait), self._reentered
        )

    def among_processes(self, number: int, wait: float) -> Guard:
        """The same for other processes, within `among_threads`."""
        if self._fd < 0:  # It was closed while this one waited.
            raise self._store.refusal()
        return byte_lock(self._fd, BUCKETS_AT + number * BUCKET_SIZE, wait, partial(self._timed_out, wait))

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

    def bucket(self, number: int) -> Bucket:
        return Bucket(self._memory, BUCKETS_AT + number * BUCKET_SIZE, self._clock_ms())

    def _forked(self) -> None:
        self._fd = -1  # The store closes the child's copy.
        # Other threads of the parent may have had some.
        self._locks = [threading.Lock() for _ in range(STRIPES)]

    def close(self) -> None:
        """Let go of the file. Other threads are done with it before."""
        fd, self._fd = self._fd, -1
        for lock in self._locks:
            with lock:
                pass
        if fd >= 0:
            self._store.closed_here(fd)


def _mapped(path: Path, size: int) -> mmap.mmap:
    # Opened for itself alone: a mapping keeps its open file, and with it every lock that was taken by it.
    with opened_file(path) as fd:
        return mmap.mmap(fd, size)
