"""Files in which tasks put the rows of an epoch, until the driver appends them all at once.

    <store>/mq/spark/<transaction id>/<epoch>/<partition>-<attempt>-<a number that nobody else has>.arrow

An Arrow file; each of its batches is for one queue, which its metadata names, and has two columns of binary:
body, and properties as a record has them. A file counts only if a commit names it: those of tasks that died,
or went on after their query was stopped, are swept away. While it is written, its writer holds a lock on it.
"""

from __future__ import annotations

import fcntl
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from mq.broker.results import MessageQueue
from mq.spark.refusal import Refusal

__all__ = ["Staged", "StagedBatch", "batches_of", "directory", "drop", "locked", "stage", "sweep"]

SUFFIX = ".arrow"
AGE_MAX = 3600.0  # seconds; what nobody wrote to for so long and nobody locks is of the dead
QUEUE = b"queue"


class Staged(NamedTuple):
    """What one task has staged: a file beneath the directory of its transaction id."""

    file: str
    rows: int
    size: int


class StagedBatch(NamedTuple):
    """Rows for one queue."""

    queue: MessageQueue
    rows: Any  # a RecordBatch of body and properties

    @property
    def size(self) -> int:
        return int(self.rows.nbytes)


def directory(root: Path, key: str) -> Path:
    return root / "mq" / "spark" / key


def stage(place: Path, epoch: int, name: str, batches: Iterable[StagedBatch]) -> Staged:
    """Write a file of batches; without any there is none."""
    import pyarrow as pa

    target = place / str(epoch) / f"{name}-{uuid.uuid4().hex}{SUFFIX}"
    rows, size, writer = 0, 0, None
    with ExitStack() as stack:
        stack.callback(target.unlink, missing_ok=True)
        for batch in batches:
            if writer is None:
                target.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(target.open("wb"))
                fcntl.flock(file, fcntl.LOCK_EX)
                writer = stack.enter_context(pa.ipc.new_file(file, batch.rows.schema))
            queue = f"{batch.queue.topic}/{batch.queue.broker_name}/{batch.queue.queue_id}"
            writer.write_batch(batch.rows, custom_metadata={QUEUE: queue})
            rows, size = rows + batch.rows.num_rows, size + batch.size
        if writer is None:
            return Staged("", 0, 0)
        writer.close()
        file.close()
        stack.pop_all()
    return Staged(f"{epoch}/{target.name}", rows, size)


def batches_of(place: Path, files: Sequence[str]) -> Iterator[StagedBatch]:
    """The batches of files, in their order; read as they are asked for. Raises Refusal if a file is gone."""
    import pyarrow as pa

    for name in files:
        try:
            source = pa.memory_map(str(place / name))
            reader = pa.ipc.open_file(source)
        except (OSError, pa.ArrowInvalid) as error:
            raise Refusal(
                "MQ_STAGING_LOST", f"the staged rows {place / name} cannot be read: {error}"
            ) from None
        for number in range(reader.num_record_batches):
            rows, metadata = reader.get_batch_with_custom_metadata(number)
            topic, broker_name, queue_id = metadata[QUEUE].decode().split("/")
            yield StagedBatch(MessageQueue(topic, broker_name, int(queue_id)), rows)


@contextmanager
def locked(place: Path) -> Iterator[None]:
    """One commit of a transaction id at a time, in whichever process. The lock of a dead one is dropped."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def drop(place: Path, files: Iterable[str]) -> None:
    """Remove files, those that are there."""
    for name in files:
        if name:
            (place / name).unlink(missing_ok=True)


def sweep(place: Path, epoch: int) -> None:
    """Remove what is of no use: files of epochs up to this one, which is whole, and old ones of the dead."""
    for folder in place.iterdir():
        if not folder.name.isdigit():
            continue
        if int(folder.name) <= epoch:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        for file in folder.iterdir():
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > AGE_MAX and not _is_locked(file):
                    file.unlink()


def _is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        return False
