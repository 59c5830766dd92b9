"""Extensions of queue units: what tells, beside the tag, that nobody wants a message without reading it.

Written if a broker is opened with enable_consume_queue_ext=True, understood always. A unit whose message has
one carries its address in the place of the tags code: the byte offset among the queue's extensions, less
2**63. No hash of a tag is that low, so units of both kinds may follow each other in any order.

On disk: consumequeue_ext/<topic>/<queue id>/<byte offset of the first extension, 20 digits>, files of equal
size. Integers big-endian:

    offset  size  field
         0     2  size             of the extension: 20 and the bitmap's
         2     8  tags_code        what the unit would say without it
        10     8  store_time       ms
        18     2  bitmap_size      0: none
        20     n  bitmap           of the SQL92 consumers that want the message: mq/filter/bloom.py

An extension does not cross files, and four bytes of a file stay behind the last one, of which the first two
are then ff ff. Nothing lies behind the last extension of all but zeros.

Extensions have no checksum and repeat what the record says. Where one is lost its unit says the same without
it, or the message counts as wanted by everybody; none is ever put in the place of another that units may
still point to.

RocketMQ: store/ConsumeQueueExt.java.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

from mq.store.log.commitlog import segment_files
from mq.store.native import check, ffi, lib

__all__ = [
    "Extension",
    "Marks",
    "discard_extensions",
    "extension_files",
    "load_extensions",
    "read_extension",
    "remove_old_extensions",
]


class Extension(NamedTuple):
    tags_code: int
    store_time_ms: int
    bitmap: bytes


class Marks(NamedTuple):
    """The bits of one consumer: a message whose bitmap lacks one of them is not for it."""

    positions: tuple[int, ...]
    bitmap_size: int  # bytes; a bitmap of another size says nothing
    since: int  # log offset; nor does one of a message before


def extension_files(root: Path, topic: str, queue_id: int) -> list[Path]:
    """The files of one queue's extensions, oldest first."""
    return segment_files(root / "consumequeue_ext" / topic / str(queue_id))


def discard_extensions(root: Path, topic: str, queue_id: int) -> None:
    """Remove them all: no unit points to them any more."""
    for file in extension_files(root, topic, queue_id):
        file.unlink()


def load_extensions(root: Path, log: Any, number: int, topic: str, queue_id: int, *, writable: bool) -> None:
    """In a recovery, once a queue's units are loaded: find where its extensions end; cut what is behind."""
    files = extension_files(root, topic, queue_id)
    files_end = int(files[-1].name) + files[-1].stat().st_size if files else 0
    end = check(lib.mq_extensions_load(log, number, files_end), str(root))
    for file in files if writable else ():
        if int(file.name) >= end:
            check(lib.mq_extensions_remove(log, number, int(file.name)), str(file))


def remove_old_extensions(root: Path, log: Any, number: int, topic: str, queue_id: int) -> None:
    """Remove the files that only messages below the queue's first one point to."""
    files = extension_files(root, topic, queue_id)
    if len(files) < 2:
        return
    begin = check(lib.mq_extensions_begin(log, number), str(root))
    for file, following in itertools.pairwise(files):
        if int(following.name) <= begin:
            file.unlink(missing_ok=True)


def read_extension(log: Any, number: int, tags_code: int) -> Extension | None:
    """What a unit's tags code is the address of; None if it is a tags code, or there is nothing there."""
    bitmap, size = ffi.new("char[]", lib.MQ_EXT_SIZE_MAX), ffi.new("int32_t *")
    values = ffi.new("int64_t[2]")
    code = lib.mq_queue_extension(log, number, tags_code, values, values + 1, bitmap, len(bitmap), size)
    if code in (lib.MQ_INVALID, lib.MQ_GONE):
        return None
    check(code)
    return Extension(values[0], values[1], ffi.buffer(bitmap, size[0])[:])
