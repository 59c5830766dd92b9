"""The sizes that all processes of a directory, and a RocketMQ broker, must agree on.

Kept in mq/geometry.json, which can be rebuilt: mq/control says the same, and the lengths of the files tell
most of them; RocketMQ's own sizes are the defaults. An index file's length does not tell slots from units,
so a directory made by a broker with other index sizes and without our files asks the user once.

A file of another length than the others is damaged, and says nothing. Where mq/control and the files say the
same, mq/geometry.json does not count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from logging import getLogger
from pathlib import Path

from mq.errors import ConfigMismatch, StoreCorrupted
from mq.store.directory.owner import open_made
from mq.store.directory.root import size_of
from mq.store.log.commitlog import segment_files
from mq.store.native import lib
from mq.store.queue.consumequeue import queue_directories
from mq.store.shared.control import Control

__all__ = ["FileSizes", "agree"]

log = getLogger("mq.store")


@dataclass(frozen=True, slots=True)
class FileSizes:
    """File sizes: RocketMQ's mappedFileSizeCommitLog, mappedFileSizeConsumeQueue / 20, maxHashSlotNum,
    maxIndexNum, mappedFileSizeConsumeQueueExt."""

    commitlog_file_size: int = 1 << 30
    queue_file_units: int = 300_000
    index_slot_count: int = 5_000_000
    index_unit_count: int = 20_000_000
    consume_queue_ext_file_size: int = lib.MQ_EXT_FILE_SIZE_USUAL

    @property
    def queue_file_size(self) -> int:
        return self.queue_file_units * int(lib.MQ_UNIT_SIZE)

    @property
    def index_file_size(self) -> int:
        return (
            int(lib.MQ_INDEX_HEADER_SIZE)
            + self.index_slot_count * int(lib.MQ_INDEX_SLOT_SIZE)
            + self.index_unit_count * int(lib.MQ_INDEX_UNIT_SIZE)
        )


BOUNDS = {
    "commitlog_file_size": (4096, 1 << 40),
    "queue_file_units": (1, 100_000_000),
    "index_slot_count": (1, 500_000_000),
    "index_unit_count": (2, 2_000_000_000 // 20),
    "consume_queue_ext_file_size": (256, 1 << 40),
}


def validated(asked: dict[str, int | None]) -> dict[str, int]:
    """The options that were given, within bounds. Raises TypeError, ValueError."""
    given = {}
    for name, value in asked.items():
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} is a number of type int, not {type(value).__name__}")
        low, high = BOUNDS[name]
        if not low <= value <= high:
            raise ValueError(f"{name}={value:,} is outside {low:,} … {high:,}")
        given[name] = value
    return given


def _sizes(root: Path, kind: str) -> Iterator[int | None]:
    """The lengths of the files of all queues."""
    return (
        size_of(file)
        for _, _, directory in queue_directories(root, kind)
        for file in segment_files(directory)
    )


def _shared_sizes(root: Path) -> dict[str, int]:
    """What the control file says of them, a copy's too."""
    try:
        control = Control(root / "mq" / "control", create=False, peek=True)
    except (OSError, StoreCorrupted):
        return {}
    found = {
        "commitlog_file_size": control.get(lib.MQ_FILE_SIZE),
        "queue_file_units": control.get(lib.MQ_QUEUE_FILE_SIZE) // int(lib.MQ_UNIT_SIZE),
        "index_slot_count": control.get(lib.MQ_INDEX_SLOTS),
        "index_unit_count": control.get(lib.MQ_INDEX_UNITS),
        "consume_queue_ext_file_size": control.get(lib.MQ_EXT_FILE_SIZE),
    }
    return found if all(low <= found[name] <= high for name, (low, high) in BOUNDS.items()) else {}


