"""The options of the sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mq.errors import TopicInvalid
from mq.names import check_topic, is_system_topic
from mq.spark.errors import SparkError, short
from mq.spark.option_names import SINK_NAMES, SOURCE_NAMES, check_names
from mq.spark.option_values import number
from mq.spark.sink.commit import CHUNK_BYTES
from mq.spark.sink.ledger import TOPIC as LEDGER
from mq.spark.sink.ledger import key_of
from mq.spark.target_options import ClusterRef, Target, reject_on_cluster, target_of

__all__ = ["SinkOptions", "reject_overwrite", "reject_version", "sink_options"]

TXN_LENGTH_MAX = 255
SEMANTICS = {"exactly_once": True, "at_least_once": False}
# Options that do not work on a cluster, with the reason.
ON_DIRECTORY = {
    "chunkBytes": "it is a step of commits that are exactly_once, and the sink of a cluster is at_least_once"
}


@dataclass(frozen=True)
class SinkOptions:
    """The parsed options of a sink. All values can be pickled."""

    target: Target
    topic: str | None
    exactly_once: bool
    txn: str | None
    version: int | None
    chunk_bytes: int


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options, checked. Raises SparkError."""
    options = check_names(given)
    if "group" in options:
        raise SparkError(
            "MQ_OPTION",
            "option group has no meaning for the sink: a broker checks undecided transactions with a producer"
            " group, and the sink has none; to identify a write give txnAppId",
        )
    for name in options:
        if name in SOURCE_NAMES and name not in SINK_NAMES:
            raise SparkError("MQ_OPTION", f"option {name} has no meaning here: it is an option of the source")
    target = target_of(options)
    on_cluster = isinstance(target, ClusterRef)
    if on_cluster:
        reject_on_cluster(options, ON_DIRECTORY)
    usual = "at_least_once" if on_cluster else "exactly_once"
    semantics = options.get("semantics", usual).strip().lower()
    if semantics not in SEMANTICS:
        raise SparkError(
            "MQ_OPTION",
            f"option semantics is {short(options['semantics'])}: give exactly_once or at_least_once",
        )
    if on_cluster and SEMANTICS[semantics]:
        raise SparkError(
            "MQ_OPTION",
            "option semantics is exactly_once, which needs the ledger of a directory, given by option path: a"
            " cluster does not store the rows of many tasks in one step. Leave it out: rows are written at"
            " least once, with unique ids by which mq.Once detects repeated ones",
        )
    topic = options.get("topic")
    _check_topic(topic)
    txn = options.get("txnAppId")
    if txn is not None:
        if len(txn) > TXN_LENGTH_MAX or not txn.isprintable():
            raise SparkError(
                "MQ_OPTION", f"option txnAppId is {short(txn)}: give some letters, digits, - or _"
            )
        key_of(txn)
    version = number(options, "txnVersion", 0)
    if version is not None and txn is None:
        raise SparkError("MQ_OPTION", "option txnVersion counts the writes of a txnAppId: give both")
    if not (SEMANTICS[semantics] or on_cluster) and txn is not None:
        raise SparkError("MQ_OPTION", "option txnAppId is for semantics exactly_once")
    chunk_bytes = number(options, "chunkBytes", 1)
    if not SEMANTICS[semantics] and chunk_bytes is not None:
        raise SparkError(
            "MQ_OPTION",
            "option chunkBytes is for semantics exactly_once, whose commit appends in such steps: with"
            " at_least_once the tasks append as they go",
        )
    return SinkOptions(
        target=target,
        topic=topic,
        exactly_once=SEMANTICS[semantics],
        txn=txn,
        version=version,
        chunk_bytes=chunk_bytes or CHUNK_BYTES,
    )


def _check_topic(topic: str | None) -> None:
    if topic is None:
        return
    try:
        check_topic(topic)
    except TopicInvalid as error:
        raise SparkError("MQ_OPTION", f"option topic is {short(topic)}: {error}") from None
    if is_system_topic(topic) or topic == LEDGER:
        raise SparkError("MQ_OPTION", f"option topic is {short(topic)}, which is kept for other things")


def reject_version(options: SinkOptions) -> None:
    """For a stream. Raises SparkError."""
    if options.version is not None:
        raise SparkError("MQ_OPTION", "option txnVersion is for df.write: a stream counts its batches itself")


def reject_overwrite(given: Mapping[str, str], overwrite: bool) -> None:
    """Raises SparkError."""
    if overwrite:
        raise SparkError(
            "MQ_OPTION",
            f"topic {given.get('topic', '')}: messages are appended, and none is ever written over: use mode"
            " append, for a stream output mode append",
        )
