"""Rows of a DataFrame as messages: which columns there are, what they may hold, and where each row goes.

    body           binary or string, not null; required topic          string; required unless the option
    topic names one for all queueId        int; else by shardingKey, else round-robin, one batch per queue
    tags           string keys           string, several separated by blanks, or array<string> properties
    map<string,string>; RocketMQ's own names are refused shardingKey    string; the same key goes to the same
    queue delayLevel     int; the row is delivered when the level's delay has passed since it was stored
    deliverAt      timestamp; the row is delivered then, or at once if that is past; not together with
    delayLevel

The other columns of the source are ignored, so that a frame that was read can be written as it is.

A delayed row is stored as a delayed send (see mq/store/log/delayed_append.py), and the encoder does this
already: a task stages records for the internal delay queues. So a commit needs no clock, and a file that is
appended hours later, after a driver died, gives the same messages. A row with deliverAt is delivered at that
time, or at once if it has passed. A row with delayLevel waits for its delay from the commit on: a level
counts from the store time, which keeps its queue in the order of due times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

import xxhash

from mq.api.broker import Broker
from mq.api.bulk import DelayQueues
from mq.api.results import MessageQueue
from mq.errors import MQError, RemotingError, RequestTimeout, TopicNotFound
from mq.names import is_system_topic
from mq.properties import DELAY_LEVEL_MAX
from mq.remoting.client.broker_errors import is_final
from mq.spark.columns import TYPES
from mq.spark.errors import SparkError, nearest
from mq.spark.sink.ledger import TOPIC as LEDGER
from mq.spark.sink.property_strings import joined, keys_of, properties_of, tags_of
from mq.spark.sink.staging import StagedBatch
from mq.store.log.delayed_append import target_properties

__all__ = ["RowEncoder", "check_columns", "check_target"]

COLUMNS = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "queueId": ("int",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "shardingKey": ("string",),
    "delayLevel": ("int",),
    "deliverAt": ("timestamp",),
}
READ_ONLY = frozenset(TYPES) - COLUMNS.keys()


def check_columns(fields: Sequence[tuple[str, str]], topic: str | None) -> None:
    """Raises SparkError for columns that the sink cannot write. fields: pairs of name and Spark type."""
    names = [name for name, _ in fields]
    for name, kind in fields:
        if name in READ_ONLY:
            continue
        if name not in COLUMNS:
            hint = nearest(name, COLUMNS)
            raise SparkError(
                "MQ_SCHEMA", f"the sink has no column {name!r}{hint} It has {', '.join(COLUMNS)}"
            )
        if kind not in COLUMNS[name]:
            raise SparkError(
                "MQ_SCHEMA", f"column {name} is {kind}: the sink writes {' or '.join(COLUMNS[name])}; cast it"
            )
        if names.count(name) > 1:
            raise SparkError("MQ_SCHEMA", f"there are {names.count(name)} columns {name}: leave one of them")
    if "body" not in names:
        raise SparkError("MQ_SCHEMA", "there is no column body, which is what a message holds")
    if topic is None and "topic" not in names:
        raise SparkError(
            "MQ_SCHEMA", "there is neither a column topic nor the option topic: give one of them"
        )


def check_target(broker: Broker, topic: str) -> None:
    """Check that the topic can be written; a missing one passes if the first rows would create it. Raises
    SparkError, and RemotingError or RequestTimeout if a cluster does not answer."""
    try:
        broker.publishable(topic)
    except MQError as error:
        if isinstance(error, (RemotingError, RequestTimeout)) and not is_final(error):
            raise
        raise SparkError("MQ_TOPIC", f"topic {topic!r} cannot be written: {error}") from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class RowBulk(Protocol):
    """What the encoder needs to know about the target's queues: a part of mq.api.bulk.Bulk."""

    @property
    def size_max(self) -> int: ...

    @property
    def delay_queues(self) -> DelayQueues | None:
        """The queues of delayed messages; None on a cluster, whose brokers handle delays."""
        ...

    def queues_to_write(self, topic: str, *, new: bool = False) -> list[MessageQueue]: ...


class RowTarget(Protocol):
    """The broker of a directory, or the ClusterTopics of a cluster (cluster_writers.py)."""

    @property
    def message_size_max(self) -> int: ...

    @property
    def bulk(self) -> RowBulk: ...


