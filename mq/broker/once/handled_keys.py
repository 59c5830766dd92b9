"""The keys that a group has handled: the last `size` of them, exactly, over all processes and their deaths.

On disk: mq/once/<group>, mapped by all processes that use it, in native byte order:

    offset  size  field
         0     8  stamp
         8     8  size           how many marks are kept
        16     8  check          XXH3 of the two before
        24     8  next           number of the next mark, counted from 1
        32     8  next_check     all its bits turned over
        40     8  begin          marks with lower numbers are forgotten
        48     8  begin_check    likewise

From 4096 on, `size` marks of 32 bytes; number n lies in place n % size, over the oldest one:

         0    16  digest         XXH3-128 of the key
        16     8  number
        24     8  check          XXH3 of the two before

The marks are a journal: each process keeps in memory what it has read of them, and reads on whenever `next`
has moved. A writer holds byte 0. A process that handles a key holds a byte of its own, chosen by its digest,
far beyond the end of the file; the kernel drops both when it dies. So the death of a process that handles a
key leaves it unmarked, and free at once.

A mark is written when the body is done, and its message's offset is committed after that. consumerOffset.json
is written in three steps: the offsets are read, then these files are forced to disk (sync), then the offsets
are. So after a power cut no message counts as consumed whose mark is lost. Marks that were written since are
there or not, each whole or not at all by its check; one that is there is of a body that was done.

This is the one file under mq/ that nothing else knows the content of. Without it, or with a part of it lost
to damage, what comes again is handled again, as it would be without Once: nothing is passed over that was not
handled. A flipped bit costs the keys that it hits.
"""

from __future__ import annotations

import _thread
import logging
import mmap
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from weakref import ref

import xxhash

from mq.errors import ConfigMismatch, MQError, RequestTimeout
from mq.fastpath import Guard
from mq.store.directory.file_locks import lock_byte, open_own_file, unlock_byte
from mq.store.directory.layouts import LAYOUTS, check_kept_file
from mq.store.directory.owner import make_directory, opened_file
from mq.store.directory.root import sync_names
from mq.store.os_errors import named_errors
from mq.store.shared.lock_guards import byte_lock, locked_by_others, thread_locks, time_limit
from mq.store.store import Store

__all__ = ["SIZE", "SIZE_MAX", "LocalHandled"]

SIZE = 100_000
SIZE_MAX = 10_000_000
STAMP = b"mqonce%02d" % LAYOUTS["mq/once"]
HEAD = struct.Struct("=8sq")
HEAD_SIZE, MARKS_AT = 24, 4096
MARK, MARK_SIZE = struct.Struct("=16sq8s"), 32
NUMBERED = struct.Struct("=16sq")
NEXT, BEGIN = 3, 5  # words of eight bytes; the check of each follows
WRITING_BYTE, KEY_BYTES = 0, 1 << 62
WRITING_TIMEOUT = 10.0
LOCK_WAIT = 0.2  # seconds at least, for a lock that another thread or process has for a moment
FINISH_WAIT = 1.0  # seconds at least, for one that waits for no other: its body is done
LOOK_AGAIN = 0.05  # seconds; a thread that gives up a key tells the others
ASK_AGAIN = 0.002  # seconds; another process that handles the key tells nobody
NUMBER_MAX = 1 << 60
assert MARK.size == MARK_SIZE
assert HEAD.size + 8 == HEAD_SIZE

log = logging.getLogger("mq.groups")


