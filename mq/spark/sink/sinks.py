"""The state of the sinks of a store: the newest ledger entry of each transaction id, and its staged files.
Used by the command line and checks; a commit reads the ledger itself.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mq.api.broker import DirectoryBroker
from mq.api.queues import readable
from mq.api.results import MessageQueue
from mq.sink_ledger import TOPIC, Entry
from mq.spark.sink.ledger import txn_of
from mq.spark.sink.staging import is_locked, sink_directories

__all__ = ["Sink", "StagedFile", "sinks", "staged_files"]

READ_COUNT, READ_BYTES = 1000, 1 << 20


class StagedFile(NamedTuple):
    """A file that a task has written or is writing."""

    path: Path
    epoch: int
    size: int
    changed: float  # seconds since the epoch
    is_being_written: bool


class Sink(NamedTuple):
    """A transaction id: a query, or the writes of one txnAppId."""

    txn: str
    last: Entry | None  # None: the log has nothing of it yet
    rows: int  # of the last epoch, in the log
    staged: tuple[StagedFile, ...]

    @property
    def is_needed(self) -> bool:
        """Whether it can be committed again; a completed single write cannot."""
        return bool(self.staged) or self.last is None or self.last.lasting or not self.last.is_whole


def sinks(broker: DirectoryBroker) -> list[Sink]:
    """The sinks that the ledger knows or that have staged files, by transaction id."""
    found = _of_ledger(broker)
    for place in _places(broker.path):
        txn = txn_of(place.name)
        entry, rows, staged = found.get(txn, (None, 0, ()))
        found[txn] = entry, rows, (*staged, *staged_files(place))
    return sorted(Sink(txn, *facts) for txn, facts in found.items() if facts[0] is not None or facts[2])


def _of_ledger(broker: DirectoryBroker) -> dict[str, tuple[Entry | None, int, tuple[StagedFile, ...]]]:
    newest: dict[str, Entry] = {}
    rows: dict[str, dict[int, int]] = {}  # of the chunks of that epoch: an entry may be there twice
    for entry in _entries(broker):
        known = newest.get(entry.txn)
        if known is None or (entry.epoch, entry.query_id) != (known.epoch, known.query_id):
            if known is not None and entry.epoch < known.epoch:
                continue
            rows[entry.txn] = {}
        rows[entry.txn][entry.chunk] = entry.rows
        if known is None or (entry.epoch, entry.chunk) >= (known.epoch, known.chunk):
            newest[entry.txn] = entry
    return {txn: (entry, sum(rows[txn].values()), ()) for txn, entry in newest.items()}


def _entries(broker: DirectoryBroker) -> Iterator[Entry]:
    """All readable entries of the ledger, in order."""
    if TOPIC not in broker.topics():
        return
    queue = MessageQueue(TOPIC, broker.name, 0)
    pull = broker.puller(queue)
    for found in readable(lambda at: pull(at, READ_COUNT, READ_BYTES, None, 0.0), broker.min_offset(queue)):
        for message in found.messages:
            entry = Entry.decode(message.body)
            if entry is not None:
                yield entry


def _places(root: Path) -> list[Path]:
    """The directories of staged files; none if they cannot be listed."""
    try:
        return sorted(sink_directories(root))
    except OSError:
        return []


def staged_files(place: Path) -> Iterator[StagedFile]:
    """The files in the directory of a transaction id. A file that is removed meanwhile is left out."""
    for folder in sorted(path for path in _within(place) if path.name.isdecimal()):
        for path in sorted(_within(folder)) if _is_directory(folder) else ():
            try:
                found = path.lstat()
                if stat.S_ISREG(found.st_mode):
                    yield StagedFile(path, int(folder.name), found.st_size, found.st_mtime, is_locked(path))
            except OSError:
                continue


def _within(place: Path) -> list[Path]:
    try:
        return list(place.iterdir())
    except OSError:
        return []


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False