class RowEncoder:
    """Turns batches of rows into batches for single queues. `first`: the queue that a task begins with."""

    def __init__(
        self, broker: RowTarget, topic: str | None, first: int, clock_ms: Callable[[], int] = _now_ms
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._turn = count(first)
        self._clock_ms = clock_ms
        self._queues: list[MessageQueue] = []  # every queue that rows went to; those of a topic are adjacent
        self._topics: dict[str, tuple[int, int]] = {}  # the index of a topic's first queue, and their number
        self._delay_queues: dict[MessageQueue, int] = {}

    def encode(self, batch: Any) -> Iterator[StagedBatch]:
        """Raises SparkError for a row that cannot be a message."""
        import pyarrow as pa

        if batch.num_rows == 0:
            return
        try:
            yield from self._encode(_plain(batch), batch.num_rows)
        except pa.ArrowInvalid as error:
            raise SparkError("MQ_ROW", f"a row cannot be a message: {error}") from None

    def _encode(self, columns: Mapping[str, Any], rows: int) -> Iterator[StagedBatch]:
        import pyarrow as pa

        bodies = columns["body"]
        self._check_bodies(bodies)
        ways = (("tags", tags_of), ("keys", keys_of), ("properties", properties_of))
        parts = [part for name, way in ways if name in columns and (part := way(columns[name])) is not None]
        numbers = self._numbers(columns, rows)
        if "delayLevel" in columns or "deliverAt" in columns:
            numbers, more = self._delayed(columns, numbers, rows)
            parts += more
        properties = joined(parts, rows)
        self._check_sizes(bodies, properties)
        whole = pa.record_batch([bodies, properties], ["body", "properties"])
        is_free = not any(_has(columns, name, rows) for name in ("queueId", "shardingKey"))
        for number, some in _split(whole, numbers):
            yield StagedBatch(self._queues[number], some, is_free)

    def _check_bodies(self, bodies: Any) -> None:
        import pyarrow.compute as pc

        sizes = pc.min_max(pc.binary_length(bodies)).as_py()
        if bodies.null_count or sizes["min"] == 0:
            raise SparkError("MQ_ROW", "a body is null or empty: RocketMQ's clients refuse such messages")
        if sizes["max"] > (limit := self._broker.message_size_max):
            raise SparkError("MQ_ROW", f"a body has {sizes['max']:,} bytes, over the limit of {limit:,}")

    def _check_sizes(self, bodies: Any, properties: Any) -> None:
        """Raises SparkError for a row that is larger than a file of the log, since a commit could not append
        it."""
        import pyarrow.compute as pc

        limit = self._broker.bulk.size_max
        if bodies.nbytes + properties.nbytes <= limit:
            return
        largest = pc.max(pc.add(pc.binary_length(bodies), pc.binary_length(properties))).as_py()
        if largest > limit:
            raise SparkError(
                "MQ_ROW",
                f"body and properties of a row come to {largest:,} bytes, over the limit of {limit:,} of this"
                " store's files",
            )

    # The queue of each row.

    def _numbers(self, columns: Mapping[str, Any], rows: int) -> Any:
        """The index in _queues of each row's queue; one number if all rows go to the same queue."""
        import pyarrow as pa
        import pyarrow.compute as pc

        begins, counts, usual = self._topics_of(columns, rows)
        chosen = []
        if _has(columns, "queueId", rows):
            ids = columns["queueId"]
            wrong = pc.or_(pc.less(ids, 0), pc.greater_equal(ids, counts))
            if pc.any(wrong).as_py():
                place = pc.index(pc.fill_null(wrong, False), True).as_py()
                at = counts[place].as_py() if isinstance(counts, pa.Array) else counts.as_py()
                raise SparkError(
                    "MQ_ROW",
                    f"topic {self._topic or columns['topic'][place].as_py()} has no queue"
                    f" {ids[place].as_py()} to write to: its queues are 0 to {at - 1}; a frame that was read"
                    " from another topic has that one's queueId: drop('queueId')",
                )
            chosen.append(ids)
        if _has(columns, "shardingKey", rows):
            chosen.append(_by_key(columns["shardingKey"], counts))
        if not chosen:
            return pc.add(begins, usual)
        return pc.add(begins, pc.coalesce(*chosen, usual))

    def _topics_of(self, columns: Mapping[str, Any], rows: int) -> tuple[Any, Any, Any]:
        """The index of the first queue of a row's topic, the number of its queues, and the next one in turn:
        for all rows together, or for each row."""
        import pyarrow as pa

        if self._topic is not None:
            names, codes = [self._topic], None
        else:
            column = columns["topic"]
            if column.null_count:
                raise SparkError("MQ_ROW", "a topic is null: give each row one, or the option topic")
            encoded = column.dictionary_encode()
            try:
                names, codes = encoded.dictionary.to_pylist(), encoded.indices
            except UnicodeDecodeError as error:
                raise SparkError("MQ_ROW", f"a topic is not UTF-8: {error}") from None
        found = [self._topics.get(name) or self._look_up(name) for name in names]
        turns = [next(self._turn) % number for _, number in found]
        kinds = pa.int32()
        if len(found) == 1:
            begin, number = found[0]
            return pa.scalar(begin, kinds), pa.scalar(number, kinds), pa.scalar(turns[0], kinds)
        lists = [begin for begin, _ in found], [number for _, number in found], turns
        begins, counts, usual = (pa.array(values, kinds).take(codes) for values in lists)
        return begins, counts, usual

    def _look_up(self, topic: str) -> tuple[int, int]:
        if is_system_topic(topic) or topic == LEDGER:
            raise SparkError("MQ_TOPIC", f"topic {topic!r} cannot be written: it is kept for other things")
        try:
            queues = self._broker.bulk.queues_to_write(topic, new=topic == self._topic)
        except TopicNotFound:
            raise SparkError("MQ_TOPIC", f"there is no topic {topic!r}: create it first") from None
        except MQError as error:
            raise SparkError("MQ_TOPIC", f"topic {topic!r} cannot be written: {error}") from None
        if not queues:
            raise SparkError("MQ_TOPIC", f"topic {topic!r} cannot be written: it has no queue to write to")
        found = self._topics[topic] = len(self._queues), len(queues)
        self._queues += queues
        return found

    def _number(self, queue: MessageQueue) -> int:
        """The index of an internal delay queue."""
        number = self._delay_queues.get(queue)
        if number is None:
            number = self._delay_queues[queue] = len(self._queues)
            self._queues.append(queue)
        return number

    # Delayed rows.

    def _delayed(self, columns: Mapping[str, Any], numbers: Any, rows: int) -> tuple[Any, list[Any]]:
        """The index of each row's delay queue, or of its own queue if it is not delayed; and the properties
        that the delay adds."""
        import pyarrow as pa
        import pyarrow.compute as pc

        levels = columns.get("delayLevel", pa.nulls(rows, pa.int32()))
        times = columns.get("deliverAt", pa.nulls(rows, pa.timestamp("us", "UTC")))
        if levels.null_count == times.null_count == rows:
            return numbers, []
        if pc.any(pc.and_(levels.is_valid(), times.is_valid())).as_py():
            raise SparkError("MQ_ROW", "a row has both delayLevel and deliverAt: give one of them")
        if isinstance(numbers, pa.Scalar):
            numbers = pa.repeat(numbers, rows)
        # Take the target queues of the rows now, before the delay queues are added to _queues.
        is_local = self._broker.bulk.delay_queues is not None
        homes = [target_properties(queue).decode() if is_local else "" for queue in self._queues]
        where = pa.array(homes, pa.string()).take(numbers)
        more = []
        if levels.null_count < rows:
            numbers, said = self._by_level(levels, numbers, where)
            more.append(said)
        if times.null_count < rows:
            numbers, said = self._by_time(times, numbers, where)
            more.append(said)
        return numbers, more

    def _by_level(self, levels: Any, numbers: Any, where: Any) -> tuple[Any, Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        delay_queues = self._broker.bulk.delay_queues
        found = pc.min_max(levels).as_py()
        most = delay_queues.levels if delay_queues is not None else DELAY_LEVEL_MAX
        for level in found.values():
            if not 1 <= level <= most:
                raise SparkError("MQ_ROW", f"delayLevel is {level}: give 1 to {most}, or null for none")
        said = pc.binary_join_element_wise("DELAY\x01", levels.cast(pa.string()), "\x02", where, "")
        said = pc.fill_null(said, "")
        if delay_queues is None:
            return numbers, said
        given = sorted(level for level in pc.unique(levels).to_pylist() if level is not None)
        of_level = pa.array([self._number(delay_queues.level(level)) for level in given], pa.int32())
        waiting = of_level.take(pc.index_in(levels, value_set=pa.array(given, levels.type)))
        return pc.coalesce(waiting, numbers), said

    def _by_time(self, times: Any, numbers: Any, where: Any) -> tuple[Any, Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        delay_queues, now_ms = self._broker.bulk.delay_queues, self._clock_ms()
        due_ms = _whole_ms(times)
        ahead_ms = pc.max(due_ms).as_py() - now_ms
        said = pc.binary_join_element_wise("TIMER_DELIVER_MS\x01", due_ms.cast(pa.string()), "\x02", "")
        if delay_queues is None:
            return numbers, pc.fill_null(said, "")
        if ahead_ms > delay_queues.delay_max_ms:
            raise SparkError(
                "MQ_ROW",
                f"deliverAt {now_ms + ahead_ms} (ms since the epoch) is {ahead_ms:,} ms from now, over the"
                f" limit of {delay_queues.delay_max_ms:,} ms (timer_max_delay_ms)",
            )
        waits = pc.greater(due_ms, now_ms)
        if pc.any(waits).as_py():
            width = delay_queues.precision_ms
            slots = pc.multiply(pc.divide(pc.subtract(due_ms, 1), width), width)  # see slot_ms
            slot = pc.binary_join_element_wise("TIMER_OUT_MS\x01", slots.cast(pa.string()), "\x02", where, "")
            said = pc.binary_join_element_wise(said, pc.if_else(waits, slot, ""), "")
            timed = pa.scalar(self._number(delay_queues.timed), pa.int32())
            numbers = pc.if_else(pc.fill_null(waits, False), timed, numbers)
        return numbers, pc.fill_null(said, "")


def _has(columns: Mapping[str, Any], name: str, rows: int) -> bool:
    """Whether any row has a value in this column."""
    return name in columns and columns[name].null_count < rows


def _plain(batch: Any) -> dict[str, Any]:
    """The columns of the sink, cast to the expected Arrow types: Spark may send equivalent ones such as
    large_string."""
    import pyarrow as pa

    text = pa.string()
    kinds = {
        "body": pa.binary(),
        "topic": text,
        "queueId": pa.int32(),
        "tags": text,
        "properties": pa.map_(text, text),
        "shardingKey": text,
        "delayLevel": pa.int32(),
    }
    columns = {}
    for name in batch.schema.names:
        if name not in COLUMNS:
            continue
        column = batch.column(name)
        kind = kinds.get(name)
        if name == "deliverAt":
            kind = pa.timestamp("us", getattr(column.type, "tz", None) or "UTC")
        elif name == "keys":
            is_text = not pa.types.is_nested(column.type)
            kind = text if is_text else pa.list_(text)
        columns[name] = column if column.type == kind else _cast(name, column, kind)
    return columns


def _cast(name: str, column: Any, kind: Any) -> Any:
    import pyarrow as pa

    try:
        if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
            return pa.array(column.to_pylist(), kind)
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SparkError(
            "MQ_ROW",
            f"column {name} is {column.type}, and is no {kind}: {str(error) or type(error).__name__}",
        ) from None


def _by_key(keys: Any, counts: Any) -> Any:
    """The queue id of each sharding key, as in queue_of_key; each distinct key is hashed once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = keys.cast(pa.binary()).dictionary_encode()
    hashes = pa.array(map(xxhash.xxh64_intdigest, encoded.dictionary.to_pylist()), pa.uint64())
    of_row, number = hashes.take(encoded.indices), counts.cast(pa.uint64())
    rest = pc.subtract(of_row, pc.multiply(pc.divide(of_row, number), number))
    return rest.cast(pa.int32())


def _whole_ms(times: Any) -> Any:
    """Times in ms, rounded up; a time before the epoch becomes the epoch, since both are past."""
    import pyarrow as pa
    import pyarrow.compute as pc

    us = pc.max_element_wise(times.cast(pa.int64()), 0, skip_nulls=False)
    ms = pc.divide(us, 1000)
    return pc.add(ms, pc.greater(us, pc.multiply(ms, 1000)).cast(pa.int64()))


def _split(whole: Any, numbers: Any) -> Iterator[tuple[int, Any]]:
    """Split a batch by the queue index of its rows, which keep their order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(numbers, pa.Scalar):
        yield numbers.as_py(), whole
        return
    counts = {each["values"]: each["counts"] for each in pc.value_counts(numbers).to_pylist()}
    if len(counts) == 1:
        yield next(iter(counts)), whole
        return
    ordered, at = whole.take(pc.array_sort_indices(numbers)), 0
    for number in sorted(counts):
        yield number, ordered.slice(at, counts[number])
        at += counts[number]