class LocalHandled:
    """See mq.api.handled_keys.Handled. One object for all callers that ask one broker for a group's."""

    def __init__(self, store: Store, path: Path, size: int | None) -> None:
        self._store = store
        self.path = path
        self._claims: dict[bytes, _Claim] = {}  # changed by single calls of C, without a lock
        self._orphans: deque[_Claim] = deque()  # whose owners are gone: the next call ends them
        # Guards what follows, and the writing byte among the threads.
        self._locked = thread_locks(path, "reading or writing marks")
        self._numbers: dict[bytes, int] = {}  # of all marks that count
        self._digests: deque[bytes] = deque()  # from the oldest on, empty ones for marks that are damaged
        self._next = self._begin = 1
        self._fd = -1
        store.detach_with(self._forked)
        with named_errors(path):
            _make_directory(path.parent)
            self._fd = open_own_file(path)
            store.close_in_child(self._fd)
            try:
                with self._writing():
                    self.size = self._prepared(size)
                    self._memory = _mapped(path, MARKS_AT + self.size * MARK_SIZE)
                    self._words = memoryview(self._memory)[:MARKS_AT].cast("q")
                    self._load()
            except BaseException:
                self.close()
                raise

    # What is asked.

    def begin(self, key: str, wait: float, owner: object = None) -> bool:
        digest, since = _digest(key), time.monotonic()
        self._store.live()
        self._free_orphans()
        claim = _Claim(digest, wait, owner, self._orphaned)
        with time_limit(max(wait, LOCK_WAIT)):
            while (held := self._claims.setdefault(digest, claim)) is not claim:
                if held.thread == claim.thread:
                    raise RuntimeError(
                        f"this thread is handling {key!r} already, around this or in another task, and would"
                        " wait for itself"
                    )
                if not held.wait(since + wait):
                    raise self._timeout(key, since, in_thread=True)
            try:
                is_fresh = self._is_fresh(digest)
                if is_fresh:
                    # Another process is only asked for once no thread of this one is in the way: they share
                    # the lock.
                    while not self._lock_key(claim):
                        if time.monotonic() >= since + wait:
                            raise self._timeout(key, since)
                        time.sleep(ASK_AGAIN)
                    is_fresh = self._is_fresh(digest)
            except BaseException:
                self._drop(claim)
                raise
        if not is_fresh:
            self._drop(claim)
        return is_fresh

    def _is_fresh(self, digest: bytes) -> bool:
        with self._locked():
            return not self._knows(digest)

    def finish(self, key: str) -> None:
        digest = _digest(key)
        claim = self._claims.get(digest)
        wait = WRITING_TIMEOUT if claim is None else max(claim.wait_s, FINISH_WAIT)
        try:
            self._store.live()
            with time_limit(wait), self._locked(), self._writing():
                self._read_on()
                number = self._next
                at = MARKS_AT + number % self.size * MARK_SIZE
                self._memory[at : at + MARK_SIZE] = _mark(digest, number)
                self._say(NEXT, number + 1)
                self._enter(digest)
        finally:
            self._give_up(digest)

    def abandon(self, key: str) -> None:
        self._give_up(_digest(key))

    def seen(self, key: str) -> bool:
        self._store.live()
        return not self._is_fresh(_digest(key))

    def clear(self) -> None:
        self._store.live()
        with self._locked(), self._writing():
            self._read_on()
            self._say(BEGIN, self._next)
            self._load()

    def _lock_key(self, claim: _Claim) -> bool:
        with self._locked():  # close() waits for it, and nobody else has the descriptor meanwhile.
            if self._fd < 0:
                raise self._store.refusal()
            claim.is_locked = True
            claim.is_locked = lock_byte(self._fd, _key_byte(claim.digest))
            return claim.is_locked

    def _give_up(self, digest: bytes) -> None:
        self._free_orphans()
        claim = self._claims.get(digest)
        if claim is not None:
            self._drop(claim)

    def _drop(self, claim: _Claim) -> None:
        """Give up a claim whose owner lives, or never was: no other thread does it."""
        if claim.is_locked:
            with self._locked():
                self._let_go(claim)
        else:
            self._let_go(claim)

    def _let_go(self, claim: _Claim) -> None:
        # Where an interrupt comes in between, its owner's end has this done again.
        if self._claims.get(claim.digest) is claim:
            if claim.is_locked and self._fd >= 0:
                unlock_byte(self._fd, _key_byte(claim.digest))
            self._claims.pop(claim.digest, None)
        claim.owner = None  # Nobody is told of its end any more.
        claim.free()

    def _orphaned(self, claim: _Claim) -> None:
        """An owner is gone. That may come in the middle of anything, also where this thread has the lock: so
        another thread frees the key."""
        self._orphans.append(claim)
        with suppress(RuntimeError):  # There can be no more threads: the next call does it.
            _thread.start_new_thread(self._free_theirs, ())

    def _free_theirs(self) -> None:
        with suppress(MQError):  # A thread has the lock for long: the next call does it.
            self._free_orphans()

    def _free_orphans(self) -> None:
        while self._orphans:
            # One thread at a time: a second one would let go of the next claim to the same key as well.
            with self._locked():
                if self._orphans:
                    self._let_go(self._orphans[0])
                    self._orphans.popleft()

    def _timeout(self, key: str, since: float, *, in_thread: bool = False) -> RequestTimeout:
        if in_thread:
            seconds = time.monotonic() - since
            return RequestTimeout(
                f"{self.path}: another thread of this process has been handling {key!r} for more than"
                f" {seconds:.2g} s: see what it waits for"
            )
        return RequestTimeout(
            str(locked_by_others(self.path, f"handling {key!r}", since, _key_byte(_digest(key))))
        )

    # The marks, with the lock held.

    def _knows(self, digest: bytes) -> bool:
        words = self._words
        if words[NEXT] != self._next or words[NEXT + 1] != ~self._next or words[BEGIN] != self._begin:
            with self._writing():
                self._read_on()
        return digest in self._numbers

    def _read_on(self) -> None:
        """Read what others have written since. The writing byte is held."""
        following, begin = self._word(NEXT), self._word(BEGIN)
        is_whole = len(self._digests) == self._next - max(self._begin, self._next - self.size)
        if (
            not is_whole  # An interrupt came while a mark was taken in.
            or following is None
            or begin != self._begin
            or not 0 <= following - self._next <= self.size
        ):
            self._load()
            return
        while self._next < following:
            at = MARKS_AT + self._next % self.size * MARK_SIZE
            digest, number, check = MARK.unpack(self._memory[at : at + MARK_SIZE])
            sound = number == self._next and check == _check(digest, number)
            self._enter(digest if sound else b"")

    def _enter(self, digest: bytes) -> None:
        """Take in the next mark; the oldest one goes if there are more than so many."""
        if digest:
            self._numbers[digest] = self._next
        self._digests.append(digest)
        self._next += 1
        if len(self._digests) > self.size:
            oldest, number = self._digests[0], self._next - 1 - self.size
            if self._numbers.get(oldest) == number:
                del self._numbers[oldest]
            self._digests.popleft()

    def _load(self) -> None:
        """Read all, and mend the header by it. The writing byte is held."""
        found: dict[int, bytes] = {}
        damaged = 0
        data = self._memory[MARKS_AT : MARKS_AT + self.size * MARK_SIZE]
        for place, (digest, number, check) in enumerate(MARK.iter_unpack(data)):
            if check == _check(digest, number) and 0 < number < NUMBER_MAX and number % self.size == place:
                found[number] = digest
            elif number or check != bytes(8) or digest != bytes(16):
                damaged += 1
        following, begin = self._word(NEXT), self._word(BEGIN)
        if following is None or begin is None:
            damaged += 1
        following = max(following or 1, max(found, default=0) + 1)
        if begin is None:
            # Of two that differ the one that forgets more.
            both = self._words[BEGIN], ~self._words[BEGIN + 1]
            begin = max((each for each in both if 0 < each <= following), default=1)
        if damaged:
            log.warning("%s: %d marks are damaged: what they stand for is handled again if it comes again",
                        self.path, damaged)  # fmt: skip
        self._say(NEXT, following)
        self._say(BEGIN, begin)
        self._begin, oldest = begin, max(begin, following - self.size)
        self._numbers, self._digests, self._next = {}, deque(), oldest
        while self._next < following:
            self._enter(found.get(self._next, b""))

    def _word(self, place: int) -> int | None:
        value: int = self._words[place]
        return value if value == ~self._words[place + 1] and 0 < value < NUMBER_MAX else None

    def _say(self, place: int, value: int) -> None:
        self._words[place] = value
        self._words[place + 1] = ~value

    # The file.

    def _prepared(self, size: int | None) -> int:
        """How many marks there is room for, once there is. The writing byte is held."""
        data = os.pread(self._fd, HEAD_SIZE, 0)
        length = os.fstat(self._fd).st_size
        if len(data) == HEAD_SIZE and data == _head(HEAD.unpack_from(data)[1]) and length > MARKS_AT:
            kept: int = HEAD.unpack_from(data)[1]
            if size not in (None, kept):
                raise ConfigMismatch(
                    f"{self.path} keeps {kept:,} keys, not {size:,}: leave size out, or remove the file while"
                    " nobody uses it, and with it what was handled",
                    option="size", stored=kept, asked=size,
                )  # fmt: skip
            if length < MARKS_AT + kept * MARK_SIZE:
                log.warning("%s: it is cut short: keys that were in it are handled again", self.path)
            # A copy may have left out what was zero.
            os.posix_fallocate(self._fd, 0, MARKS_AT + kept * MARK_SIZE)
            return kept
        if xxhash.xxh3_64_digest(data[:-8]) == data[-8:]:
            check_kept_file(self.path, "mq/once", STAMP, data)
        wanted = SIZE if size is None else size
        room = (length - MARKS_AT) // MARK_SIZE
        if data.strip(b"\0") and room > 0:
            log.warning("%s: its header is damaged, and made anew", self.path)
            wanted = min(room, SIZE_MAX) if size is None else size
        # Allocated before it is touched: a full disk is an error here, and no signal later.
        os.posix_fallocate(self._fd, 0, MARKS_AT + wanted * MARK_SIZE)
        if not data.strip(b"\0"):
            first = struct.pack("=4q", 1, ~1, 1, ~1)
            os.pwrite(self._fd, first, NEXT * 8)
        os.pwrite(self._fd, _head(wanted), 0)
        os.fsync(self._fd)
        sync_names(self.path.parent)
        return wanted

    def _writing(self) -> Guard:
        """For a with statement: the writing byte."""
        if self._fd < 0:
            raise self._store.refusal()
        busy = partial(locked_by_others, self.path, "writing it", time.monotonic(), WRITING_BYTE)
        return byte_lock(self._fd, WRITING_BYTE, WRITING_TIMEOUT, busy)

    def _forked(self) -> None:
        # Another thread of the parent may have had it.
        self._locked = thread_locks(self.path, "reading or writing marks")
        self._claims.clear()
        self._fd = -1  # The store closes the child's copy.

    def close(self) -> None:
        """Give up all claims. Twice is fine."""
        with self._locked():
            fd, self._fd = self._fd, -1
            claims, self._claims = self._claims, {}
            if fd >= 0:
                self._store.closed_here(fd)
        for claim in list(claims.values()):
            claim.free()


