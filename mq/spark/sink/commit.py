"""The driver's part of the sink: it appends staged rows to the log exactly once, however often it is called.

One move of the log's end publishes the rows of an epoch together with their ledger entry, and a power cut
keeps all of them or none (see mq/store/native/log/multi_append.h). An epoch larger than a chunk takes several
such steps. The last one is synced, and the disk always has a prefix of the log, so it has the earlier steps
too.

A half-done epoch is resumed from the files that its last ledger entry names: by the next commit of the same
transaction id, by the abort of the failed commit, or when any driver plans a sink on the store (tidy).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from weakref import WeakKeyDictionary

from mq.api.broker import DirectoryBroker
from mq.api.results import MessageQueue, PullStatus
from mq.errors import MQError
from mq.properties import encode
from mq.spark.errors import SparkError
from mq.spark.sink.append import append_batches
from mq.spark.sink.ledger import TOPIC, Entry, Step, chunked, decide, key_of, newer, recovery_advice, txn_of
from mq.spark.sink.staging import (
    Staged,
    StagedBatch,
    batches_of,
    can_be_read,
    clear_marks,
    commit_lock,
    is_abandoned,
    is_lost,
    is_unfinished,
    keep_lock_alive,
    mark_lost,
    remove_abandoned,
    remove_files,
    sink_directories,
    sink_directory,
    sweep,
    sync_files,
)

__all__ = [
    "CHUNK_BYTES",
    "abandon_rest",
    "commit_epoch",
    "discard_epoch",
    "last_entry",
    "tidy",
]

CHUNK_BYTES = 64 << 20
READ_COUNT, READ_BYTES = 1000, 1 << 20
FOUND_MAX = 32
KNOWN_MAX = 1000
TIDIED_MAX = 100  # directories, each time
ABORT_TIMEOUT = 2.0  # seconds: the lock's holder finishes the epoch, and later commits sweep the files

# By transaction id: the newest entry, and where in the ledger to read on.
known_entries: WeakKeyDictionary[DirectoryBroker, dict[str, tuple[Entry | None, int]]] = WeakKeyDictionary()

_log = logging.getLogger(__name__)


def commit_epoch(
    broker: DirectoryBroker,
    txn: str,
    query_id: str,
    epoch: int,
    staged: Sequence[Staged],
    *,
    is_version_given: bool = False,
    lasting: bool = True,
    chunk_bytes: int = CHUNK_BYTES,
) -> list[Step]:
    """Append an epoch unless the log has it, sync it, and remove its staged files. Returns the steps taken.

    lasting: the epoch may be committed again. For a write that is committed once, the ledger is searched only
    if a part was appended before, since a search first indexes the whole log.
    """
    place = sink_directory(Path(broker.path), key_of(txn))
    files = tuple(one.file for one in staged if one.rows)
    with commit_lock(place):
        is_begun = is_unfinished(place) or is_lost(place)
        last = last_entry(broker, txn) if lasting or is_begun else None
        steps = decide(last, epoch, query_id, is_version_given=is_version_given)
        if Step.FINISH in steps:
            assert last is not None
            _append(broker, place, last, chunk_bytes)
        if Step.APPEND in steps and files:
            now_ms = time.time_ns() // 1_000_000
            begun = Entry(txn, query_id, epoch, -1, 0, files, 0, now_ms, lasting)
            _append(broker, place, begun, chunk_bytes)
        if Step.SKIP in steps:
            assert last is not None
            _compare(last, epoch, sum(one.rows for one in staged))
            broker.flush()  # The process that appended it may have died before its flush.
        try:
            clear_marks(place)
            remove_files(place, files)
            sweep(place, max(epoch, last.epoch if last else epoch))
        except OSError as error:
            # The epoch is in the log. Raising would make the caller write it again.
            _log.warning("%s: files that are no longer needed stay for now: %s", place, error)
    return steps


def _compare(last: Entry, epoch: int, rows: int) -> None:
    """Warn if a replayed epoch has another number of rows than the log. Either the query is not
    deterministic, or the checkpoint lost its newest offsets; this code cannot tell which."""
    if last.epoch == epoch and last.chunk == 0 and last.rows != rows:
        _log.warning(
            "sink %r: epoch %d is in the log with %d rows, and is not written again with %d: if the"
            " checkpoint is older than the log, as one from a backup, rows are missing",
            *(last.txn, last.epoch, last.rows, rows),
        )


def discard_epoch(broker: DirectoryBroker, txn: str, staged: Sequence[Staged]) -> None:
    """Abort: remove the staged files, or finish the epoch if the log has a part of it.

    Waits only ABORT_TIMEOUT for the lock, since Spark may abort because a commit timed out on the same lock.
    Raises SparkError if another process keeps it.
    """
    place = sink_directory(Path(broker.path), key_of(txn))
    with commit_lock(place, timeout=ABORT_TIMEOUT):
        try:
            _finish(broker, place, txn)
        finally:
            last = last_entry(broker, txn)
            needed = last.files if last else ()
            remove_files(place, [one.file for one in staged if one.file not in needed])


def tidy(root: Path, broker: Callable[[], DirectoryBroker]) -> None:
    """Clean up after dead processes: finish partly appended epochs, and remove abandoned staged files.
    Handles TIDIED_MAX directories per call. Errors are logged, not raised."""
    try:
        found = sink_directories(root)
    except OSError as error:
        _log.warning("%s: files left by dead processes stay: %s", root, error)
        return
    random.shuffle(found)
    for place in islice(found, TIDIED_MAX):
        try:
            was_unfinished = is_unfinished(place)
            if not (was_unfinished or is_abandoned(place)):
                continue
            with commit_lock(place, wait=False) as is_mine:
                if is_mine and is_unfinished(place):
                    _finish(broker(), place, txn_of(place.name))
                elif is_mine and not was_unfinished:  # Otherwise its owner has just finished it and is alive.
                    remove_abandoned(place)
        except FileNotFoundError:
            continue  # Another process is cleaning up this directory.
        # ValueError: a foreign file name that is not text, or a topic that has fewer queues by now.
        except (MQError, OSError, ValueError) as error:
            _log.warning("%s: files left by dead processes stay for now: %s", place, error)


def _finish(broker: DirectoryBroker, place: Path, txn: str) -> None:
    """Append the rest of a partly appended epoch. The caller holds the lock."""
    last = last_entry(broker, txn)
    if last is not None and not last.is_whole:
        try:
            _append(broker, place, last, CHUNK_BYTES)
        except SparkError as error:
            if error.code == "MQ_STAGING_LOST":
                mark_lost(place)
            raise
    if is_unfinished(place) or is_lost(place):
        clear_marks(place)
        if last is not None:
            sweep(place, last.epoch)


def last_entry(broker: DirectoryBroker, txn: str) -> Entry | None:
    """The newest entry of a transaction id. The first call in a process searches by key; later calls read
    on."""
    if TOPIC not in broker.topics():
        return None
    ledger = MessageQueue(TOPIC, broker.name, 0)
    cache = known_entries.setdefault(broker, {})
    known = cache.get(txn)
    if known is None:
        at = broker.max_offset(ledger)
        found = broker.query(TOPIC, key_of(txn), count_max=FOUND_MAX)
        entry = newer(None, (message.body for message in found), txn)
    else:
        entry, at = known
    pull = broker.puller(ledger)
    while True:
        result = pull(at, READ_COUNT, READ_BYTES, None, 0.0)
        if result.status is PullStatus.OFFSET_ILLEGAL:  # The topic was deleted, or its oldest messages were.
            cache.pop(txn, None)
            return last_entry(broker, txn) if known is not None else entry
        at = result.next_offset
        if result.status is not PullStatus.FOUND:
            break
        entry = newer(entry, (message.body for message in result.messages), txn)
    if len(cache) >= KNOWN_MAX:
        cache.clear()
    cache[txn] = entry, at
    return entry


def _append(broker: DirectoryBroker, place: Path, last: Entry, chunk_bytes: int) -> None:
    """Append the missing rows of an entry's epoch, chunk by chunk. The caller holds the lock."""
    said, files = last, last.files
    try:
        for chunk, rest in chunked(batches_of(place, files, last.skip), chunk_bytes):
            rows = sum(batch.rows.num_rows for batch in chunk)
            if rest is not None and said.chunk < 0:
                sync_files(place, files)
            needed, skip = (files[rest.file :], rest.batch) if rest is not None else ((), 0)
            said = said._replace(chunk=said.chunk + 1, rows=rows, files=needed, skip=skip)
            _say(broker, said, chunk)
            keep_lock_alive(place)
    except SparkError as error:
        if error.code != "MQ_STAGING_LOST" or said.chunk < 0:
            raise
        raise SparkError(
            "MQ_STAGING_LOST",
            f"sink {last.txn!r}: the log has the first rows of epoch {last.epoch}, and the rest cannot be"
            f" appended: {error.text}; {recovery_advice(str(broker.path), last.txn)}",
        ) from None


