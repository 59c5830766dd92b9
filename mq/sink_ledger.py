"""What a sink has appended, as messages of an internal topic: one for each epoch, with its rows.

    topic  MQ_SINK_LEDGER, queue 0
    KEYS   the transaction id, quoted as in an URL
    body   JSON: {"txn", "queryId", "epoch", "chunk", "rows", "files", "skip", "timeMs", "lasting"}

An epoch with more bytes than one chunk has a message for each. All but the last name the staging files that
are not appended yet, in their order, and how many batches of the first one are: whoever finds such a message
as the newest goes on there, with these files and with no others. The newest is the one of the greatest epoch
and chunk, wherever it lies in the queue: one that was appended again may lie behind it.

The sink writes them (mq/spark/sink/ledger.py). RULE says which of them a sink may still ask for: retention
keeps these (mq/compacted_topics.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple, overload

__all__ = ["KEPT_MS", "RULE", "TOPIC", "Entry", "newer"]

TOPIC = "MQ_SINK_LEDGER"
# A transaction id that has committed nothing for so long is forgotten with its messages.
KEPT_MS = 90 * 24 * 3_600_000
NUMBER_MAX = (1 << 63) - 1  # Nobody's epochs, rows and times come to more.


class Entry(NamedTuple):
    """One message of the ledger."""

    txn: str
    query_id: str
    epoch: int
    chunk: int
    rows: int
    files: tuple[str, ...] = ()  # what is still to be appended of the epoch
    skip: int = 0
    time_ms: int = 0
    lasting: bool = True  # False: nobody will ask for the epoch once it is whole

    @property
    def is_whole(self) -> bool:
        return not self.files

    def is_of_use(self, now_ms: int) -> bool:
        """Whether somebody may still ask for it."""
        return (self.lasting or not self.is_whole) and now_ms - self.time_ms < KEPT_MS

    def encode(self) -> bytes:
        names = ("txn", "queryId", "epoch", "chunk", "rows", "files", "skip", "timeMs", "lasting")
        return json.dumps(dict(zip(names, self, strict=True)), separators=(",", ":")).encode()

    @staticmethod
    def decode(body: bytes) -> Entry | None:
        """None for what is no entry: anybody may send to any topic."""
        try:
            value = json.loads(body)
            numbers = [int(value[name]) for name in ("epoch", "chunk", "rows", "skip", "timeMs")]
            if max(map(abs, numbers)) > NUMBER_MAX:
                return None
            epoch, chunk, rows, skip, time_ms = numbers
            return Entry(
                txn=str(value["txn"]),
                query_id=str(value["queryId"]),
                epoch=epoch,
                chunk=chunk,
                rows=rows,
                files=tuple(map(str, value["files"])),
                skip=skip,
                time_ms=time_ms,
                lasting=bool(value["lasting"]),
            )
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
            return None


@overload
def newer(known: Entry, bodies: Iterable[bytes], txn: str) -> Entry: ...
@overload
def newer(known: Entry | None, bodies: Iterable[bytes], txn: str) -> Entry | None: ...
def newer(known: Entry | None, bodies: Iterable[bytes], txn: str) -> Entry | None:
    """The newest entry of a transaction id among the one that is known and these bodies."""
    for body in bodies:
        entry = Entry.decode(body)
        if entry is None or entry.txn != txn:
            continue
        if known is None or (entry.epoch, entry.chunk) >= (known.epoch, known.chunk):
            known = entry
    return known


class _Rule:
    """See mq.compacted_topics.CompactionRule: a subject is a transaction id."""

    topic: Final = TOPIC

    def subject(self, body: bytes) -> str | None:
        entry = Entry.decode(body)
        return None if entry is None else entry.txn

    def newest(self, bodies: Iterable[bytes], subject: str) -> bytes:
        entry = newer(None, bodies, subject)
        assert entry is not None
        return entry.encode()

    def is_of_use(self, body: bytes, now_ms: int) -> bool:
        entry = Entry.decode(body)
        return entry is not None and entry.is_of_use(now_ms)


RULE: Final = _Rule()
