"""The options of the sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mq.errors import TopicInvalid
from mq.names import check_topic, is_system_topic
from mq.spark.errors import Refusal, shown
from mq.spark.sink.commit import CHUNK_BYTES
from mq.spark.sink.ledger import TOPIC as LEDGER
from mq.spark.sink.ledger import key_of
from mq.spark.source.options import SINK_NAMES, SOURCE_NAMES, check_names, number, target_path

__all__ = ["SinkOptions", "sink_options"]

TXN_LENGTH_MAX = 255
SEMANTICS = {"exactly_once": True, "at_least_once": False}


@dataclass(frozen=True)
class SinkOptions:
    """What a sink was asked for. Values that can be pickled."""

    path: str
    topic: str | None
    exactly_once: bool
    txn: str | None
    version: int | None
    chunk_bytes: int


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options, checked. Raises Refusal."""
    options = check_names(given)
    if "group" in options:
        raise Refusal(
            "MQ_OPTION",
            "option group has no meaning for the sink: a group of producers is whom a broker asks about"
            " undecided transactions, and the sink leaves none; to have a write recognised give txnAppId",
        )
    for name in options:
        if name in SOURCE_NAMES and name not in SINK_NAMES:
            raise Refusal("MQ_OPTION", f"option {name} has no meaning here: it is an option of the source")
    semantics = options.get("semantics", "exactly_once").strip().lower()
    if semantics not in SEMANTICS:
        raise Refusal(
            "MQ_OPTION",
            f"option semantics is {shown(options['semantics'])}: give exactly_once or at_least_once",
        )
    topic = options.get("topic")
    if topic is not None:
        try:
            check_topic(topic)
        except TopicInvalid as error:
            raise Refusal("MQ_OPTION", f"option topic is {shown(topic)}: {error}") from None
        if is_system_topic(topic) or topic == LEDGER:
            raise Refusal("MQ_OPTION", f"option topic is {shown(topic)}, which is kept for other things")
    txn = options.get("txnAppId")
    if txn is not None:
        if len(txn) > TXN_LENGTH_MAX or not txn.isprintable():
            raise Refusal("MQ_OPTION", f"option txnAppId is {shown(txn)}: give some letters, digits, - or _")
        key_of(txn)
    version = number(options, "txnVersion", 0)
    if version is not None and txn is None:
        raise Refusal("MQ_OPTION", "option txnVersion counts the writes of a txnAppId: give both")
    if not SEMANTICS[semantics] and txn is not None:
        raise Refusal("MQ_OPTION", "option txnAppId is for semantics exactly_once")
    chunk_bytes = number(options, "chunkBytes", 1)
    if not SEMANTICS[semantics] and chunk_bytes is not None:
        raise Refusal(
            "MQ_OPTION",
            "option chunkBytes is for semantics exactly_once, whose commit appends in such steps: with"
            " at_least_once the tasks append as they go",
        )
    return SinkOptions(
        path=target_path(options),
        topic=topic,
        exactly_once=SEMANTICS[semantics],
        txn=txn,
        version=version,
        chunk_bytes=chunk_bytes or CHUNK_BYTES,
    )
