"""Rows of a DataFrame as messages: which columns there are, what they may hold, and their property strings.

    body           binary or string, not null; required
    topic          string; required unless the option topic names one for all
    queueId        int; else by shardingKey, else one queue after the other, a batch at a time
    tags           string
    keys           string, several with blanks between, or array<string>
    properties     map<string,string>; RocketMQ's own names are refused
    shardingKey    string; the same key goes to the same queue

The other columns of the source are passed over, so that what it reads can be written as it is. What can be
done for a whole column is done by Arrow; a map, a queue or a shard key for each row is Python's work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from mq.broker.local import LocalBroker
from mq.broker.protocol import Broker, queue_of_key
from mq.broker.results import MessageQueue
from mq.errors import MessageInvalid, MQError, TopicNotFound
from mq.properties import PROPERTIES_SIZE_MAX, encode
from mq.spark.columns import TYPES
from mq.spark.refusal import Refusal, nearest
from mq.spark.staging import StagedBatch

__all__ = ["RowEncoder", "check_columns", "prepare_topic"]

COLUMNS = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "queueId": ("int",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "shardingKey": ("string",),
}
LATER = ("delayLevel", "deliverAt")
READ_ONLY = frozenset(TYPES) - COLUMNS.keys()
SEPARATORS = "[\x01\x02]"


def check_columns(fields: Sequence[tuple[str, str]], topic: str | None) -> None:
    """Raises Refusal for columns, given with Spark's names of their types, that the sink cannot write."""
    for name, kind in fields:
        if name in READ_ONLY:
            continue
        if name in LATER:
            raise Refusal("MQ_SCHEMA", f"column {name}: delayed messages are not written in this release")
        if name not in COLUMNS:
            hint = nearest(name, COLUMNS)
            raise Refusal("MQ_SCHEMA", f"the sink has no column {name!r}{hint} It has {', '.join(COLUMNS)}")
        if kind not in COLUMNS[name]:
            raise Refusal(
                "MQ_SCHEMA", f"column {name} is {kind}: the sink writes {' or '.join(COLUMNS[name])}; cast it"
            )
    names = [name for name, _ in fields]
    if "body" not in names:
        raise Refusal("MQ_SCHEMA", "there is no column body, which is what a message holds")
    if topic is None and "topic" not in names:
        raise Refusal("MQ_SCHEMA", "there is neither a column topic nor the option topic: give one of them")


def prepare_topic(broker: Broker, topic: str) -> None:
    """Have the topic there, as a producer that sends to it would. Raises Refusal."""
    try:
        broker.publishable(topic)
    except MQError as error:
        raise Refusal("MQ_TOPIC", f"topic {topic!r} cannot be written: {error}") from None


