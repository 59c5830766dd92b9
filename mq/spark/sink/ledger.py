"""What a commit of the sink has to do, by what the ledger says.

mq/sink_ledger.py has the ledger's messages.

Nothing here knows Spark, a store or a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import quote, unquote

from mq.sink_ledger import TOPIC, Entry, newer
from mq.spark.errors import Refusal

__all__ = ["TOPIC", "Entry", "Place", "Step", "chunked", "decide", "key_of", "newer", "txn_of", "way_out"]

NAME_SIZE_MAX = 200


class Step(Enum):
    """What a commit has to do."""

    SKIP = "the epoch is in the log already: a replay"
    FINISH = "the rest of the epoch that the ledger names is to be appended, from its own files"
    APPEND = "the epoch is new"


def decide(last: Entry | None, epoch: int, query_id: str, *, is_version_given: bool) -> list[Step]:
    """The steps of a commit, by the newest entry of its transaction id.

    Raises Refusal where the epochs that the ledger knows are of another query: to skip one would lose its
    rows, unless the user counts them himself. So would it where the query is at one before the newest: Spark
    only ever runs the last one again, and an older checkpoint has it plan others under the same numbers.
    """
    if last is None:
        return [Step.APPEND]
    if epoch <= last.epoch and last.query_id != query_id and not is_version_given:
        raise Refusal(
            "MQ_TXN_MISMATCH",
            f"txnAppId {last.txn!r} has epoch {last.epoch} of query {last.query_id}, and this is epoch"
            f" {epoch} of query {query_id}, which is another write, or has another checkpoint: give a new"
            " txnAppId, or txnVersion to count the writes",
        )
    if epoch < last.epoch and not is_version_given:
        raise Refusal(
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
    """What has a size, in bytes."""

    @property
    def size(self) -> int: ...


T = TypeVar("T", bound=Sized)


class Place(NamedTuple):
    """One of the batches of an epoch: the number of its file among those named, and its own in there."""

    file: int
    batch: int


def chunked(batches: Iterable[tuple[Place, T]], chunk_bytes: int) -> Iterator[tuple[list[T], Place | None]]:
    """The batches in chunks, each with the place where the rest begins. A batch is never cut."""
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
        raise Refusal(
            "MQ_OPTION", f"option txnAppId is {txn!r}: give 1 to {NAME_SIZE_MAX} letters, digits, - or _"
        )
    return key


def txn_of(key: str) -> str:
    return unquote(key)


def way_out(path: str, txn: str) -> str:
    """What can be done about an epoch of which the log has a part, and the rest is lost."""
    return (
        "put back what is gone, and the next commit appends the rest; or give it up by"
        f" mq.spark.abandon({path!r}, {txn!r}), which has the epoch count as whole without"
    )
