"""Rows that are written come back as they were, whatever Arrow they are in, or are refused; those that
are delayed are put aside as a send does it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import mq
from mq.api.broker import queue_of_key
from mq.api.local import Delayed
from mq.broker.local import LocalBroker
from mq.errors import MessageInvalid
from mq.properties import RESERVED_NAMES, decode
from mq.spark.errors import SparkError
from mq.spark.sink.append import append_batches
from mq.spark.sink.rows import RowEncoder, check_columns
from tests.spark.reading import batch_rows, forget_brokers
from tests.spark.writing import bodies_of, schema_of, source, stored
from tests.support.appending import append_one
from tests.support.store.small_store import open_small

pa = pytest.importorskip("pyarrow")

KINDS = {
    "topic": pa.string(),
    "body": pa.binary(),
    "queueId": pa.int32(),
    "tags": pa.string(),
    "keys": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "shardingKey": pa.string(),
    "delayLevel": pa.int32(),
    "deliverAt": pa.timestamp("us", "UTC"),
}
# What holds the same as these types. Spark sends large ones with spark.sql.execution.arrow.useLargeVarTypes.
LIKE = {
    pa.string(): [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    pa.binary(): [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int16(), pa.binary())],
    pa.int32(): [pa.int32(), pa.int64(), pa.int8(), pa.dictionary(pa.int8(), pa.int32())],
    KINDS["properties"]: [KINDS["properties"], pa.map_(pa.large_string(), pa.large_string())],
    pa.list_(pa.string()): [
        pa.list_(pa.string()),
        pa.list_(pa.large_string()),
        pa.large_list(pa.string()),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
    ],
}
TOPICS = ("orders", "payments")


def batch_of(rows: Sequence[dict[str, Any]], **kinds: Any) -> Any:
    names = [name for name in KINDS if any(name in row for row in rows)]
    fields = [pa.field(name, kinds.get(name, KINDS[name])) for name in names]
    return pa.RecordBatch.from_pylist(list(rows), schema=pa.schema(fields))


def write(directory: Path, batch: Any, topic: str = "orders", **options: str) -> None:
    to = source(directory, topic=topic, **options).writer(
        schema=schema_of(body="binary", topic="string"), overwrite=False
    )
    to.commit([to.write_task(iter([batch]), to.run, 0, 0, 1)])


# Any rows.

texts = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    [
        "",
        " ",
        "a  b",
        " x ",
        "\t",
        "a\x01b",
        "\x02",
        "größer",
        "a||b",
        "*",
        "KEYS",
        "DELAY",
        "\u2003",
        "x" * 33_000,
    ]
)
names = texts | st.sampled_from(["n", "region", "__RMQ.TRANSIENT.x"])
row = st.fixed_dictionaries(
    {"body": st.binary(max_size=40), "topic": st.sampled_from(TOPICS)},
    optional={
        "tags": st.none() | texts,
        "keys": st.none() | st.lists(st.none() | texts, max_size=3),
        "properties": st.none() | st.dictionaries(names, st.none() | texts, max_size=3),
        "queueId": st.none() | st.integers(0, 1),
        "shardingKey": st.none() | texts,
    },
)


def said_by_a_producer(row: dict[str, Any]) -> dict[str, str] | None:
    """The properties that a message of a row has; None if there can be no such message."""
    keys = row.get("keys") or ()
    properties = row.get("properties")
    try:
        message = mq.Message(
            row["topic"],
            row["body"],
            tags=row.get("tags") or None,
            keys=[key for key in (keys.split(" ") if isinstance(keys, str) else keys) if key],
            properties=properties or None,
        )
    except (MessageInvalid, TypeError):
        return None
    return decode(message.encoded)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, LocalBroker]]:
    directory = tmp_path_factory.mktemp("rows") / "store"
    with mq.open(directory, commitlog_file_size=1 << 20) as broker:
        for topic in TOPICS:
            broker.create_topic(topic, 2)
        yield directory, broker
        forget_brokers()


@settings(max_examples=100, deadline=None)
@given(data=st.data(), rows=st.lists(row, min_size=1, max_size=8), joined=st.booleans(), once=st.booleans())
def test_rows_come_back_as_they_were_written(
    shared: tuple[Path, LocalBroker], data: Any, rows: list[dict[str, Any]], joined: bool, once: bool
) -> None:
    directory, broker = shared
    kinds: dict[str, Any] = {}
    for number, each in enumerate(rows):
        each["body"] = b"%d-" % number + each["body"]
    if joined:
        for each in rows:
            if each.get("keys") is not None:
                each["keys"] = " ".join(key for key in each["keys"] if key is not None)
    else:
        kinds["keys"] = pa.list_(pa.string())
    whole = batch_of(rows, **kinds)
    columns = []
    for field in whole.schema:
        like = data.draw(st.sampled_from(LIKE[field.type]))
        values = whole.column(field.name).to_pylist()
        # What lies before and behind in the memory of a slice is no row.
        first = data.draw(st.integers(0, 2))
        columns.append(pa.array(values[:1] * first + values + values[-1:], like).slice(first, len(values)))
    batch = pa.record_batch(columns, whole.schema.names)
    wanted = [said_by_a_producer(each) for each in rows]
    before = {
        (topic, queue.queue_id): queue.max_offset for topic in TOPICS for queue in broker.topic(topic).queues
    }
    semantics = "exactly_once" if once else "at_least_once"
    if None in wanted:
        with pytest.raises(SparkError, match=r"^\[MQ_ROW\]"):
            write(directory, batch, "", semantics=semantics)
        return
    write(directory, batch, "", semantics=semantics)
    starting = json.dumps(
        {topic: {str(queue_id): before[topic, queue_id] for queue_id in range(2)} for topic in TOPICS}
    )
    found = batch_rows(
        directory, "topic", "queueId", "tags", "keys", "properties", "body",
        topic=",".join(TOPICS), startingOffsets=starting, includeProperties="true",
    )  # fmt: skip
    numbers = [int(read["body"].split(b"-")[0]) for read in found]
    assert sorted(numbers) == list(range(len(rows)))
    places = [(read["topic"], read["queueId"], number) for read, number in zip(found, numbers, strict=True)]
    assert sorted(places, key=lambda place: TOPICS.index(place[0])) == sorted(
        places, key=lambda place: (TOPICS.index(place[0]), place[1], place[2])
    )
    for read, number in zip(found, numbers, strict=True):
        each, properties = rows[number], dict(wanted[number] or {})
        assert (read["topic"], read["body"]) == (each["topic"], each["body"])
        assert may_go(broker, each, read["queueId"])
        assert (read["tags"], read["keys"]) == (properties.pop("TAGS", None), properties.pop("KEYS", None))
        assert dict(read["properties"]) == properties


def may_go(broker: LocalBroker, row: dict[str, Any], queue_id: int) -> bool:
    if row.get("queueId") is not None:
        return bool(row["queueId"] == queue_id)
    if row.get("shardingKey") is not None:
        queues = [queue.message_queue for queue in broker.topic(row["topic"]).queues]
        return queue_of_key(queues, row["shardingKey"]).queue_id == queue_id
    return True


def test_rows_of_a_queue_keep_their_order(broker: LocalBroker, directory: Path) -> None:
    rows = [{"body": b"%d" % number, "queueId": number * 7 % 3 % 2} for number in range(500)]
    write(directory, batch_of(rows))
    for queue in broker.topic("orders").queues:
        mine = [each["body"] for each in rows if each["queueId"] == queue.queue_id]
        assert [message.body for message in queue.read(0, count_max=1000).messages] == mine


def test_the_same_rows_go_to_the_same_queues_in_every_process(broker: LocalBroker) -> None:
    """However the topics of a batch are hashed: a task that runs again stages the same."""
    broker.create_topic("payments", 2)
    rows = [{"body": b"x", "topic": TOPICS[number // 3 % 2]} for number in range(12)]
    encoder = RowEncoder(broker, None, 1)
    placed = [
        [
            (staged.queue.topic, staged.queue.queue_id, staged.rows.num_rows)
            for staged in encoder.encode(batch_of(rows))
        ]
        for _ in range(2)
    ]
    assert placed == [[("orders", 1, 6), ("payments", 0, 6)], [("orders", 1, 6), ("payments", 0, 6)]]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"queueId": pa.array([1 << 40], pa.int64())}, "column queueId is int64, and is no int32"),
        ({"queueId": pa.array([-1], pa.int32())}, "topic orders has no queue -1.*queues are 0 to 1"),
        ({"tags": pa.array([b"\xff"], pa.binary())}, "column tags is binary, and is no string"),
        ({"properties": pa.array([[("n", None)]], KINDS["properties"])}, r"property 'n' is null"),
        ({"properties": pa.array([[("DELAY", "3")]], KINDS["properties"])}, "'DELAY' is reserved.*filter"),
        ({"keys": pa.array([["a b"]], pa.list_(pa.string()))}, r"key 'a b' has a space"),
        ({"keys": pa.array(["a \u2000"])}, "a key is blank"),
        ({"keys": pa.array(["k" * 40_000])}, r"come to 40,\d{3} bytes, over the limit of 32,705"),
        ({"topic": pa.array(["MQ_SINK_LEDGER"])}, r"\[MQ_TOPIC\].*kept for other things"),
        ({"topic": pa.array(["SCHEDULE_TOPIC_XXXX"])}, r"\[MQ_TOPIC\].*kept for other things"),
        ({"topic": pa.array([None], pa.string())}, r"\[MQ_ROW\] a topic is null"),
        ({"body": pa.array([bytes(10_000)])}, "properties of a row come to 10,000 bytes.*this store's files"),
    ],
)  # fmt: skip
def test_rows_that_can_be_no_message(broker: LocalBroker, column: dict[str, Any], said: str) -> None:
    encoder = RowEncoder(broker, None if "topic" in column else "orders", 0)
    with pytest.raises(SparkError, match=said):
        list(encoder.encode(pa.record_batch({"body": pa.array([b"x"]), **column})))


def test_a_text_that_is_not_utf8_is_refused(broker: LocalBroker) -> None:
    """Spark has such strings: string(X'ff')."""
    offsets = pa.array([0, 1], pa.int32()).buffers()[1]
    wrong = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])
    for name in ("tags", "keys", "topic"):
        encoder = RowEncoder(broker, None if name == "topic" else "orders", 0)
        with pytest.raises(SparkError, match=r"\[MQ_ROW\] .* is not UTF-8"):
            list(encoder.encode(pa.record_batch({"body": pa.array([b"x"]), name: wrong})))
    # As a body it is bytes like others; as a sharding key too.
    (staged,) = RowEncoder(broker, "orders", 0).encode(pa.record_batch({"body": wrong, "shardingKey": wrong}))
    assert staged.rows.column("body").to_pylist() == [b"\xff"]


def test_every_reserved_name_is_refused(broker: LocalBroker) -> None:
    for name in RESERVED_NAMES:
        with pytest.raises(SparkError, match="is reserved by RocketMQ"):
            list(
                RowEncoder(broker, "orders", 0).encode(batch_of([{"body": b"x", "properties": {name: "1"}}]))
            )


def test_a_column_named_twice() -> None:
    with pytest.raises(SparkError, match=r"\[MQ_SCHEMA\] there are 2 columns tags"):
        check_columns([("body", "binary"), ("tags", "string"), ("tags", "string")], "orders")


# Delayed rows.


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def moment(time_ms: int, us: int = 0) -> datetime:
    return datetime.fromtimestamp(time_ms // 1000, timezone.utc) + timedelta(
        milliseconds=time_ms % 1000, microseconds=us
    )


def waiting(broker: LocalBroker) -> list[tuple[str, int, int, dict[str, str]]]:
    """What is put aside: topic and queue where it waits, code of its unit less its store time, properties."""
    found = []
    for topic in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"):
        for path in sorted((broker.path / "consumequeue" / topic).glob("*/0*")):
            queue = mq.MessageQueue(topic, broker.name, int(path.parent.name))
            for message in broker.puller(queue)(0, 100, 1 << 20, None, 0.0).messages:
                at = message.queue_offset * 20 + 12
                code = int.from_bytes(path.read_bytes()[at : at + 8], "big", signed=True)
                properties = {n: v for n, v in message.properties.items() if n != "UNIQ_KEY"}
                ahead = code - message.store_time_ms if topic.startswith("S") else code
                found.append((topic, queue.queue_id, ahead, properties))
    return found


@pytest.mark.parametrize("semantics", ["exactly_once", "at_least_once"])
def test_delayed_rows_are_put_aside_as_a_send_does(directory: Path, semantics: str) -> None:
    due_ms = now_ms() + 3_600_000
    rows: list[dict[str, Any]] = [
        {
            "body": b"level",
            "tags": "t",
            "keys": "k l",
            "properties": {"n": "1"},
            "delayLevel": 17,  # An hour: nothing is due before all is looked at.
            "queueId": 1,
        },
        {"body": b"now", "queueId": 0},
        {"body": b"timed", "tags": "t", "deliverAt": moment(due_ms), "queueId": 0},
        {"body": b"last", "delayLevel": 18, "queueId": 0},
        {"body": b"past", "deliverAt": moment(1_000_000_000_000), "queueId": 1},
    ]
    with open_small(directory) as broker:
        topic = broker.create_topic("orders", 2)
        for row in rows:
            at = row.get("deliverAt")
            message = mq.Message(
                "orders",
                row["body"],
                tags=row.get("tags"),
                keys=str(row.get("keys", "")).split(),
                properties=row.get("properties"),
                delay_level=row.get("delayLevel", 0),
                deliver_at_ms=None if at is None else int(at.timestamp() * 1000),
            )
            append_one(broker, "orders", row["queueId"], message, message.body, 0)
        sent, direct = (
            waiting(broker),
            [(m.body, m.queue_id, m.properties.get("TIMER_DELIVER_MS")) for m in stored(broker)],
        )
        assert len(sent) == 3
        begins = [queue.max_offset for queue in topic.queues]
        write(directory, batch_of(rows), semantics=semantics)
        assert sorted(waiting(broker), key=str) == sorted(sent * 2, key=str)
        again = [
            (m.body, m.queue_id, m.properties.get("TIMER_DELIVER_MS"))
            for m in stored(broker)
            if m.queue_offset >= begins[m.queue_id]
        ]
        assert sorted(again) == sorted(direct)
        forget_brokers()


@pytest.mark.parametrize("semantics", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_delayed_rows_are_delivered_when_they_are_due(directory: Path, semantics: str, flush: Any) -> None:
    with open_small(directory, message_delay_level="300ms 1h", flush=flush) as broker:
        broker.create_topic("orders", 1)
        before = now_ms()
        due_ms = before + 600
        rows: list[dict[str, Any]] = [
            {"body": b"timed", "deliverAt": moment(due_ms)},
            {"body": b"level", "delayLevel": 1},
            {"body": b"now"},
        ]
        write(directory, batch_of(rows), semantics=semantics)
        found: list[mq.MessageExt] = []
        queue = broker.topic("orders").queues[0]
        while len(found) < 3:
            got = queue.read(len(found), wait=60.0).messages
            assert got, [message.body for message in found]
            found += got
        # In which order depends on how long the write took: a level counts from then, and a time does not.
        stored_ms = {message.body: message.store_time_ms for message in found}
        assert stored_ms.keys() == {b"now", b"level", b"timed"}
        assert stored_ms[b"level"] >= before + 300
        assert stored_ms[b"timed"] >= due_ms
        assert waiting_at_last(broker, 0) == []
        forget_brokers()


def waiting_at_last(broker: LocalBroker, count: int) -> list[Delayed]:
    """What waits to be delivered, once there is no more: that a message was delivered is noted just after."""
    deadline = time.monotonic() + 60
    while len(found := list(broker.delayed())) > count:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return found


def test_a_commit_that_comes_late_shifts_nothing(broker: LocalBroker, directory: Path) -> None:
    """A driver died after its tasks, and another one commits when the rows are due already; or not yet."""
    long_ago, ahead = now_ms() - 3_600_000, now_ms() + 3_600_000
    rows = [
        {"body": b"due by now", "deliverAt": moment(long_ago + 1000)},
        {"body": b"not yet", "deliverAt": moment(ahead)},
    ]
    staged = list(RowEncoder(broker, "orders", 0, clock_ms=lambda: long_ago).encode(batch_of(rows)))
    assert [each.queue.topic for each in staged] == ["rmq_sys_wheel_timer"]
    append_batches(broker, staged)
    assert broker.topic("orders").queues[0].read(0, wait=60.0).messages[0].body == b"due by now"
    (left,) = waiting_at_last(broker, 1)
    assert (left.due_ms, left.queue) == (ahead, mq.MessageQueue("orders", "mq", 0))


@settings(max_examples=200)
@given(st.integers(-(1 << 62), 1 << 62), st.integers(0, 1 << 45))
def test_no_row_is_due_early(us: int, now: int) -> None:
    """Any timestamp: refused beyond the limit, stored at once if it is past, else due in its ms or
    the next."""
    encoder = RowEncoder(Levels(), "orders", 0, clock_ms=lambda: now)  # type: ignore[arg-type]  # what it asks for
    batch = pa.record_batch(
        {"body": pa.array([b"x"]), "deliverAt": pa.array([us], pa.timestamp("us", "UTC"))}
    )
    due_ms = max(-(-us // 1000), 0)
    if due_ms - now > 259_200_000:
        with pytest.raises(SparkError, match="over the limit of 259,200,000 ms"):
            list(encoder.encode(batch))
        return
    (staged,) = encoder.encode(batch)
    said = decode(staged.rows.column("properties")[0].as_py())
    assert said["TIMER_DELIVER_MS"] == str(due_ms)
    assert (staged.queue.topic == "rmq_sys_wheel_timer") == (due_ms > now) == ("TIMER_OUT_MS" in said)
    if due_ms > now:
        assert int(said["TIMER_OUT_MS"]) < due_ms <= int(said["TIMER_OUT_MS"]) + 1000


class Levels:
    """All that an encoder asks of a broker, without one."""

    message_size_max = 1000

    class bulk:  # noqa: N801 - it stands for an attribute
        size_max = 10_000

        @staticmethod
        def queues_to_write(topic: str, **_: bool) -> list[mq.MessageQueue]:
            return [mq.MessageQueue(topic, "mq", 0)]

        class delay_queues:  # noqa: N801 - the same
            levels, delay_max_ms, precision_ms = 18, 259_200_000, 1000
            timed = mq.MessageQueue("rmq_sys_wheel_timer", "mq", 0)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"delayLevel": 0}, "delayLevel is 0: give 1 to 18, or null for none"),
        ({"delayLevel": 19}, "delayLevel is 19: give 1 to 18"),
        ({"delayLevel": -1}, "delayLevel is -1: give 1 to 18"),
        ({"delayLevel": 1, "deliverAt": moment(0)}, "a row has both delayLevel and deliverAt"),
        (
            {"deliverAt": moment(32_503_680_000_000)},
            r"deliverAt 32503680000000 .*over the limit of 259,200,000 ms",
        ),
    ],
)
def test_delays_that_there_are_not(broker: LocalBroker, row: dict[str, Any], said: str) -> None:
    with pytest.raises(SparkError, match=rf"\[MQ_ROW\] {said}"):
        list(RowEncoder(broker, "orders", 0).encode(batch_of([{"body": b"x"}, {"body": b"x", **row}])))


def test_columns_of_nulls_delay_nothing(broker: LocalBroker, directory: Path) -> None:
    rows: list[dict[str, Any]] = [{"body": b"x", "delayLevel": None, "deliverAt": None}]
    write(directory, batch_of(rows))
    assert bodies_of(broker) == [b"x"]
    assert list(broker.delayed()) == []