def _say(broker: DirectoryBroker, said: Entry, chunk: Sequence[StagedBatch]) -> None:
    """Append a chunk of an epoch together with its ledger entry; sync if it is the last chunk."""
    if TOPIC not in broker.topics():
        broker.create_topic(TOPIC, 1)
    # The entry comes first and counts the records: recovery keeps all of them or none.
    head = b"MQ_BULK\x01%d\x02" % (said.rows + 1)
    head += encode(None, key_of(said.txn), None, 0, None, None, True)
    entry = _message(MessageQueue(TOPIC, broker.name, 0), said.encode(), head)
    append_batches(broker, [entry, *chunk], sync=said.is_whole)


def abandon_rest(broker: DirectoryBroker, txn: str) -> list[Path]:
    """Append the readable files of a partly appended epoch, and mark the epoch as complete without the
    others. Returns the files that were given up. Raises SparkError if there is no such sink."""
    place = sink_directory(Path(broker.path), key_of(txn))
    if last_entry(broker, txn) is None:
        raise SparkError(
            "MQ_OPTION", f"there is no sink {txn!r} in {broker.path}, of which anything is in the log"
        )
    with commit_lock(place):
        last = last_entry(broker, txn)
        if last is None or last.is_whole:
            return []
        gone = [name for name in last.files if not can_be_read(place, name)]
        left = tuple(name for name in last.files if name not in gone)
        rest = last._replace(files=left, skip=last.skip if left[:1] == last.files[:1] else 0)
        if left:
            _append(broker, place, rest, CHUNK_BYTES)
        else:
            _say(broker, rest._replace(chunk=last.chunk + 1, rows=0), [])
        clear_marks(place)
        sweep(place, last.epoch)
    return [place / name for name in gone]


def _message(queue: MessageQueue, body: bytes, properties: bytes) -> StagedBatch:
    import pyarrow as pa

    columns = [pa.array([body], pa.binary()), pa.array([properties], pa.binary())]
    return StagedBatch(queue, pa.record_batch(columns, ["body", "properties"]))
