"""The index: from a topic and a key to where the messages lie in the commit log.

Derived from the log, and never ahead of it: throw the files away and they are built again. A record
is indexed under its unique id and under each of its keys. Look-ups give candidates, newest first:
hashes collide and times are kept in whole seconds, so the caller verifies topic, key and time.

On disk: index/<local time of creation, yyyyMMddHHmmssSSS>, files of equal size, oldest name first.
Only the newest is written to. Header, integers big-endian (index.h has slots and units):

    offset  size  field
         0     8  begin_time         store time of the first unit
         8     8  end_time           store time of the newest unit
        16     8  begin_log_offset   of the first unit's record
        24     8  end_log_offset     of the newest unit's record
        32     4  slots_used
        36     4  next_unit          units 1 … next_unit - 1 are in use; 0 stands for 1

A file that becomes full is followed by one that starts from its end time and end offset. Files are
only forced to disk once they are full, and at a clean shutdown. There is no checksum: after a crash of
the machine, what was not forced to disk before is removed and built again from the log.

What writes is called with the index lock held (MQ_LOCK_INDEX of control.h), by one process at a time,
unless it says otherwise. Look-ups take no lock.
"""

import errno
import itertools
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mq.errors import StoreCorrupted
from mq.store.directory.owner import make_directory
from mq.store.directory.root import sync_names
from mq.store.native import check, ffi, lib

NAME = re.compile(r"[0-9]{17}")
TIME_MAX = (1 << 63) - 1
FOUND_AT_ONCE = 64


class State(NamedTuple):
    """What a file's header says."""

    begin_time: int
    end_time: int
    begin_log_offset: int
    end_log_offset: int
    slots_used: int
    units: int
    full: bool


class IndexFile:
    """One mapped file. Unmapped when the last reader lets go of it."""

    def __init__(self, path: Path, slot_count: int, unit_count: int, *, writable: bool) -> None:
        # Before it is opened: an interrupt may come between the return of the call and the next instruction.
        self._opened = ffi.gc(ffi.new("mq_index **"), lib.mq_index_close)
        result = lib.mq_index_open(bytes(path), slot_count, unit_count, writable, self._opened)
        if result == lib.MQ_MISSING:
            raise FileNotFoundError(path)
        if result == lib.MQ_CORRUPT:
            raise StoreCorrupted(
                f"{path} is not an index of {slot_count} slots and {unit_count} units:"
                " remove it while the store is closed, and it is built again",
                path=str(path),
            )
        check(result, str(path))
        self.path = path
        self.handle = self._opened[0]

    def state(self) -> State:
        state = ffi.new("mq_index_state *")
        lib.mq_index_get_state(self.handle, state)
        return State(
            state.begin_time,
            state.end_time,
            state.begin_log_offset,
            state.end_log_offset,
            state.slots_used,
            state.units,
            bool(state.full),
        )


