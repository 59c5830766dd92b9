"""What the sink's tasks and commits do, without Spark: each epoch is in the log once, complete, whichever
process dies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.api.broker import queue_of_key
from mq.broker.local import LocalBroker
from mq.spark.datasource import MqDataSource
from mq.spark.errors import SparkError
from mq.spark.sink import commit
from mq.spark.sink.append import append_batches
from mq.spark.sink.ledger import TOPIC, chunked
from mq.spark.sink.staging import sink_directory
from tests.spark.reading import forget_brokers, struct
from tests.spark.writing import (
    batches,
    bodies_of,
    numbered,
    schema_of,
    source,
    staged_files,
    stored,
    write,
    writer,
)

pa = pytest.importorskip("pyarrow")


class Dies(Exception):
    """In place of a kill -9."""


def test_an_epoch_is_appended_once_and_in_order(broker: LocalBroker, directory: Path) -> None:
    to = writer(directory)
    messages = write(to, 0, numbered(0, 7), [], numbered(7, 9))
    assert bodies_of(broker) == []
    writer(directory).commit(messages, 0)
    assert bodies_of(broker) == numbered(0, 9)
    assert {message.queue_id for message in stored(broker)} == {0, 1}
    # The driver died before Spark took note: the epoch is written again, and is there already.
    again = write(to, 0, numbered(0, 9))
    writer(directory).commit(again, 0)
    writer(directory).commit(write(to, 1, numbered(9, 12)), 1)
    assert bodies_of(broker) == numbered(0, 12)
    assert staged_files(directory) == []


def test_a_killed_task_and_a_zombie_write_nothing(broker: LocalBroker, directory: Path) -> None:
    to = writer(directory)
    write(to, 0, numbered(100, 105))  # This one is not committed.
    writer(directory).commit(write(to, 0, numbered(0, 5)), 0)
    write(to, 0, numbered(200, 205))  # It went on after stop().
    writer(directory).commit(write(to, 1, numbered(5, 6)), 1)
    assert bodies_of(broker) == numbered(0, 6)
    assert staged_files(directory) == []

    def failing() -> Iterator[Any]:
        yield from batches(b"x")
        raise OSError("the task fails")

    with pytest.raises(OSError, match="the task fails"):
        to.write_task(failing(), "query", 2, 0, 1)
    assert staged_files(directory) == []


def test_an_abort_removes_what_the_log_does_not_have(broker: LocalBroker, directory: Path) -> None:
    to = writer(directory)
    messages = write(to, 0, numbered(0, 5), numbered(5, 9))
    writer(directory).abort([None, *messages], 0)
    assert staged_files(directory) == []
    messages = write(to, 0, numbered(0, 5))
    writer(directory).commit(messages, 0)
    writer(directory).abort(messages, 0)
    writer(directory).abort([None, None], 1)
    assert bodies_of(broker) == numbered(0, 5)


def test_another_checkpoint_with_the_same_txn_is_refused(broker: LocalBroker, directory: Path) -> None:
    to = writer(directory, txnAppId="app/1")
    to.commit(write(to, 4, [b"x"], query="first"), 4)
    messages = write(to, 0, [b"y"], query="second")
    with pytest.raises(SparkError, match=r"\[MQ_TXN_MISMATCH\]"):
        to.commit(messages, 0)
    to.commit(write(to, 5, [b"z"], query="second"), 5)
    assert bodies_of(broker) == [b"x", b"z"]


def test_a_batch_write_stores_its_rows(broker: LocalBroker, directory: Path) -> None:
    for _ in range(2):
        to = writer(directory, stream=False)
        to.commit(write(to, 0, [b"each time"], query=to.run))
    counted = writer(directory, stream=False, txnAppId="job", txnVersion="3")
    for _ in range(2):
        counted.commit(write(counted, 3, [b"once"]))
    failed = writer(directory, stream=False)
    failed.abort([*write(failed, 0, [b"never"], query=failed.run), None])
    assert bodies_of(broker) == [b"each time", b"each time", b"once"]
    assert staged_files(directory) == []
    assert [path.name for path in (directory / "mq" / "spark").iterdir()] == ["job"]


def test_a_batch_write_whose_driver_died_is_finished_by_the_next_that_is_planned(
    broker: LocalBroker, directory: Path
) -> None:
    bodies = numbered(0, 9)

    def die(*_: object, **__: object) -> None:
        raise Dies

    for number, (semantics, stream) in enumerate(
        [("exactly_once", False), ("exactly_once", True), ("at_least_once", True)]
    ):
        first = writer(directory, stream=False, chunkBytes="1")
        messages = write(first, 0, bodies, query=first.run)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(commit, "clear_marks", die)
            patch.setattr(commit, "chunked", lambda *given: islice(chunked(*given), 1))
            with pytest.raises(Dies):
                first.commit(messages)
        assert bodies_of(broker) == [*bodies * number, *bodies[:3]]
        forget_brokers()
        writer(directory, stream=stream, semantics=semantics)
        assert bodies_of(broker) == bodies * (number + 1)
    assert staged_files(directory) == []


def test_a_batch_write_that_failed_in_part_is_finished_as_it_is_aborted(
    broker: LocalBroker, directory: Path
) -> None:
    to = writer(directory, stream=False, chunkBytes="1")
    messages = write(to, 0, numbered(0, 9), query=to.run)
    appends = iter([append_batches])

    def append(*given: Any, **options: Any) -> None:
        for real in appends:
            return real(*given, **options)
        raise mq.StoreFull("no room", path="commitlog")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "append_batches", append)
        with pytest.raises(mq.StoreFull):
            to.commit(messages)
    to.abort(messages)
    assert bodies_of(broker) == numbered(0, 9)
    assert list((directory / "mq" / "spark").iterdir()) == []


def test_at_least_once_appends_at_once(broker: LocalBroker, directory: Path) -> None:
    to = writer(directory, semantics="at_least_once")
    messages = write(to, 0, numbered(0, 5))
    assert bodies_of(broker) == numbered(0, 5)
    to.commit(messages, 0)
    assert TOPIC not in broker.topics()
    # A zombie, and a job that failed: what was written stays.
    to.abort([*write(to, 1, numbered(5, 7)), None], 1)
    assert bodies_of(broker) == numbered(0, 7)


def test_the_sink_writes_every_column(broker: LocalBroker, directory: Path) -> None:
    broker.create_topic("payments", 3)
    schema = {
        "topic": "string",
        "body": "string",
        "tags": "string",
        "keys": "array<string>",
        "properties": "map<string,string>",
        "queueId": "int",
        "shardingKey": "string",
        "queueOffset": "bigint",
    }
    to = source(directory, topic="").streamWriter(schema=schema_of(**schema), overwrite=False)
    rows = [
        {"topic": "orders", "body": "a", "tags": "t", "keys": ["k", "l"], "properties": [("n", "1")]},
        {"topic": "payments", "body": "b", "queueId": 2},
        {"topic": "payments", "body": "c", "shardingKey": "key", "properties": []},
        {"topic": "payments", "body": "d", "shardingKey": "key", "tags": "", "keys": []},
    ]
    kinds = {
        "keys": pa.list_(pa.string()),
        "properties": pa.map_(pa.string(), pa.string()),
        "queueId": pa.int32(),
        "queueOffset": pa.int64(),
    }
    fields = [pa.field(name, kinds.get(name, pa.string())) for name in schema]
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))
    to.commit([to.write_task(iter([batch]), "query", 0, 0, 1)], 0)
    (first,) = stored(broker)
    user = {name: value for name, value in first.properties.items() if name == "n"}
    assert (first.body, first.tags, first.keys, user) == (b"a", "t", ("k", "l"), {"n": "1"})
    found = {message.body: message for message in stored(broker, "payments")}
    assert found[b"b"].queue_id == 2
    queues = [queue.message_queue for queue in broker.topic("payments").queues]
    assert {found[body].queue_id for body in (b"c", b"d")} == {queue_of_key(queues, "key").queue_id}
    assert (found[b"d"].tags, found[b"d"].keys) == (None, ())


def test_tags_and_keys_of_whole_columns(broker: LocalBroker, directory: Path) -> None:
    to = writer(directory)
    columns = {"body": [b"1", b"2", b"3"], "tags": ["a", None, ""], "keys": ["x y", "z", None]}
    kinds = {"body": pa.binary()}
    batch = pa.record_batch({name: pa.array(v, kinds.get(name, pa.string())) for name, v in columns.items()})
    to.commit([to.write_task(iter([batch]), "query", 0, 0, 1)], 0)
    found = [(message.tags, message.keys) for message in stored(broker)]
    assert found == [("a", ("x", "y")), (None, ("z",)), (None, ())]
    assert [m.body for m in broker.query("orders", "y")] == [b"1"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"body": None}, "a body is null or empty"),
        ({"body": b""}, "a body is null or empty"),
        ({"body": bytes(5 << 20)}, "over the limit"),
        ({"body": b"x", "tags": "a\x02b"}, "has a character 01 or 02"),
        ({"body": b"x", "topic": "nowhere"}, r"\[MQ_TOPIC\] there is no topic 'nowhere'"),
        ({"body": b"x", "topic": None}, "a topic is null"),
        ({"body": b"x", "queueId": 9, "topic": "orders"}, "has no queue 9"),
        ({"body": b"x", "topic": "orders", "properties": [("KEYS", "x")]}, "reserved"),
    ],
)
def test_rows_that_can_be_no_message(
    broker: LocalBroker, directory: Path, row: dict[str, Any], said: str
) -> None:
    by_column = "topic" in row
    kinds = {
        "body": pa.binary(),
        "queueId": pa.int32(),
        "properties": pa.map_(pa.string(), pa.string()),
    }
    batch = pa.RecordBatch.from_pylist(
        [row], schema=pa.schema([pa.field(name, kinds.get(name, pa.string())) for name in row])
    )
    given = schema_of(body="binary", **({"topic": "string"} if by_column else {}))
    to = source(directory, topic="" if by_column else "orders").streamWriter(schema=given, overwrite=False)
    with pytest.raises(SparkError, match=said):
        to.write_task(iter([batch]), "query", 0, 0, 1)
    assert staged_files(directory) == []


@pytest.mark.parametrize(
    ("options", "schema", "said"),
    [
        ({}, {"value": "binary"}, "the sink has no column 'value'"),
        ({}, {"body": "binary", "tag": "string"}, "did you mean tags?"),
        ({}, {"tags": "string"}, "no column body"),
        ({}, {"body": "int"}, "column body is int: the sink writes binary or string"),
        (
            {},
            {"body": "binary", "deliverAt": "bigint"},
            "column deliverAt is bigint: the sink writes timestamp",
        ),
        ({"topic": ""}, {"body": "binary"}, "neither a column topic nor the option topic"),
        ({"semantics": "maybe"}, {"body": "binary"}, "give exactly_once or at_least_once"),
        ({"txnVersion": "1"}, {"body": "binary"}, "give both"),
        ({"semantics": "at_least_once", "txnAppId": "x"}, {"body": "binary"}, "for semantics exactly_once"),
        ({"startingOffsets": "earliest"}, {"body": "binary"}, "an option of the source"),
        ({"group": "g"}, {"body": "binary"}, "option group has no meaning for the sink"),
        ({"topic": TOPIC}, {"body": "binary"}, "kept for other things"),
        ({"txnAppId": "x", "txnVersion": "1"}, {"body": "binary"}, "a stream counts its batches itself"),
    ],
)
def test_wrong_sink_options_raise_named_errors(
    broker: LocalBroker, directory: Path, options: dict[str, str], schema: dict[str, str], said: str
) -> None:
    with pytest.raises(SparkError) as caught:
        source(directory, **options).streamWriter(schema=schema_of(**schema), overwrite=False)
    assert said in str(caught.value)


def test_nothing_is_written_over(broker: LocalBroker, directory: Path) -> None:
    for ask in (source(directory).streamWriter, source(directory).writer):
        with pytest.raises(SparkError, match="none is ever written over"):
            ask(schema=schema_of(body="binary"), overwrite=True)


def test_staged_rows_that_are_lost_are_missed(broker: LocalBroker, directory: Path) -> None:
    to = writer(directory)
    messages = write(to, 0, [b"x"])
    shutil.rmtree(sink_directory(directory, "query"))
    with pytest.raises(SparkError, match=r"\[MQ_STAGING_LOST\]"):
        to.commit(messages, 0)
    assert bodies_of(broker) == []


def test_the_ledger_is_no_topic_of_a_pattern(broker: LocalBroker, directory: Path) -> None:
    to = writer(directory)
    to.commit(write(to, 0, [b"x"]), 0)
    assert len(stored(broker, TOPIC)) == 1
    made = MqDataSource({"path": str(directory), "topicpattern": ".*"})
    reader = made.reader(schema=struct("topic"))
    assert {span.queue.topic for one in reader.partitions() for span in one.ranges} == {"orders"}