class _Claim:
    """A key in the hands of this thread, for as long as an owner lives that was given."""

    __slots__ = ("_released", "digest", "is_locked", "owner", "thread", "wait_s")

    def __init__(
        self, digest: bytes, wait_s: float, owner: object, orphaned: Callable[[_Claim], None]
    ) -> None:
        self.digest = digest
        self.wait_s = wait_s
        self.thread = threading.get_ident()
        self.is_locked = False  # among the processes; or about to be
        self._released = threading.Lock()
        self._released.acquire()
        self.owner = None if owner is None else ref(owner, lambda _: orphaned(self))

    def wait(self, deadline: float) -> bool:
        """Wait until it may be free; False: the time is up."""
        left = deadline - time.monotonic()
        # Its owner may be interrupted before it says so.
        if self._released.acquire(timeout=min(max(left, 0.0), LOOK_AGAIN)):
            self._released.release()
        return left > 0

    def free(self) -> None:
        """It is given up. Twice is fine."""
        with suppress(RuntimeError):
            self._released.release()


def _digest(key: str) -> bytes:
    if not isinstance(key, str):
        raise TypeError(f"a key is a str, not {type(key).__name__}")
    if not key:
        raise ValueError("the key is empty: give the text that tells one message from another")
    return xxhash.xxh3_128_digest(key.encode("utf-8", "surrogatepass"))


def _key_byte(digest: bytes) -> int:
    return KEY_BYTES + (int.from_bytes(digest[:8], "little") >> 2)


def _check(digest: bytes, number: int) -> bytes:
    return xxhash.xxh3_64_digest(NUMBERED.pack(digest, number))


def _mark(digest: bytes, number: int) -> bytes:
    return MARK.pack(digest, number, _check(digest, number))


def _head(size: int) -> bytes:
    head = HEAD.pack(STAMP, size)
    return head + xxhash.xxh3_64_digest(head)


def _make_directory(path: Path) -> None:
    if not path.is_dir():
        make_directory(path)
        sync_names(path.parent)


def _mapped(path: Path, size: int) -> mmap.mmap:
    # Opened for itself alone: a mapping keeps its open file, and with it every lock that was taken by it.
    with opened_file(path) as fd:
        return mmap.mmap(fd, size)
