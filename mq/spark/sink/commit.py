"""The driver's half of the sink: staged rows go into the log once, whoever commits them and however often.

An epoch's rows and the ledger's word that they are there are published by one move of the log's end, and a
power cut leaves all of them or none (see mq/store/native/log/multi_append.h). An epoch larger than a chunk is
several such steps, of which the last is forced to disk: what is on disk of the log is always its beginning.
Whoever finds an epoch half done goes on where it ended, with the files that the ledger names: a commit of the
same transaction id, the abort of a commit that failed, or whoever plans the next sink on the store (tidy).
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
from mq.spark.errors import Refusal
from mq.spark.sink.append import append_batches
from mq.spark.sink.ledger import TOPIC, Entry, Step, chunked, decide, key_of, newer, txn_of, way_out
from mq.spark.sink.staging import (
    Staged,
    StagedBatch,
    batches_of,
    bury,
    can_be_read,
    directory,
    drop,
    finished,
    force,
    goes_on,
    is_dead,
    is_lost,
    is_unfinished,
    locked,
    lose,
    places,
    sweep,
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
ABORT_TIMEOUT = 2.0  # seconds: whoever has the lock finishes what there is to finish, and later commits sweep

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
    """Append an epoch unless it is there, and have it on disk; what was done. Staged files are gone
    afterwards. lasting: it may be committed again. What may not is looked for only where a part of it was
    left: a look-up has the whole log indexed first."""
    place = directory(Path(broker.path), key_of(txn))
    files = tuple(one.file for one in staged if one.rows)
    with locked(place):
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
            broker.flush()  # Whoever appended it may have died before that.
        try:
            finished(place)
            drop(place, files)
            sweep(place, max(epoch, last.epoch if last else epoch))
        except OSError as error:
            # The epoch is in the log: whoever took that for a failure would write it again.
            _log.warning("%s: what is of no use any more stays for now: %s", place, error)
    return steps


def _compare(last: Entry, epoch: int, rows: int) -> None:
    """Tell where a replay has not as many rows as the epoch that the log has: nobody can say here whether
    that is a query whose rows are others each time, or a checkpoint that lost its newest offsets."""
    if last.epoch == epoch and last.chunk == 0 and last.rows != rows:
        _log.warning(
            "sink %r: epoch %d is in the log with %d rows, and is not written again with %d: if the"
            " checkpoint is older than the log, as one from a backup, rows are missing",
            *(last.txn, last.epoch, last.rows, rows),
        )


def discard_epoch(broker: DirectoryBroker, txn: str, staged: Sequence[Staged]) -> None:
    """After a commit that failed, or none: remove what was staged, but for an epoch that the log has a part
    of, which is finished. An abort may come because a commit has waited for the lock in vain, so it does
    not wait as long again. Raises Refusal if another one has it."""
    place = directory(Path(broker.path), key_of(txn))
    with locked(place, timeout=ABORT_TIMEOUT):
        try:
            _finish(broker, place, txn)
        finally:
            last = last_entry(broker, txn)
            needed = last.files if last else ()
            drop(place, [one.file for one in staged if one.file not in needed])


def tidy(root: Path, broker: Callable[[], DirectoryBroker]) -> None:
    """What others left behind: finish the epochs of which the log has a part, and remove what the dead have
    staged. Some of it at a time; never raises for what is not one's own."""
    try:
        found = places(root)
    except OSError as error:
        _log.warning("%s: what others left there stays: %s", root, error)
        return
    random.shuffle(found)
    for place in islice(found, TIDIED_MAX):
        try:
            was_unfinished = is_unfinished(place)
            if not (was_unfinished or is_dead(place)):
                continue
            with locked(place, wait=False) as is_mine:
                if is_mine and is_unfinished(place):
                    _finish(broker(), place, txn_of(place.name))
                elif is_mine and not was_unfinished:  # Else its owner has just finished it, and goes on.
                    bury(place)
        except FileNotFoundError:
            continue  # Somebody else is at it.
        # ValueError: a name of somebody else's may be no text, and a topic have fewer queues by now.
        except (MQError, OSError, ValueError) as error:
            _log.warning("%s: what is left there stays for now: %s", place, error)


def _finish(broker: DirectoryBroker, place: Path, txn: str) -> None:
    """Append the rest of an epoch of which the log has a part. The lock is held."""
    last = last_entry(broker, txn)
    if last is not None and not last.is_whole:
        try:
            _append(broker, place, last, CHUNK_BYTES)
        except Refusal as refusal:
            if refusal.code == "MQ_STAGING_LOST":
                lose(place)
            raise
    if is_unfinished(place) or is_lost(place):
        finished(place)
        if last is not None:
            sweep(place, last.epoch)


def last_entry(broker: DirectoryBroker, txn: str) -> Entry | None:
    """The newest entry of a transaction id: looked up by its key once in a process, then read along."""
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
    """Append what is missing of the epoch of an entry, chunk by chunk. The lock is held."""
    said, files = last, last.files
    try:
        for chunk, rest in chunked(batches_of(place, files, last.skip), chunk_bytes):
            rows = sum(batch.rows.num_rows for batch in chunk)
            if rest is not None and said.chunk < 0:
                force(place, files)
            needed, skip = (files[rest.file :], rest.batch) if rest is not None else ((), 0)
            said = said._replace(chunk=said.chunk + 1, rows=rows, files=needed, skip=skip)
            _say(broker, said, chunk)
            goes_on(place)
    except Refusal as refusal:
        if refusal.code != "MQ_STAGING_LOST" or said.chunk < 0:
            raise
        raise Refusal(
            "MQ_STAGING_LOST",
            f"sink {last.txn!r}: the log has the first rows of epoch {last.epoch}, and the rest cannot be"
            f" appended: {refusal.text}; {way_out(str(broker.path), last.txn)}",
        ) from None


def _say(broker: DirectoryBroker, said: Entry, chunk: Sequence[StagedBatch]) -> None:
    """Append a chunk of an epoch with the ledger's word on it, which is on disk afterwards if it is the last
    one."""
    if TOPIC not in broker.topics():
        broker.create_topic(TOPIC, 1)
    # It comes first, and says how many there are: recovery takes none of them if it has not all.
    head = b"MQ_BULK\x01%d\x02" % (said.rows + 1)
    head += encode(None, key_of(said.txn), None, 0, None, None, True)
    entry = _message(MessageQueue(TOPIC, broker.name, 0), said.encode(), head)
    append_batches(broker, [entry, *chunk], sync=said.is_whole)


def abandon_rest(broker: DirectoryBroker, txn: str) -> list[Path]:
    """Of an epoch of which the log has a part, append what can still be read, and have the epoch count as
    whole without the rest; the files that were given up. Raises Refusal for what is no sink."""
    place = directory(Path(broker.path), key_of(txn))
    if last_entry(broker, txn) is None:
        raise Refusal(
            "MQ_OPTION", f"there is no sink {txn!r} in {broker.path}, of which anything is in the log"
        )
    with locked(place):
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
        finished(place)
        sweep(place, last.epoch)
    return [place / name for name in gone]


def _message(queue: MessageQueue, body: bytes, properties: bytes) -> StagedBatch:
    import pyarrow as pa

    columns = [pa.array([body], pa.binary()), pa.array([properties], pa.binary())]
    return StagedBatch(queue, pa.record_batch(columns, ["body", "properties"]))