def _agreed(sizes: Iterable[int | None], unit: int, said: int | None, vouched: int | None) -> int | None:
    """The length, in units, that files of one kind were made with: the one that is said, if a file or a
    second witness has it; else the one that most of them have. One that is gone, or still empty, tells
    nothing."""
    if said is not None and said == vouched:
        return said  # Without a look at any file: there may be very many.
    counts: dict[int, int] = {}
    for size in sizes:
        if size and size % unit == 0:
            counts[size // unit] = counts.get(size // unit, 0) + 1
            if size // unit == said:
                return said
    if said is not None and not counts:
        return said
    return max(counts, key=lambda size: counts[size]) if counts else None


def _said(root: Path) -> dict[str, int] | None:
    """What mq/geometry.json says, if it can be."""
    try:
        table = json.loads((root / "mq" / "geometry.json").read_text())
        found = {field.name: int(table[field.name]) for field in fields(FileSizes) if field.name in table}
        validated(dict(found))
    except (OSError, ValueError, TypeError, AttributeError, OverflowError):
        return None
    return found


def _told(root: Path, said: dict[str, int], vouched: dict[str, int]) -> dict[str, int]:
    """What is said, but for what the lengths of files tell otherwise."""
    found = dict(said)
    for name, sizes, unit in (
        ("commitlog_file_size", map(size_of, segment_files(root / "commitlog")), 1),
        ("queue_file_units", _sizes(root, "consumequeue"), int(lib.MQ_UNIT_SIZE)),
        ("consume_queue_ext_file_size", _sizes(root, "consumequeue_ext"), 1),
    ):
        if (value := _agreed(sizes, unit, said.get(name), vouched.get(name))) is not None:
            found[name] = value
    return found


def _stored(root: Path) -> dict[str, int]:
    """What the directory says of itself, as far as it does."""
    link = next((file for file in segment_files(root / "commitlog") if file.is_symlink()), None)
    if link is not None:
        raise StoreCorrupted(
            f"{link} is a symbolic link: put the file itself there, or make commitlog/ as a whole a link",
            path=str(link),
        )
    vouched, said = _shared_sizes(root), _said(root)
    if said is None:
        said = vouched  # Ours, and derived: what cannot be read is read off other files.
    found = _told(root, said, vouched)
    wrong = [name for name, value in found.items() if said.get(name, value) != value]
    if wrong and all(found[name] == vouched.get(name) for name in wrong):
        # Two witnesses against one.
        log.warning(
            "%s/mq/geometry.json is not of this store: it says %s=%s, and mq/control and the files say %s."
            " The sizes that mq/control has count",
            root, wrong[0], f"{said[wrong[0]]:,}", f"{found[wrong[0]]:,}",
        )  # fmt: skip
        said = vouched
        found = _told(root, said, vouched)
    for name, value in found.items():
        low, high = BOUNDS[name]
        if said.get(name, value) != value:
            raise StoreCorrupted(
                f"{root}: its files say {name}={value:,}, and mq/geometry.json says {said[name]:,}: if a file"
                " was cut or stretched, put it back, or delete it if it is a queue's; if mq/geometry.json is"
                " another store's, delete that",
                path=str(root),
            )
        if not low <= value <= high:
            raise StoreCorrupted(
                f"{root}: its files say {name}={value:,}, which must be from {low:,} to {high:,}: one was cut"
                " or stretched; put it back, or delete it if it is a queue's",
                path=str(root),
            )
    return found


def agree(root: Path, asked: dict[str, int | None]) -> FileSizes:
    """The sizes of the store at `root`: its own if it has any, else what is asked for, else RocketMQ's.

    Raises ConfigMismatch where the two differ.
    """
    given = validated(asked)
    stored = _stored(root)
    for name, value in given.items():
        if name in stored and stored[name] != value:
            raise ConfigMismatch(
                f"{root} was made with {name}={stored[name]:,}; {value:,} was asked for:"
                " leave the option out, or use another directory",
                option=name,
                stored=stored[name],
                asked=value,
            )
    file_sizes = FileSizes(**{**given, **stored})
    for file in sorted((root / "index").glob("[0-9]" * 17)):
        size = size_of(file) or 0
        # One that is being made is empty; with sizes that are known for sure, any other is damaged, and
        # made anew.
        if size not in (0, file_sizes.index_file_size) and "index_slot_count" not in stored:
            raise ConfigMismatch(
                f"{file} has {size:,} bytes, not the {file_sizes.index_file_size:,} of"
                f" index_slot_count={file_sizes.index_slot_count:,} and"
                f" index_unit_count={file_sizes.index_unit_count:,}:"
                " pass the sizes that it was made with, or delete index/ (it is rebuilt)",
                option="index_slot_count",
                stored=size,
                asked=file_sizes.index_file_size,
            )
    return file_sizes


def keep(root: Path, file_sizes: FileSizes) -> None:
    path = root / "mq" / "geometry.json"
    text = json.dumps(asdict(file_sizes), indent=1)
    try:
        if path.read_text() == text:
            return
    except (OSError, ValueError):
        pass
    fresh = path.with_suffix(".new")
    fd = open_made(fresh, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(fd, text.encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    fresh.replace(path)
