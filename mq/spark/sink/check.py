"""What is wrong with the staged files of sinks, and what is merely left of the dead.

    places    mq/spark and the directories in it can be used
    files     of an epoch that the log has a part of: those that hold the rest are there, and whole

A staged file that no such epoch names and that nobody writes is no damage: its task or its driver died, or a
commit is about to come.
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
from mq.spark.sink.ledger import key_of, way_out
from mq.spark.sink.sinks import Sink, StagedFile, sinks
from mq.spark.sink.staging import AGE_MAX, directory
from mq.spark.target import opened

__all__ = ["lost", "problems", "remains"]

MAGIC = b"ARROW1"  # at both ends of a file


def problems(root: Path) -> Iterator[str]:
    """Yield what is wrong, in words. Raises nothing."""
    yield from _of_places(root / "mq" / "spark")
    yield from _each(root, _of_files)


def remains(root: Path) -> Iterator[str]:
    """Yield what the dead have left, or what is under way. Raises nothing."""
    yield from _each(root, _left)


def _each(root: Path, look: Callable[[DirectoryBroker], Iterator[str]]) -> Iterator[str]:
    if not os.path.lexists(root / "mq" / "spark"):
        return
    try:
        with opened(root, read_only=True) as broker:
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
                yield f"{each}: this is no directory: nobody uses it, or can use its name: remove it"
            elif _is_other(stat.S_ISREG, each / "lock"):
                yield f"{each / 'lock'}: this is no file: nobody can commit until it is removed"
    except (FileNotFoundError, NotADirectoryError):
        return  # No sink has staged anything here yet.
    except OSError as error:
        yield f"{place} cannot be read: {error.strerror or error}"


def _is_other(kind: Callable[[int], bool], path: Path) -> bool:
    """Whether there is something, and not of this kind. A sink that is done removes what is its own."""
    try:
        return not kind(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _of_files(broker: DirectoryBroker) -> Iterator[str]:
    for sink in sinks(broker):
        if found := lost(broker.path, sink):
            # Somebody may have appended the rest meanwhile, and removed them.
            again = {each.txn: each.last for each in sinks(broker)}
            if again.get(sink.txn) != sink.last:
                continue
            assert sink.last is not None
            for path, why in found:
                yield (
                    f"{path}: {why}; it has rows of epoch {sink.last.epoch} of sink {sink.txn!r}, of which"
                    f" the log has the first {sink.rows:,} alone: {way_out(str(broker.path), sink.txn)}"
                )


def lost(root: Path, sink: Sink) -> list[tuple[Path, str]]:
    """Staged files that are not sound any more, and why: of those that hold the rest of an epoch of which the
    log has a part."""
    if sink.last is None or sink.last.is_whole:
        return []
    try:
        place = directory(root, key_of(sink.txn))
    except (MQError, ValueError):
        return []  # No sink has such an id: somebody else sent that to the ledger.
    found = []
    for name in sink.last.files:
        path = place / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            found.append((place, f"the ledger names {name!r}, which no sink stages"))
        elif (why := _wrong(path)) is not None:
            found.append((path, why))
    return found


def _wrong(path: Path) -> str | None:
    """Why a file is not a whole one of Arrow's."""
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
        # What is staged for an epoch that is under way goes when it is finished.
        under_way = last.epoch if last is not None and not last.is_whole else -1
        idle = [file for file in sink.staged if not file.is_being_written and file.epoch != under_way]
        for (folder, epoch), files in groupby(idle, lambda file: (file.path.parent, file.epoch)):
            yield f"{folder}: {_fate(sink, epoch, list(files), now)}"


def _fate(sink: Sink, epoch: int, files: list[StagedFile], now: float) -> str:
    size = sum(file.size for file in files)
    said = f"{len(files):,} {'file' if len(files) == 1 else 'files'}, {size:,} bytes, "
    if sink.last is not None and epoch <= sink.last.epoch:
        return said + "of an epoch that the log has: of the dead, and removed by the next commit"
    if all(now - file.changed > AGE_MAX for file in files):
        return (
            said
            + "which nobody has written to for long: of the dead, and removed when the next sink is planned"
        )
    return (
        said
        + "which wait for a commit, or are of the dead; they are removed by a later commit, or after a day"
    )
