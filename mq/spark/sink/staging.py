"""Staged files: tasks write the rows of an epoch into them, and the driver's commit appends them to the log.

    <store>/mq/spark/<transaction id>/<epoch>/<partition>-<attempt>-<uuid>.arrow
                                      lock         held by the commit
                                      unfinished   exists while the log has a part of an epoch
                                      lost         replaces it if the rest cannot be appended

An Arrow file. Each batch is for one queue, named in its metadata, and has two binary columns: body, and
properties in the format of a record. A file counts only if a commit names it. Files of dead tasks, or of
tasks that outlived their query, are swept later. The writer holds a lock on the file while it writes.

Staged files are synced only for an epoch that is appended in several steps: its files and the mark
`unfinished` are on disk before the first step (sync_files). Files lost otherwise in a power cut belong to an
epoch that is not in the log, and that Spark repeats.
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
from mq.spark.errors import SparkError
from mq.spark.sink.ledger import BatchPosition
from mq.spark.sink.stage_lock import LOCK_TIMEOUT, lock_timeout_error, take_lock, touch_lock
from mq.store.directory.owner import make_directory, open_made
from mq.store.log.multi_append import begin_writing

__all__ = [
    "Staged",
    "StagedBatch",
    "batches_of",
    "can_be_read",
    "clear_marks",
    "commit_lock",
    "is_abandoned",
    "is_locked",
    "is_lost",
    "is_unfinished",
    "keep_lock_alive",
    "mark_lost",
    "remove",
    "remove_abandoned",
    "remove_files",
    "sink_directories",
    "sink_directory",
    "stage",
    "sweep",
    "sync_files",
]

SUFFIX = ".arrow"
LOCK, UNFINISHED, LOST = "lock", "unfinished", "lost"
AGE_MAX = 24 * 3600.0  # seconds; an unlocked file that was not written for so long is abandoned
BATCH_BYTES_MAX = 8 << 20
BEGIN_BYTES = 16 << 20  # write-back of a file that will be synced starts every so many bytes
ROW_SIZE = 128  # the approximate size of a log record besides body and properties
QUEUE = b"queue"
GONE = (errno.ENOENT, errno.ENOTDIR)


class Staged(NamedTuple):
    """The file that one task has staged, relative to the directory of its transaction id."""

    file: str
    rows: int
    size: int


class StagedBatch(NamedTuple):
    """Rows for one queue."""

    queue: MessageQueue
    rows: Any  # a RecordBatch of body and properties
    is_free: bool = False  # another queue of the topic may be used

    @property
    def size(self) -> int:
        """The approximate size in the log."""
        return int(self.rows.nbytes) + int(self.rows.num_rows) * ROW_SIZE


def sink_directory(root: Path, key: str) -> Path:
    return root / "mq" / "spark" / key


def sink_directories(root: Path) -> list[Path]:
    """The directories of all transaction ids."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return [path for path in (root / "mq" / "spark").iterdir() if path.is_dir() and not path.is_symlink()]
    return []


def stage(place: Path, epoch: int, name: str, batches: Iterable[StagedBatch]) -> Staged:
    """Write batches to a new file; without batches no file is made."""
    import pyarrow as pa

    target = place / str(epoch) / f"{name}-{uuid.uuid4().hex}{SUFFIX}"
    rows, size, begun, writer = 0, 0, 0, None
    with ExitStack() as stack:
        stack.callback(target.unlink, missing_ok=True)
        for whole in batches:
            for batch in _cut(whole):
                if writer is None:
                    file = stack.enter_context(_made(target))
                    # No other process writes this file, but one may hold the lock for a moment in is_locked.
                    if not take_lock(file, LOCK_TIMEOUT):
                        raise lock_timeout_error(target, file)
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
    """Create a file, and its directory again if a sweep has just removed it."""
    while True:
        make_directory(target.parent, mode=0o777, parents=True)
        with suppress(FileNotFoundError):
            return open(target, "xb", opener=_opened)


