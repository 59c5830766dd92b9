"""The driver's half of the sink: staged rows go into the log once, whoever commits them and however often.

An epoch's rows and the ledger's word that they are there are published by one move of the log's end. An epoch
larger than a chunk is several such steps; a commit that finds it half done goes on where it ended, with the
files that the ledger names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mq.broker.local import LocalBroker
from mq.broker.results import MessageQueue, PullStatus
from mq.properties import encode
from mq.spark.appending import append_batches
from mq.spark.ledger import TOPIC, Entry, Step, chunked, decide, key_of, newest
from mq.spark.staging import Staged, batches_of, directory, drop, locked, sweep

__all__ = ["CHUNK_BYTES", "commit_epoch", "discard_epoch", "last_entry"]

CHUNK_BYTES = 64 << 20
READ_COUNT, READ_BYTES = 1000, 1 << 20

# By store and transaction id: the newest entry, and where in the ledger to read on.
_known: dict[tuple[str, str], tuple[Entry | None, int]] = {}


def commit_epoch(
    broker: LocalBroker,
    txn: str,
    query_id: str,
    epoch: int,
    staged: Sequence[Staged],
    *,
    is_version_given: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
) -> list[Step]:
    """Append an epoch unless it is there; what was done. Staged files are gone afterwards."""
    place = directory(Path(broker.path), key_of(txn))
    files = [one.file for one in staged if one.rows]
    with locked(place):
        last = last_entry(broker, txn)
        steps = decide(last, epoch, query_id, is_version_given=is_version_given)
        if Step.FINISH in steps:
            assert last is not None
            _append(broker, place, last, last.chunk + 1)
        if Step.APPEND in steps and files:
            _append(broker, place, Entry(txn, query_id, epoch, 0, 0, 0, tuple(files), chunk_bytes), 0)
        drop(place, files)
        sweep(place, max(epoch, last.epoch if last else epoch))
    return steps


def discard_epoch(broker: LocalBroker, txn: str, epoch: int, staged: Sequence[Staged]) -> None:
    """After a commit that failed: remove what was staged, unless the log has the epoch, or a part of it."""
    place = directory(Path(broker.path), key_of(txn))
    with locked(place):
        last = last_entry(broker, txn)
        if last is None or last.epoch < epoch:
            drop(place, [one.file for one in staged])


def last_entry(broker: LocalBroker, txn: str) -> Entry | None:
    """The newest entry of a transaction id: looked up by its key once in a process, then read along."""
    if TOPIC not in broker.topics():
        return None
    ledger = MessageQueue(TOPIC, broker.name, 0)
    known = _known.get((str(broker.path), txn))
    if known is None:
        at = broker.max_offset(ledger)
        found = broker.query(TOPIC, key_of(txn), count_max=1)
        entry = newest((message.body for message in found), txn)
    else:
        entry, at = known
    while True:
        result = broker.pull(ledger, at, READ_COUNT, READ_BYTES, None, 0.0)
        if result.status is PullStatus.OFFSET_ILLEGAL:  # The topic was deleted, or its oldest messages were.
            _known.pop((str(broker.path), txn), None)
            return last_entry(broker, txn) if known is not None else entry
        at = result.next_offset
        if result.status is not PullStatus.FOUND:
            break
        entry = newest((message.body for message in result.messages), txn) or entry
    _known[str(broker.path), txn] = entry, at
    return entry


def _append(broker: LocalBroker, place: Path, entry: Entry, first_chunk: int) -> None:
    if TOPIC not in broker.topics():
        broker.create_topic(TOPIC, 1)
    sizes = [batch.size for batch in batches_of(place, entry.files)]
    chunks = chunked(sizes, entry.chunk_bytes)
    ledger = MessageQueue(TOPIC, broker.name, 0)
    properties = encode(None, key_of(entry.txn), None, 0, None, None, True)
    batches = enumerate(batches_of(place, entry.files))
    for number, (_, behind) in enumerate(chunks):
        chunk = [batch for at, batch in _up_to(batches, behind) if number >= first_chunk]
        if not chunk:
            continue
        rows = sum(batch.rows.num_rows for batch in chunk)
        said = entry._replace(chunk=number, chunks=len(chunks), rows=rows)
        append_batches(broker, chunk, (ledger, said.encode(), properties), sync=True)


def _up_to(batches: Any, behind: int) -> Any:
    while behind > 0:
        at, batch = next(batches)
        yield at, batch
        if at + 1 == behind:
            return
