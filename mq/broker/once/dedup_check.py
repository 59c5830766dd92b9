"""Every invariant of what is remembered of keys, as a list of what breaks it.

    mq/dedup          header and buckets have checksums that fit, and all buckets are there
    mq/once/<group>   header, words and marks likewise; the marks are of numbers that were given

Both mend themselves, at the price that is named. Looks at files alone, beside processes at work: what does
not fit is looked at again before it is told, since it may have been half written.
"""

from __future__ import annotations

import itertools
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import xxhash

from mq.broker.once import handled_keys
from mq.errors import MQError
from mq.names import check_group
from mq.store.dedup import table as dedup_table
from mq.store.directory.owner import opened_file

__all__ = ["problems"]

LISTED_MAX = 20  # of one file
PIECE_SIZE = 1 << 20  # whole marks and whole buckets
LOOKS, LOOK_SECONDS = 3, 0.002
WORD = struct.Struct("=q")
ASKED = "it is made anew when somebody next sends with a key, and the index is asked meanwhile"
AGAIN = "it is made anew when the group is next used, and what comes again is handled again"
assert PIECE_SIZE % handled_keys.MARK_SIZE == PIECE_SIZE % dedup_table.BUCKET_SIZE == 0


def problems(root: Path) -> Iterator[str]:
    """Yield what is wrong, in words; nothing where there are no such files. Raises nothing."""
    dedup, directory = root / "mq" / "dedup", root / "mq" / "once"
    if os.path.lexists(dedup):
        yield from _listed(dedup, _of_dedup, "nobody can send with a dedup key until it is removed")
    try:
        files = sorted(directory.iterdir())
    except FileNotFoundError:
        files = []
    except OSError as error:
        yield f"{directory}: {error.strerror or error}: nobody can use mq.Once until it is removed"
        files = []
    for path in files:
        yield from _listed(path, _of_once, "the group cannot use mq.Once until it is removed")


def _listed(path: Path, look: Callable[[Path, int, int], Iterator[str]], no_file: str) -> Iterator[str]:
    try:
        with _opened(path) as opened:
            if opened is None:
                found = [f"{path}: this is no file: {no_file}"]
            else:
                found = list(itertools.islice(look(path, *opened), LISTED_MAX + 1))
    except OSError as error:
        found = [f"{path} cannot be read: {error.strerror or error}"]
    yield from found[:LISTED_MAX]
    if len(found) > LISTED_MAX:
        yield f"{path}: and more of these"


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, int] | None]:
    """Descriptor and size of a file, never through a link; None for what is no file."""
    if path.is_symlink():
        yield None
        return
    # Opening a pipe would wait for its other end.
    with opened_file(path, os.O_RDONLY | os.O_NONBLOCK) as fd:
        found = os.fstat(fd)
        yield (fd, found.st_size) if stat.S_ISREG(found.st_mode) else None


def _fits(look: Callable[[], bool]) -> bool:
    """Whether something fits in one of several looks: somebody may be writing it."""
    for _ in range(LOOKS):
        if look():
            return True
        time.sleep(LOOK_SECONDS)
    return False


def _of_dedup(path: Path, fd: int, size: int) -> Iterator[str]:
    def head() -> bytes:
        return os.pread(fd, dedup_table.HEADER.size, 0)

    if not _fits(lambda: _is_dedup_header(head())):
        yield f"{path}: the header, at 0, is damaged, or another version's; {ASKED}"
        return
    if not (data := head()).strip(b"\0"):
        return  # Somebody is making it, or died doing so: the next one makes it.
    size = os.fstat(fd).st_size  # Not before: it has all its buckets when it has a header.
    count, begin, width = dedup_table.HEADER.unpack(data)[3], dedup_table.BUCKETS_AT, dedup_table.BUCKET_SIZE
    if count <= 0 or size < dedup_table.size_of(count):
        yield f"{path}: {size:,} bytes, which are no {count:,} buckets; {ASKED}"
    for at, piece in _pieces(fd, begin, min(size, begin + count * width), width):
        if not _is_bucket(piece) and not _fits(partial(_is_bucket_at, fd, at)):
            yield f"{path}: the bucket at {at} is damaged; the index is asked for the keys that were in it"


def _is_dedup_header(data: bytes) -> bool:
    if not data.strip(b"\0"):
        return True
    if len(data) < dedup_table.HEADER.size or not data.startswith(dedup_table.STAMP):
        return False
    return xxhash.xxh3_64_digest(data[: -dedup_table.CHECK_SIZE]) == data[-dedup_table.CHECK_SIZE :]


