"""What the sink has appended, as messages of an internal topic: one for each epoch, published with its rows.

    topic  MQ_SINK_LEDGER, queue 0
    KEYS   the transaction id, quoted as in an URL
    body   JSON: {"txn", "queryId", "epoch", "chunk", "chunks", "rows", "files", "chunkBytes"}

An epoch with more bytes than one chunk has a message for each, all naming the staging files of the epoch, in
their order: whoever finds that the last chunk is missing goes on from these files, and from no others.

Nothing here knows Spark, a store or a clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple
from urllib.parse import quote

from mq.spark.refusal import Refusal

__all__ = ["TOPIC", "Entry", "Step", "chunked", "decide", "key_of", "newest"]

TOPIC = "MQ_SINK_LEDGER"
NAME_SIZE_MAX = 200


class Entry(NamedTuple):
    """One message of the ledger."""

    txn: str
    query_id: str
    epoch: int
    chunk: int
    chunks: int
    rows: int
    files: tuple[str, ...]
    chunk_bytes: int

    @property
    def is_last(self) -> bool:
        """Whether its epoch is whole."""
        return self.chunk + 1 == self.chunks

    def encode(self) -> bytes:
        names = ("txn", "queryId", "epoch", "chunk", "chunks", "rows", "files", "chunkBytes")
        return json.dumps(dict(zip(names, self, strict=True)), separators=(",", ":")).encode()

    @staticmethod
    def decode(body: bytes) -> Entry | None:
        """None for what is no entry: anybody may send to any topic."""
        try:
            value = json.loads(body)
            return Entry(
                txn=str(value["txn"]),
                query_id=str(value["queryId"]),
                epoch=int(value["epoch"]),
                chunk=int(value["chunk"]),
                chunks=int(value["chunks"]),
                rows=int(value["rows"]),
                files=tuple(map(str, value["files"])),
                chunk_bytes=int(value["chunkBytes"]),
            )
        except (ValueError, TypeError, KeyError):
            return None


class Step(Enum):
    """What a commit has to do."""

    SKIP = "the epoch is in the log already: a replay"
    FINISH = "the rest of the epoch that the ledger names is to be appended, from its own files"
    APPEND = "the epoch is new"


def decide(last: Entry | None, epoch: int, query_id: str, *, is_version_given: bool) -> list[Step]:
    """The steps of a commit, by the newest entry of its transaction id.

    Raises Refusal where the epochs that the ledger knows are of another query: to skip one would lose its
    rows, unless the user counts them himself.
    """
    if last is None:
        return [Step.APPEND]
    if epoch <= last.epoch and last.query_id != query_id and not is_version_given:
        raise Refusal(
            "MQ_TXN_MISMATCH",
            f"txnAppId {last.txn!r} has epoch {last.epoch} of query {last.query_id}, and this is epoch"
            f" {epoch} of query {query_id}, which has another checkpoint: give a new txnAppId, or txnVersion",
        )
    steps = [] if last.is_last else [Step.FINISH]
    if epoch > last.epoch:
        steps.append(Step.APPEND)
    return steps or [Step.SKIP]


def chunked(sizes: Sequence[int], chunk_bytes: int) -> list[tuple[int, int]]:
    """Staged batches of these sizes in chunks: (first, behind the last) of each. A batch is never cut."""
    chunks, first, used = [], 0, 0
    for place, size in enumerate(sizes):
        if place > first and used + size > chunk_bytes:
            chunks.append((first, place))
            first, used = place, 0
        used += size
    if first < len(sizes):
        chunks.append((first, len(sizes)))
    return chunks


def key_of(txn: str) -> str:
    """A transaction id as a key of messages and as the name of a directory."""
    key = quote(txn, safe="")
    if not 1 <= len(key) <= NAME_SIZE_MAX or key in {".", ".."}:
        raise Refusal(
            "MQ_OPTION", f"option txnAppId is {txn!r}: give 1 to {NAME_SIZE_MAX} letters, digits, - or _"
        )
    return key


def newest(bodies: Iterable[bytes], txn: str) -> Entry | None:
    """The last entry of a transaction id among bodies in the order of the queue."""
    found = None
    for body in bodies:
        entry = Entry.decode(body)
        if entry is not None and entry.txn == txn:
            found = entry
    return found