def _cut(batch: StagedBatch) -> Iterator[StagedBatch]:
    """Split a large batch, since a batch is the smallest unit of an append."""
    rows = batch.rows.num_rows
    step = max(1, rows * BATCH_BYTES_MAX // max(batch.size, BATCH_BYTES_MAX))
    for at in range(0, rows, step):
        yield StagedBatch(batch.queue, batch.rows.slice(at, step) if step < rows else batch.rows)


def batches_of(
    place: Path, files: Sequence[str], skip: int = 0
) -> Iterator[tuple[BatchPosition, StagedBatch]]:
    """The batches of files, in order, read lazily. skip: how many batches of the first file to leave out.
    Raises SparkError if a file is gone."""
    import pyarrow as pa

    for file, name in enumerate(files):
        with _lost(place / name), ExitStack() as stack:
            # The mapping lives as long as its batches. The descriptor is closed now: there may be many files.
            source = stack.enter_context(pa.memory_map(str(place / name)))
            reader = stack.enter_context(pa.ipc.open_file(source))
            found = [
                reader.get_batch_with_custom_metadata(number)
                for number in range(skip if file == 0 else 0, reader.num_record_batches)
            ]
        for number, (rows, metadata) in enumerate(found, skip if file == 0 else 0):
            topic, broker_name, queue_id = metadata[QUEUE].decode().split("/")
            yield (
                BatchPosition(file, number),
                StagedBatch(MessageQueue(topic, broker_name, int(queue_id)), rows),
            )


def can_be_read(place: Path, name: str) -> bool:
    """Whether a staged file is complete. Raises OSError if it cannot be checked now."""
    try:
        for _ in batches_of(place, [name]):
            pass
    except SparkError:
        return False
    return True


@contextmanager
def _lost(path: Path) -> Iterator[None]:
    """Turn the errors of a missing or damaged file into SparkError; other OSErrors may pass and are
    raised."""
    from pyarrow import ArrowInvalid

    try:
        yield
    except OSError as error:
        if error.errno is not None and error.errno not in GONE:
            raise
        raise SparkError("MQ_STAGING_LOST", f"the staged rows {path} cannot be read: {error}") from None
    except ArrowInvalid as error:
        raise SparkError("MQ_STAGING_LOST", f"the staged rows {path} cannot be read: {error}") from None


def sync_files(place: Path, files: Iterable[str]) -> None:
    """Sync files and their directories, and the mark `unfinished`, before an append in several steps. Raises
    SparkError if a file is gone."""
    _touch(place / UNFINISHED)
    folders = {place: None, place.parent: None, place.parent.parent: None}
    for name in files:
        with _lost(place / name):
            _sync(place / name)
        keep_lock_alive(place)
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


def mark_lost(place: Path) -> None:
    """Mark that the rest of the epoch cannot be appended: tidy() skips it, and its remaining files stay."""
    _touch(place / LOST)
    (place / UNFINISHED).unlink(missing_ok=True)


def is_lost(place: Path) -> bool:
    return (place / LOST).exists()


def clear_marks(place: Path) -> None:
    """Remove both marks: the epoch is in the log and synced."""
    for mark in (UNFINISHED, LOST):
        (place / mark).unlink(missing_ok=True)


@contextmanager
def commit_lock(place: Path, *, wait: bool = True, timeout: float = math.inf) -> Iterator[bool]:
    """Hold the lock of a transaction id: one commit at a time, across processes. The kernel releases the lock
    of a dead process. With wait=False, yields whether the lock was taken. Raises SparkError if another
    process holds it without a heartbeat for `timeout`, at most LOCK_TIMEOUT."""
    seconds = min(timeout, LOCK_TIMEOUT)
    while True:
        with _lock_file(place) as file:
            if not take_lock(file, seconds if wait else 0.0):
                if wait:
                    raise lock_timeout_error(place / LOCK, file, seconds)
                yield False
                return
            # The lock file may have been removed with its directory: then the lock is worthless.
            if not _is_there(place / LOCK, file):
                continue
            try:
                keep_lock_alive(place)
                yield True
            finally:
                # Unlock explicitly: a child forked meanwhile has the same open file and would keep the lock.
                fcntl.flock(file, fcntl.LOCK_UN)
            return


def keep_lock_alive(place: Path) -> None:
    """The heartbeat of a commit, after each step: see stage_lock.py."""
    touch_lock(place / LOCK)


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
    # O_NONBLOCK: opening a pipe of that name would wait for its other end.
    return open_made(path, flags | os.O_NONBLOCK, 0o666)


def remove_files(place: Path, files: Iterable[str]) -> None:
    """Remove the files that exist."""
    for name in files:
        if name:
            (place / name).unlink(missing_ok=True)


def sweep(place: Path, epoch: int) -> None:
    """Remove the files of all epochs up to this complete one, and abandoned files of later ones."""
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


def is_abandoned(place: Path) -> bool:
    """Whether the directory of a transaction id is unused: nothing changed for AGE_MAX, and nothing is
    locked."""
    if is_lost(place) or not _is_old(place):
        return False
    folders = [path for path in place.iterdir() if path.is_dir()]
    files = [file for folder in folders for file in folder.iterdir()]
    return all(map(_is_old, (*folders, *files))) and not any(map(is_locked, files))


def remove_abandoned(place: Path) -> None:
    """Remove the directory of an abandoned transaction id. Stops if a task has staged a file meanwhile. The
    caller holds the lock."""
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
    """Remove the directory of a transaction id that only this write uses, unless an epoch is unfinished."""
    if not (is_unfinished(place) or is_lost(place)):
        shutil.rmtree(place, ignore_errors=True)


def _is_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > AGE_MAX


def is_locked(path: Path) -> bool:
    """Whether a process is writing the file. Raises OSError if it cannot be opened."""
    # Opening a pipe would wait for its other end.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        # Shared: two concurrent checks do not see each other as a writer.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