class Index:
    """All files of index/, as any number of processes see them."""

    def __init__(self, directory: Path, *, slot_count: int, unit_count: int, read_only: bool = False) -> None:
        self._directory = directory
        self._slot_count = slot_count
        self._unit_count = unit_count
        self._writable = not read_only
        # Changed by single calls of C, without a lock: a signal handler may look up what its thread does.
        self._open: dict[str, IndexFile] = {}

    def close(self) -> None:
        """Let go of the files. Look-ups under way end first: each holds the file it is in."""
        self._open = {}

    def files(self) -> list[IndexFile]:
        """The files that are there now, oldest first. Raises StoreCorrupted for one of another length."""
        opened = self._open  # What close() or clear() replaces meanwhile goes with the last look-up.
        try:
            names = sorted(path.name for path in self._directory.iterdir() if NAME.fullmatch(path.name))
        except FileNotFoundError:
            names = []
        files = []
        for name in names:
            file = opened.get(name) or self._map(self._directory / name)
            if file is not None:
                files.append(opened.setdefault(name, file))
        # One that another thread has mapped since the names were read may go as well: it is mapped again.
        for name in opened.keys() - set(names):
            opened.pop(name, None)
        return files

    def _map(self, path: Path) -> IndexFile | None:
        try:
            if path.stat().st_size == 0:
                return None  # About to be made, or its maker died just then.
            return IndexFile(path, self._slot_count, self._unit_count, writable=self._writable)
        except FileNotFoundError:
            return None  # Too old to be kept, since its name was read.

    # Look-ups, at any time and without a lock.

    def find(self, topic: str, key: str, begin_ms: int = 0, end_ms: int | None = None) -> Iterator[int]:
        """Log offsets of records that may have this key and time, newest first, each once."""
        name, word = topic.encode(), key.encode()
        hash_ = lib.mq_index_hash(name, len(name), word, len(word))
        begin_ms = min(max(begin_ms, 0), TIME_MAX)
        end_ms = TIME_MAX if end_ms is None else min(max(end_ms, -1), TIME_MAX)
        log_offsets = ffi.new("int64_t[]", FOUND_AT_ONCE)
        unit = ffi.new("int32_t *")
        seen: set[int] = set()
        for file in reversed(self.files()):
            state = file.state()
            if state.units == 0 or state.begin_time > end_ms:
                continue
            if state.end_time < begin_ms:
                return
            unit[0] = 0
            while True:
                count = check(
                    lib.mq_index_find(file.handle, hash_, begin_ms, end_ms, unit, FOUND_AT_ONCE, log_offsets),
                    str(file.path),
                )
                for log_offset in ffi.unpack(log_offsets, count):
                    if log_offset not in seen:
                        seen.add(log_offset)
                        yield log_offset
                if unit[0] == 0:
                    break

    def end_log_offset(self) -> int | None:
        """Where the newest indexed record lies, None if there is none.

        Its own keys may not all be there: the next builder starts with it.
        """
        for file in reversed(self.files()):
            state = file.state()
            if state.units > 0:
                return state.end_log_offset
        return None

    def begin_log_offset(self) -> int | None:
        """Where the oldest indexed record lies, None if there is none."""
        for file in self.files():
            state = file.state()
            if state.units > 0:
                return state.begin_log_offset
        return None

    # Writing, with the index lock held.

    def put(self, log: Any, begin: int, until: int) -> int:
        """Index the records of `log` (an mq_log) that begin in [begin, until); say where the last one ends.

        `begin` is where a record begins, `until` any offset. What is in already is passed over, so
        `begin` may lie too low. Raises StoreFull, or the error of a record that cannot be read; what
        was put before it stays.
        """
        if begin >= until:
            return begin
        reached = ffi.new("int64_t *", begin)
        keys_done = ffi.new("int32_t *", 0)
        file = self._newest()
        while not check(lib.mq_index_build(file.handle, log, until, reached, keys_done), str(file.path)):
            file = self._roll()
        return int(reached[0])

    def delete_before(self, log_offset: int) -> int:
        """Remove files whose records all lie below `log_offset`, but never the newest. Says how many.

        Needs no lock: only the newest changes.
        """
        count = 0
        for file in self.files()[:-1]:
            if file.state().end_log_offset >= log_offset:
                break
            file.path.unlink(missing_ok=True)
            count += 1
        return count

    def discard_after(self, index_msg_timestamp: int, log_end: int) -> int:
        """After a crash of the machine: remove what may not have been on disk. Says how many files.

        `index_msg_timestamp` is the checkpoint's: full files up to that time were forced to disk before it
        was written. From the first doubtful file on, all go.
        """
        try:
            files = self.files()
        except StoreCorrupted:
            self.clear()  # One is of another length.
            return 0
        kept = 0
        for file in files:
            state = file.state()
            if not state.full or state.end_time > index_msg_timestamp or state.end_log_offset >= log_end:
                break
            kept += 1
        for file in reversed(files[kept:]):
            file.path.unlink()
        self._remove_unmade()
        return len(files) - kept

    def clear(self) -> None:
        """Remove all files."""
        self._open = {}
        for path in sorted(self._directory.glob("*")):
            if NAME.fullmatch(path.name):
                path.unlink()

    def sync_full(self, index_msg_timestamp: int) -> int:
        """Force full files newer than this to disk; the result is what the checkpoint may say then.

        Needs no lock: a full file changes no more. A file counts once the next one begins at a later
        time: equal times would vouch for both. Should the log then lose records that a file has, in a
        crash before they were flushed, discard_after sees it by the log's end.
        """
        files = self.files()
        for file, after in itertools.pairwise(files):
            state, next_state = file.state(), after.state()
            if state.end_time <= index_msg_timestamp:
                continue
            if not state.full or next_state.units == 0 or next_state.begin_time <= state.end_time:
                break
            check(lib.mq_index_sync(file.handle), str(file.path))
            self._sync_names()
            index_msg_timestamp = state.end_time
        return index_msg_timestamp

    def sync(self) -> None:
        """Force everything to disk: for a clean shutdown."""
        for file in self.files():
            check(lib.mq_index_sync(file.handle), str(file.path))
        self._sync_names()

    def _sync_names(self) -> None:
        if self._directory.is_dir():
            sync_names(self._directory)
            sync_names(self._directory.parent)

    def _newest(self) -> IndexFile:
        files = self.files()
        if not files:
            return self._roll()
        if len(files) > 1 and files[-1].state().units == 0:
            self._continue(files[-1], files[-2])  # Its maker may have died before it did so.
        return files[-1]

    def _roll(self) -> IndexFile:
        """Make a new file and have it go on where the newest ends."""
        try:
            make_directory(self._directory)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                check(lib.MQ_FULL, str(self._directory))
            raise
        self._remove_unmade()
        files = self.files()
        path = self._directory / name_after(files[-1].path.name if files else "", time.time_ns() // 1_000_000)
        check(lib.mq_index_create(bytes(path), self._slot_count, self._unit_count), str(path))
        newest = self.files()[-1]
        if files:
            self._continue(newest, files[-1])
        return newest

    def _continue(self, file: IndexFile, before: IndexFile) -> None:
        state = ffi.new("mq_index_state *")
        lib.mq_index_get_state(before.handle, state)
        check(lib.mq_index_continue(file.handle, state), str(file.path))

    def _remove_unmade(self) -> None:
        """Remove empty files: their maker died, since making one takes the lock."""
        if self._directory.exists():
            for path in self._directory.iterdir():
                # Old ones are deleted meanwhile, without the lock.
                with suppress(FileNotFoundError):
                    if NAME.fullmatch(path.name) and path.stat().st_size == 0:
                        path.unlink()

    def problems(self) -> Iterator[str]:
        """Every rule that a file breaks, in words. Nobody may write meanwhile."""
        try:
            files = self.files()
        except StoreCorrupted as error:
            yield str(error)
            return
        end_log_offset = 0
        for number, file in enumerate(files):
            state = file.state()
            broken = check(lib.mq_index_check(file.handle), str(file.path))
            if broken:
                yield f"{file.path}: {broken} slots or units break the rules of index.h"
            if number > 0 and state.units > 0 and state.begin_log_offset < end_log_offset:
                yield f"{file.path}: begins below the end of the file before it"
            if not state.full and number < len(files) - 1:
                yield f"{file.path}: is not full, yet not the newest"
            end_log_offset = max(end_log_offset, state.end_log_offset)


def name_after(name: str, now_ms: int) -> str:
    """The name of a file made now: local time, but always later than `name`."""
    seconds, milliseconds = divmod(now_ms, 1000)
    fresh = f"{time.strftime('%Y%m%d%H%M%S', time.localtime(seconds))}{milliseconds:03}"
    return fresh if fresh > name else f"{int(name) + 1:017}"
