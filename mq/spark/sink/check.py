"""The check of staged files: problems, and leftovers of dead processes.

    directories   mq/spark and the directories in it can be used
    files         if the log has a part of an epoch, the files with the rest exist and are complete

A staged file that no such epoch names is no problem: its task or driver died, or its commit is still to come.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from mq.api.broker import DirectoryBroker
from mq.errors import MQError
from mq.spark.sink.ledger import key_of, recovery_advice
from mq.spark.sink.sinks import Sink, StagedFile, sinks
from mq.spark.sink.staging import AGE_MAX, sink_directory
from mq.spark.target import open_store

__all__ = ["leftovers", "lost", "problems"]

MAGIC = b"ARROW1"  # at both ends of a file


def problems(root: Path) -> Iterator[str]:
    """Yield a description of each problem. Raises nothing."""
    yield from _of_places(root / "mq" / "spark")
    yield from _each(root, _of_files)


def leftovers(root: Path) -> Iterator[str]:
    """Yield a description of files left by dead processes or unfinished commits. Raises nothing."""
    yield from _each(root, _left)


def _each(root: Path, look: Callable[[DirectoryBroker], Iterator[str]]) -> Iterator[str]:
    if not os.path.lexists(root / "mq" / "spark"):
        return
    try:
        with open_store(root, read_only=True) as broker:
            yield from look(broker)
    except (MQError, OSError) as error:
        yield f"{root / 'mq' / 'spark'} cannot be looked at: {error}"


def _of_places(place: Path) -> Iterator[str]:
    try:
        if _is_other(stat.S_ISDIR, place):
            yield f"{place}: this is no directory: no sink can stage rows until it is removed"
            return
        for each in sorted(place.iterdir()):
            if _is_other(stat.S_ISDIR, each):
                yield f"{each}: this is no directory, and blocks a sink of that name: remove it"
            elif _is_other(stat.S_ISREG, each / "lock"):
                yield f"{each / 'lock'}: this is no file: no sink can commit until it is removed"
    except (FileNotFoundError, NotADirectoryError):
        return  # No sink has staged anything here yet.
    except OSError as error:
        yield f"{place} cannot be read: {error.strerror or error}"


def _is_other(kind: Callable[[int], bool], path: Path) -> bool:
    """Whether a path exists and is not of this kind. A sink that finished may have removed it meanwhile."""
    try:
        return not kind(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _of_files(broker: DirectoryBroker) -> Iterator[str]:
    for sink in sinks(broker):
        if found := lost(broker.path, sink):
            # Another process may have appended the rest meanwhile and removed the files.
            again = {each.txn: each.last for each in sinks(broker)}
            if again.get(sink.txn) != sink.last:
                continue
            assert sink.last is not None
            for path, why in found:
                yield (
                    f"{path}: {why}; it has rows of epoch {sink.last.epoch} of sink {sink.txn!r}, of which"
                    f" the log has only the first {sink.rows:,}:"
                    f" {recovery_advice(str(broker.path), sink.txn)}"
                )


def lost(root: Path, sink: Sink) -> list[tuple[Path, str]]:
    """The missing or damaged files among those that hold the rest of a partly appended epoch, with the
    reason."""
    if sink.last is None or sink.last.is_whole:
        return []
    try:
        place = sink_directory(root, key_of(sink.txn))
    except (MQError, ValueError):
        return []  # No sink has such an id: another program sent this to the ledger's topic.
    found = []
    for name in sink.last.files:
        path = place / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            found.append((place, f"the ledger names {name!r}, which no sink stages"))
        elif (why := _wrong(path)) is not None:
            found.append((path, why))
    return found


def _wrong(path: Path) -> str | None:
    """Why a file is not a complete Arrow file; None if it is."""
    try:
        if path.is_symlink() or not path.is_file():
            return "this is no file" if os.path.lexists(path) else "it is missing"
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
            file.seek(max(0, file.seek(0, os.SEEK_END) - len(MAGIC)))
            end = file.tell()
            tail = file.read(len(MAGIC))
    except OSError as error:
        return f"it cannot be read ({error.strerror or error})"
    if head != MAGIC:
        return "at 0 it does not begin as a staged file does"
    return None if tail == MAGIC else f"at {end} it does not end as a staged file does"


def _left(broker: DirectoryBroker) -> Iterator[str]:
    now = time.time()
    for sink in sinks(broker):
        last = sink.last
        if last is not None and not last.is_whole and not lost(broker.path, sink):
            yield (
                f"sink {sink.txn!r}: the log has {sink.rows:,} rows of epoch {last.epoch}, and not the rest:"
                " its next commit appends that, or the next sink that is planned on this store"
            )
        # The files of an unfinished epoch are removed when it is finished.
        under_way = last.epoch if last is not None and not last.is_whole else -1
        idle = [file for file in sink.staged if not file.is_being_written and file.epoch != under_way]
        for (folder, epoch), files in groupby(idle, lambda file: (file.path.parent, file.epoch)):
            yield f"{folder}: {_fate(sink, epoch, list(files), now)}"


def _fate(sink: Sink, epoch: int, files: list[StagedFile], now: float) -> str:
    size = sum(file.size for file in files)
    said = f"{len(files):,} {'file' if len(files) == 1 else 'files'}, {size:,} bytes, "
    if sink.last is not None and epoch <= sink.last.epoch:
        return said + "of an epoch that the log has: left by a dead process, removed by the next commit"
    if all(now - file.changed > AGE_MAX for file in files):
        return (
            said
            + "not written to for over a day: left by a dead process, removed when the next sink is planned"
        )
    return (
        said
        + "which wait for a commit, or are left by a dead process; a later commit removes them, or they are"
        " removed after a day"
    )