class RowEncoder:
    """Turns batches of rows into batches for single queues. `first` says with which queue a task begins."""

    def __init__(self, broker: LocalBroker, topic: str | None, first: int) -> None:
        self._broker = broker
        self._topic = topic
        self._turn = count(first)
        self._queues: dict[str, Sequence[MessageQueue]] = {}

    def encode(self, batch: Any) -> Iterator[StagedBatch]:
        """Raises Refusal for a row that cannot be a message."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if batch.num_rows == 0:
            return
        columns = {name: batch.column(name) for name in batch.schema.names if name in COLUMNS}
        bodies = columns["body"].cast(pa.binary())
        sizes = pc.binary_length(bodies)
        if bodies.null_count or pc.min(sizes).as_py() == 0:
            raise Refusal("MQ_ROW", "a body is null or empty: RocketMQ's clients refuse such messages")
        largest, limit = pc.max(sizes).as_py(), self._broker.message_size_max
        if largest > limit:
            raise Refusal("MQ_ROW", f"a body has {largest:,} bytes, over the limit of {limit:,}")
        rows = pa.record_batch([bodies, _properties(columns, batch.num_rows)], ["body", "properties"])
        for queue, places in self._split(columns, batch.num_rows):
            yield StagedBatch(queue, rows if places is None else rows.take(pa.array(places, pa.int32())))

    def _split(
        self, columns: Mapping[str, Any], rows: int
    ) -> Iterator[tuple[MessageQueue, list[int] | None]]:
        """The queues that get something, each with its rows; None for all."""
        by_row = {name: columns[name].to_pylist() for name in ("queueId", "shardingKey") if name in columns}
        topics = [self._topic] * rows if self._topic is not None else columns["topic"].to_pylist()
        usual = {topic: self._next(topic) for topic in set(topics)}
        if not by_row and len(usual) == 1:
            yield next(iter(usual.values())), None
            return
        nothing = [None] * rows
        found: dict[MessageQueue, list[int]] = {}
        given = zip(topics, by_row.get("queueId", nothing), by_row.get("shardingKey", nothing), strict=True)
        for place, (topic, queue_id, key) in enumerate(given):
            queue = usual[topic]
            if queue_id is not None:
                queue = self._named(topic, queue_id)
            elif key is not None:
                queue = queue_of_key(self._queues[topic], key)
            found.setdefault(queue, []).append(place)
        yield from found.items()

    def _next(self, topic: str | None) -> MessageQueue:
        if topic is None:
            raise Refusal("MQ_ROW", "a topic is null: give each row one, or the option topic")
        queues = self._queues.get(topic)
        if queues is None:
            try:
                queues = self._queues[topic] = self._broker.bulk.queues_to_write(topic)
            except TopicNotFound:
                raise Refusal("MQ_TOPIC", f"there is no topic {topic!r}: create it first") from None
            except MQError as error:
                raise Refusal("MQ_TOPIC", f"topic {topic!r} cannot be written: {error}") from None
        return queues[next(self._turn) % len(queues)]

    def _named(self, topic: str, queue_id: int) -> MessageQueue:
        for queue in self._queues[topic]:
            if queue.queue_id == queue_id:
                return queue
        raise Refusal("MQ_ROW", f"topic {topic} has no queue {queue_id} to write to")


def _properties(columns: Mapping[str, Any], rows: int) -> Any:
    """The property string of every row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "properties" in columns and columns["properties"].null_count < rows:
        return _by_row(columns, rows)
    parts = []
    for name, column in (("TAGS", columns.get("tags")), ("KEYS", columns.get("keys"))):
        if column is None or column.null_count == rows:
            continue
        texts = pc.binary_join(column, " ") if pa.types.is_list(column.type) else column
        # An empty text is no tag, and no key.
        texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
        if pc.any(pc.match_substring_regex(texts, SEPARATORS)).as_py():
            raise Refusal("MQ_ROW", f"{name} has a character 01 or 02, which separate properties")
        joined = pc.binary_join_element_wise(f"{name}\x01", texts, "\x02", "")
        parts.append(pc.fill_null(joined, ""))
    if not parts:
        return pa.repeat(pa.scalar(b"", pa.binary()), rows)
    encoded = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, "")
    if pc.max(pc.binary_length(encoded)).as_py() > PROPERTIES_SIZE_MAX:
        raise Refusal("MQ_ROW", f"tags and keys of a row come to more than {PROPERTIES_SIZE_MAX:,} bytes")
    return encoded.cast(pa.binary())


def _by_row(columns: Mapping[str, Any], rows: int) -> Any:
    import pyarrow as pa

    nothing = [None] * rows
    given = {name: columns[name].to_pylist() if name in columns else nothing for name in ("tags", "keys")}
    encoded = []
    for tags, keys, properties in zip(
        given["tags"], given["keys"], columns["properties"].to_pylist(), strict=True
    ):
        texts = keys.split(" ") if isinstance(keys, str) else keys or ()
        try:
            encoded.append(
                encode(
                    tags or None, [key for key in texts if key], dict(properties or ()), 0, None, None, True
                )
            )
        except (MessageInvalid, TypeError) as error:
            raise Refusal("MQ_ROW", f"a row cannot be a message: {error}") from None
    return pa.array(encoded, pa.binary())
