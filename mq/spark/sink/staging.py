"""Files in which tasks put the rows of an epoch, until the driver appends them all at once.

    <store>/mq/spark/<transaction id>/<epoch>/<partition>-<attempt>-<a number that nobody else has>.arrow
                                      lock         held by the commit
                                      unfinished   there while an epoch is in the log in part
                                      lost         in its place if the rest cannot be appended

An Arrow file; each of its batches is for one queue, which its metadata names, and has two columns of binary:
body, and properties as a record has them. A file counts only if a commit names it: those of tasks that died,
or went on after their query was stopped, are swept away. While it is written, its writer holds a lock on it.

Nothing of this is forced to disk but the files of an epoch that is appended in several steps: those, and the
mark, before the first step (force). What a power cut takes otherwise is of an epoch that the log does not
have, and that Spark does again.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from mq.api.results import MessageQueue
from mq.spark.errors import Refusal
from mq.spark.sink.ledger import Place
from mq.spark.sink.stage_lock import LOCK_TIMEOUT, held_by_another, show_life, take
from mq.store.directory.owner import make_directory, open_made
from mq.store.log.multi_append import begin_writing

__all__ = [
    "Staged",
    "StagedBatch",
    "batches_of",
    "bury",
    "can_be_read",
    "directory",
    "drop",
    "finished",
    "force",
    "goes_on",
    "is_dead",
    "is_locked",
    "is_lost",
    "is_unfinished",
    "locked",
    "lose",
    "places",
    "remove",
    "stage",
    "sweep",
]

SUFFIX = ".arrow"
LOCK, UNFINISHED, LOST = "lock", "unfinished", "lost"
AGE_MAX = 24 * 3600.0  # seconds; what nobody wrote to for so long and nobody locks is of the dead
BATCH_BYTES_MAX = 8 << 20
BEGIN_BYTES = 16 << 20  # so large a file will be forced; while it grows the disk has nothing else to do
ROW_SIZE = 128  # what a record in the log has besides body and properties, about
QUEUE = b"queue"
GONE = (errno.ENOENT, errno.ENOTDIR)


class Staged(NamedTuple):
    """What one task has staged: a file beneath the directory of its transaction id."""

    file: str
    rows: int
    size: int


class StagedBatch(NamedTuple):
    """Rows for one queue."""

    queue: MessageQueue
    rows: Any  # a RecordBatch of body and properties
    is_free: bool = False  # any other queue of the topic would do

    @property
    def size(self) -> int:
        """About what it will take in the log."""
        return int(self.rows.nbytes) + int(self.rows.num_rows) * ROW_SIZE


def directory(root: Path, key: str) -> Path:
    return root / "mq" / "spark" / key


def places(root: Path) -> list[Path]:
    """The directories of all transaction ids that have one."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return [path for path in (root / "mq" / "spark").iterdir() if path.is_dir() and not path.is_symlink()]
    return []


def stage(place: Path, epoch: int, name: str, batches: Iterable[StagedBatch]) -> Staged:
    """Write a file of batches; without any there is none."""
    import pyarrow as pa

    target = place / str(epoch) / f"{name}-{uuid.uuid4().hex}{SUFFIX}"
    rows, size, begun, writer = 0, 0, 0, None
    with ExitStack() as stack:
        stack.callback(target.unlink, missing_ok=True)
        for whole in batches:
            for batch in _cut(whole):
                if writer is None:
                    file = stack.enter_context(_made(target))
                    # Nobody else writes it; somebody may be looking whether anybody does.
                    if not take(file, LOCK_TIMEOUT):
                        raise held_by_another(target, file)
                    writer = stack.enter_context(pa.ipc.new_file(file, batch.rows.schema))
                queue = f"{batch.queue.topic}/{batch.queue.broker_name}/{batch.queue.queue_id}"
                writer.write_batch(batch.rows, custom_metadata={QUEUE: queue})
                rows, size = rows + batch.rows.num_rows, size + batch.size
                if (end := file.tell()) - begun >= BEGIN_BYTES:
                    begin_writing(file.fileno(), begun, end)
                    begun = end
        if writer is None:
            return Staged("", 0, 0)
        writer.close()
        file.close()
        stack.pop_all()
    return Staged(f"{epoch}/{target.name}", rows, size)


def _made(target: Path) -> IO[bytes]:
    """A new file; a sweep may have taken the directory from under it."""
    while True:
        make_directory(target.parent, mode=0o777, parents=True)
        with suppress(FileNotFoundError):
            return open(target, "xb", opener=_opened)