def _is_bucket(data: bytes) -> bool:
    return xxhash.xxh3_64_digest(data[dedup_table.CHECK_SIZE :]) == data[: dedup_table.CHECK_SIZE]


def _is_bucket_at(fd: int, at: int) -> bool:
    return _is_bucket(os.pread(fd, dedup_table.BUCKET_SIZE, at))


def _of_once(path: Path, fd: int, size: int) -> Iterator[str]:
    try:
        check_group(path.name)
    except MQError:
        yield f"{path}: a foreign file, since no group has this name: nobody reads it, remove it"
        return
    head = os.pread(fd, handled_keys.HEAD_SIZE, 0)
    if not head.strip(b"\0"):
        if next(_not_zero(fd, 0, size, handled_keys.MARK_SIZE), None) is None:
            return
        if not _fits(lambda: bool(os.pread(fd, handled_keys.HEAD_SIZE, 0).strip(b"\0"))):
            yield f"{path}: the header, at 0, is missing; {AGAIN}"
            return
        head = os.pread(fd, handled_keys.HEAD_SIZE, 0)
    if len(head) < handled_keys.HEAD_SIZE or not _is_once_header(head):
        yield f"{path}: the header, at 0, is damaged, or another version's; {AGAIN}"
        return
    kept = handled_keys.HEAD.unpack_from(head)[1]
    if not 0 < kept <= handled_keys.SIZE_MAX:
        yield f"{path}: the header, at 0, says that it keeps {kept:,} keys: remove the file; {AGAIN}"
        return
    wanted, size = handled_keys.MARKS_AT + kept * handled_keys.MARK_SIZE, os.fstat(fd).st_size
    if size < wanted:
        yield f"{path}: {size:,} bytes, not {wanted:,}; keys that were in the rest are handled again"
    for name, place in (
        ("which the next mark is", handled_keys.NEXT),
        ("which mark is the first", handled_keys.BEGIN),
    ):
        if not _fits(partial(_is_word, fd, place)):
            yield f"{path}: {name}, at {place * 8}, is damaged; the marks tell it when it is next used"
    for at, piece in _not_zero(fd, handled_keys.MARKS_AT, min(size, wanted), handled_keys.MARK_SIZE):
        place = (at - handled_keys.MARKS_AT) // handled_keys.MARK_SIZE
        if not _is_mark(piece, place, kept) and not _fits(partial(_is_mark_at, fd, at, place, kept)):
            yield f"{path}: the mark at {at} is damaged; its key is handled again if it comes again"


def _is_once_header(head: bytes) -> bool:
    return head.startswith(handled_keys.STAMP) and xxhash.xxh3_64_digest(head[:-8]) == head[-8:]


def _is_word(fd: int, place: int) -> bool:
    data = os.pread(fd, 16, place * 8)
    if len(data) < 16:
        return False
    value: int = WORD.unpack_from(data)[0]
    return value == ~WORD.unpack_from(data, 8)[0] and 0 < value < handled_keys.NUMBER_MAX


def _is_mark(data: bytes, place: int, kept: int) -> bool:
    if len(data) < handled_keys.MARK_SIZE:
        return False
    digest, number, check = handled_keys.MARK.unpack(data)
    sound: bool = check == xxhash.xxh3_64_digest(handled_keys.NUMBERED.pack(digest, number))
    return sound and 0 < number < handled_keys.NUMBER_MAX and number % kept == place


def _is_mark_at(fd: int, at: int, place: int, kept: int) -> bool:
    return _is_mark(os.pread(fd, handled_keys.MARK_SIZE, at), place, kept)


def _pieces(fd: int, begin: int, end: int, width: int) -> Iterator[tuple[int, bytes]]:
    """Pieces of this width, and where they are; the last may be cut short."""
    for start in range(begin, end, PIECE_SIZE):
        data = os.pread(fd, min(PIECE_SIZE, end - start), start)
        for at in range(0, len(data), width):
            yield start + at, data[at : at + width]


def _not_zero(fd: int, begin: int, end: int, width: int) -> Iterator[tuple[int, bytes]]:
    """Those that are not all zeros."""
    for at, piece in _pieces(fd, begin, end, width):
        if piece.strip(b"\0"):
            yield at, piece
