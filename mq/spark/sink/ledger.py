"""The decision of a commit, from the newest ledger entry: skip, finish or append.

mq/sink_ledger.py has the format of the ledger's messages. Pure: no Spark, no store, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import quote, unquote

from mq.sink_ledger import TOPIC, Entry, newer
from mq.spark.errors import SparkError

__all__ = [
    "TOPIC",
    "BatchPosition",
    "Entry",
    "Step",
    "chunked",
    "decide",
    "key_of",
    "newer",
    "recovery_advice",
    "txn_of",
]

NAME_SIZE_MAX = 200


class Step(Enum):
    """A step of a commit."""

    SKIP = "the epoch is in the log already: a replay"
    FINISH = "the rest of the epoch that the ledger names is to be appended, from its own files"
    APPEND = "the epoch is new"


def decide(last: Entry | None, epoch: int, query_id: str, *, is_version_given: bool) -> list[Step]:
    """The steps of a commit, by the newest entry of its transaction id.

    Raises SparkError if the epoch in the ledger belongs to another query: skipping it would lose the rows of
    this one. With a txnVersion the user numbers the epochs, and this check is off. Raises it also if the
    epoch is older than the newest: Spark only repeats the last one, so the checkpoint is older than the log,
    and the same number now means other rows.
    """
    if last is None:
        return [Step.APPEND]
    if epoch <= last.epoch and last.query_id != query_id and not is_version_given:
        raise SparkError(
            "MQ_TXN_MISMATCH",
            f"txnAppId {last.txn!r} has epoch {last.epoch} of query {last.query_id}, and this is epoch"
            f" {epoch} of query {query_id}, which is another write, or has another checkpoint: give a new"
            " txnAppId, or txnVersion to count the writes",
        )
    if epoch < last.epoch and not is_version_given:
        raise SparkError(
            "MQ_TXN_MISMATCH",
            f"sink {last.txn!r} has epoch {last.epoch} of this query in the log, and this is epoch {epoch}:"
            " the checkpoint is older than the log, as one from a backup, or another driver runs the query."
            " What is in this epoch now need not be what was written then, so it is not passed over: restore"
            " the newer checkpoint, or start with a new one, which writes again what the query reads again",
        )
    steps = [] if last.is_whole else [Step.FINISH]
    if epoch > last.epoch:
        steps.append(Step.APPEND)
    return steps or [Step.SKIP]


class Sized(Protocol):
    """An object with a size in bytes."""

    @property
    def size(self) -> int: ...


T = TypeVar("T", bound=Sized)


class BatchPosition(NamedTuple):
    """A batch of an epoch: the index of its file in the entry's list, and its index in that file."""

    file: int
    batch: int


def chunked(
    batches: Iterable[tuple[BatchPosition, T]], chunk_bytes: int
) -> Iterator[tuple[list[T], BatchPosition | None]]:
    """The batches in chunks, each with the position where the rest begins. A batch is never split."""
    chunk: list[T] = []
    size = 0
    for place, batch in batches:
        if chunk and size + batch.size > chunk_bytes:
            yield chunk, place
            chunk, size = [], 0
        chunk.append(batch)
        size += batch.size
    if chunk:
        yield chunk, None


def key_of(txn: str) -> str:
    """A transaction id as a key of messages and as the name of a directory."""
    key = quote(txn, safe="")
    if not 1 <= len(key) <= NAME_SIZE_MAX or key in {".", ".."}:
        raise SparkError(
            "MQ_OPTION", f"option txnAppId is {txn!r}: give 1 to {NAME_SIZE_MAX} letters, digits, - or _"
        )
    return key


def txn_of(key: str) -> str:
    return unquote(key)


def recovery_advice(path: str, txn: str) -> str:
    """What a user can do if the rest of a partly appended epoch is lost."""
    return (
        "put back what is gone, and the next commit appends the rest; or give it up by"
        f" mq.spark.abandon({path!r}, {txn!r}), which marks the epoch as complete without it"
    )