def _cut(batch: StagedBatch) -> Iterator[StagedBatch]:
    """A batch is the least that is appended, so a large one is made several."""
    rows = batch.rows.num_rows
    step = max(1, rows * BATCH_BYTES_MAX // max(batch.size, BATCH_BYTES_MAX))
    for at in range(0, rows, step):
        yield StagedBatch(batch.queue, batch.rows.slice(at, step) if step < rows else batch.rows)


def batches_of(place: Path, files: Sequence[str], skip: int = 0) -> Iterator[tuple[Place, StagedBatch]]:
    """The batches of files, in their order, but for the first ones of the first file; read as they are asked
    for. Raises Refusal if a file is gone."""
    import pyarrow as pa

    for file, name in enumerate(files):
        with _lost(place / name), ExitStack() as stack:
            # Its pages stay as long as a batch of it is used, its descriptor does not: files may be many.
            source = stack.enter_context(pa.memory_map(str(place / name)))
            reader = stack.enter_context(pa.ipc.open_file(source))
            found = [
                reader.get_batch_with_custom_metadata(number)
                for number in range(skip if file == 0 else 0, reader.num_record_batches)
            ]
        for number, (rows, metadata) in enumerate(found, skip if file == 0 else 0):
            topic, broker_name, queue_id = metadata[QUEUE].decode().split("/")
            yield Place(file, number), StagedBatch(MessageQueue(topic, broker_name, int(queue_id)), rows)


def can_be_read(place: Path, name: str) -> bool:
    """Whether a file has what was staged in it. Raises OSError where that cannot be told now."""
    try:
        for _ in batches_of(place, [name]):
            pass
    except Refusal:
        return False
    return True


@contextmanager
def _lost(path: Path) -> Iterator[None]:
    """What cannot be had any more is told from what cannot be had now."""
    from pyarrow import ArrowInvalid

    try:
        yield
    except OSError as error:
        if error.errno is not None and error.errno not in GONE:
            raise
        raise Refusal("MQ_STAGING_LOST", f"the staged rows {path} cannot be read: {error}") from None
    except ArrowInvalid as error:
        raise Refusal("MQ_STAGING_LOST", f"the staged rows {path} cannot be read: {error}") from None


def force(place: Path, files: Iterable[str]) -> None:
    """Have files on disk, with their names, and the mark that an epoch is being appended in several steps.
    Raises Refusal if a file is gone."""
    _touch(place / UNFINISHED)
    folders = {place: None, place.parent: None, place.parent.parent: None}
    for name in files:
        with _lost(place / name):
            _sync(place / name)
        goes_on(place)
        folders[(place / name).parent] = None
    for folder in folders:
        _sync(folder)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_unfinished(place: Path) -> bool:
    return (place / UNFINISHED).exists()


def lose(place: Path) -> None:
    """The rest of the epoch cannot be appended: nobody tries again unasked, and what is there of it stays."""
    _touch(place / LOST)
    (place / UNFINISHED).unlink(missing_ok=True)


def is_lost(place: Path) -> bool:
    return (place / LOST).exists()


def finished(place: Path) -> None:
    """The epoch is in the log, and on disk there."""
    for mark in (UNFINISHED, LOST):
        (place / mark).unlink(missing_ok=True)


@contextmanager
def locked(place: Path, *, wait: bool = True, timeout: float = math.inf) -> Iterator[bool]:
    """One commit of a transaction id at a time, in whichever process. The lock of a dead one is dropped.
    Without wait, whether it is ours. Raises Refusal where another one has it and does not go on, for a
    timeout or for LOCK_TIMEOUT."""
    patience = min(timeout, LOCK_TIMEOUT)
    while True:
        with _lock_file(place) as file:
            if not take(file, patience if wait else 0.0):
                if wait:
                    raise held_by_another(place / LOCK, file, patience)
                yield False
                return
            # The lock's file goes with the directory: then this is a lock on nothing.
            if not _is_there(place / LOCK, file):
                continue
            try:
                goes_on(place)
                yield True
            finally:
                # A process that was forked meanwhile has the open file too, and would keep the lock.
                fcntl.flock(file, fcntl.LOCK_UN)
            return


def goes_on(place: Path) -> None:
    """A commit shows at each step that it goes on: see stage_lock.py."""
    show_life(place / LOCK)


def _is_there(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _lock_file(place: Path) -> IO[bytes]:
    while True:
        make_directory(place, mode=0o777, parents=True)
        with suppress(FileNotFoundError):
            return open(place / LOCK, "ab", opener=_opened)


def _touch(path: Path) -> None:
    os.close(open_made(path, os.O_WRONLY, 0o666))


def _opened(path: str, flags: int) -> int:
    # Opening a pipe of that name would wait for its other end.
    return open_made(path, flags | os.O_NONBLOCK, 0o666)


def drop(place: Path, files: Iterable[str]) -> None:
    """Remove files, those that are there."""
    for name in files:
        if name:
            (place / name).unlink(missing_ok=True)


def sweep(place: Path, epoch: int) -> None:
    """Remove what is of no use: files of epochs up to this one, which is whole, and old ones of the dead."""
    for folder in place.iterdir():
        if not folder.name.isdecimal():
            continue
        if int(folder.name) <= epoch:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        with suppress(OSError):
            for file in folder.iterdir():
                if _is_old(file) and not is_locked(file):
                    file.unlink()


def is_dead(place: Path) -> bool:
    """Whether nobody has done anything in the directory of a transaction id for long, and nobody does."""
    if is_lost(place) or not _is_old(place):
        return False
    folders = [path for path in place.iterdir() if path.is_dir()]
    files = [file for folder in folders for file in folder.iterdir()]
    return all(map(_is_old, (*folders, *files))) and not any(map(is_locked, files))


def bury(place: Path) -> None:
    """Remove the directory of a transaction id that is dead, as far as it still is: where a task has staged
    something meanwhile, that stays. The lock is held."""
    with suppress(OSError):
        if is_lost(place):
            return
        for folder in [path for path in place.iterdir() if path.is_dir()]:
            for file in folder.iterdir():
                if not _is_old(file) or is_locked(file):
                    return
                file.unlink()
            folder.rmdir()
        (place / LOCK).unlink(missing_ok=True)
        place.rmdir()


def remove(place: Path) -> None:
    """Remove the directory of a transaction id that nobody else has, unless an epoch of it is unfinished."""
    if not (is_unfinished(place) or is_lost(place)):
        shutil.rmtree(place, ignore_errors=True)


def _is_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > AGE_MAX


def is_locked(path: Path) -> bool:
    """Whether somebody is writing it. Raises OSError for what cannot be opened."""
    # Opening a pipe would wait for its other end.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        # Shared: two readers are not in each other's way.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
