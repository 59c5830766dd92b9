"""What a batch reads: all of it, a part of it, or a clear error."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.compression import compressor
from mq.spark.columns import TYPES
from mq.spark.errors import SparkError
from mq.spark.source import key_pruning
from mq.spark.target import broker as broker_of
from mq.spark.target import locate
from tests.spark.reading import batch_rows, send, source, struct
from tests.support import assigned
from tests.support.appending import append_one
from tests.support.store.small_store import log_files


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def bodies(directory: Path, **options: str) -> list[bytes]:
    return [row["body"] for row in batch_rows(directory, "body", **{"topic": "orders", **options})]


def test_every_column_is_the_message_s(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 1, b"one", tags="paid", keys=["a", "b"], properties={"price": "5"}, flag=7)
    (row,) = batch_rows(directory, *TYPES, topic="orders", includeProperties="true")
    (message,) = broker.topic("orders").queues[1].read(0).messages
    assert row.pop("bornTimestamp").timestamp() * 1000 == message.born_time_ms
    assert row.pop("storeTimestamp").timestamp() * 1000 == message.store_time_ms
    assert row == {
        "topic": "orders",
        "brokerName": "mq",
        "queueId": 1,
        "queueOffset": 0,
        "msgId": message.msg_id,
        "tags": "paid",
        "keys": "a b",
        "reconsumeTimes": 0,
        "flag": 7,
        "properties": [("price", "5")],
        "body": b"one",
    }


def test_a_body_comes_as_it_was_sent(broker: LocalBroker, directory: Path) -> None:
    body = b"many times " * 100
    packed, flags = compressor("zlib")(body)
    append_one(broker, "orders", 0, mq.Message("orders", packed), packed, flags)
    assert bodies(directory) == [body]


def test_a_batch_reads_by_queues_and_offsets(broker: LocalBroker, directory: Path) -> None:
    for queue_id in range(2):
        send(broker, "orders", queue_id, *[b"%d.%d" % (queue_id, number) for number in range(10)])
    assert bodies(directory, minPartitions="3") == bodies(directory)
    assert len(bodies(directory)) == 20
    offsets = '{"orders": {"0": 7, "1": -2}}', '{"orders": {"0": -1, "1": 2}}'
    found = bodies(directory, startingOffsets=offsets[0], endingOffsets=offsets[1])
    assert found == [b"0.7", b"0.8", b"0.9", b"1.0", b"1.1"]
    found = [row["body"] for row in batch_rows(directory, "body", assign='{"orders": [1]}')]
    assert found == [b"1.%d" % number for number in range(10)]


def test_a_batch_reads_by_times(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, b"old")
    time.sleep(0.002)
    between = time.time_ns() // 1_000_000
    send(broker, "orders", 0, b"young")
    assert bodies(directory, endingTimestamp=str(between)) == [b"old"]
    with pytest.raises(SparkError, match="queue 1 of topic orders has no message from"):
        bodies(directory, startingTimestamp=str(between))
    late = {"startingOffsetsByTimestampStrategy": "latest"}
    assert bodies(directory, startingTimestamp=str(between), **late) == [b"young"]
    by_queue = f'{{"orders": {{"0": {between}, "1": 0}}}}'
    assert bodies(directory, startingOffsetsByTimestamp=by_queue, **late) == [b"young"]


def test_tags_are_compared_exactly(broker: LocalBroker, directory: Path) -> None:
    # Both have the hash of "Aa".
    for number, tag in enumerate(["Aa", "BB", None, "Aa", "other"]):
        send(broker, "orders", 0, b"%d" % number, tags=tag)
    assert bodies(directory, tags="Aa || none") == [b"0", b"3"]
    assert bodies(directory, tags="*") == [b"%d" % number for number in range(5)]


def test_a_batch_filters_by_sql(broker: LocalBroker, directory: Path) -> None:
    for price in range(600):
        send(broker, "orders", 0, b"%d" % price, properties={"price": str(price)}, tags="t")
    assert bodies(directory, sql="price > 597 AND TAGS = 't'") == [b"598", b"599"]


# Duties bring the index up, too.
@pytest.mark.parametrize("broker", [{"duties": False}], indirect=True, ids=["without duties"])
def test_a_key_is_found_through_the_index(broker: LocalBroker, directory: Path) -> None:
    for number in range(900):
        keys = [f"k{number % 100}", "every"] if number % 3 else []
        send(broker, "orders", number % 2, b"%d" % number, keys=keys)
    broker.query("orders", "k7")  # The index knows these, and not those that follow.
    for number in range(900, 950):
        send(broker, "orders", 0, b"%d" % number, keys=[f"k{number % 100}", "k7k", "xk7"])
    found = [b"%d" % number for number in range(950) if number % 100 == 7 and (number > 899 or number % 3)]
    assert sorted(bodies(directory, key="k7"), key=lambda body: (len(body), body)) == found
    partitions = source(directory, topic="orders", key="k7").reader(schema=struct("body")).partitions()
    assert sum(span.rows for part in partitions for span in part.ranges) == len(found) - 1 + 50
    assert bodies(directory, key="none") == []
    assert len(bodies(directory, key="every")) == 600
    message = broker.topic("orders").queues[1].read(200).messages[0]
    assert bodies(directory, key=message.msg_id) == [message.body]
    offsets = '{"orders": {"0": 0, "1": 0}}'
    assert bodies(directory, key="k7", endingOffsets=offsets) == []
    assert bodies(directory, key="k99", tags="none") == []


def test_a_key_that_many_messages_have(
    broker: LocalBroker, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_pruning, "HITS_MAX", 10)
    send(broker, "orders", 0, *[b"%d" % number for number in range(30)], keys="k")
    send(broker, "orders", 0, b"other")
    broker.query("orders", "k")
    assert bodies(directory, key="k") == [b"%d" % number for number in range(30)]


def test_from_where_a_group_is(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, *[b"%d" % number for number in range(5)])
    send(broker, "orders", 1, b"of a queue without offset")
    assigned.commit(broker, "g", mq.MessageQueue("orders", "mq", 0), 3)
    found = bodies(directory, startingOffsets="group", group="g")
    assert found == [b"3", b"4", b"of a queue without offset"]
    assert broker.group("g").offsets("orders") == {mq.MessageQueue("orders", "mq", 0): 3}


def test_a_topic_without_messages(broker: LocalBroker, directory: Path) -> None:
    broker.create_topic("empty", 3)
    assert bodies(directory, topic="empty") == []
    assert bodies(directory) == []
    reader = source(directory, topic="orders").reader(schema=struct("body"))
    assert reader.partitions() == []
    assert list(reader.read(None)) == []  # What Spark asks for where there is no partition.


def test_a_batch_reads_topics_by_pattern(broker: LocalBroker, directory: Path) -> None:
    for topic in ("orders-eu", "orders-us", "payments"):
        broker.create_topic(topic, 1)
        send(broker, topic, 0, topic.encode())
    mq.PullConsumer(broker, "g").close()
    found = [row["body"] for row in batch_rows(directory, "body", topicPattern="orders-.*|%RETRY.*|RMQ.*")]
    assert found == [b"orders-eu", b"orders-us"]


def test_the_first_record_batches_of_a_task_are_small(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, *[b"%d" % number for number in range(3000)])
    reader = source(directory, topic="orders", batchRows="1000").reader(schema=struct("queueOffset"))
    (partition,) = reader.partitions()
    assert [batch.num_rows for batch in reader.read(partition)] == [256, 1000, 1000, 744]


def test_small_batches_go_together_and_in_order(broker: LocalBroker, directory: Path) -> None:
    broker.create_topic("many", 7)
    for queue_id, count in enumerate([2, 1, 8, 1, 1, 0, 1]):
        send(broker, "many", queue_id, *[b"%d.%d" % (queue_id, number) for number in range(count)])
    reader = source(directory, topic="many", batchRows="8").reader(schema=struct("queueId", "body"))
    (partition,) = reader.partitions()
    batches = [batch.column("queueId").to_pylist() for batch in reader.read(partition)]
    assert batches == [[0, 0], [1], [2] * 8, [3, 4], [6]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "ordres"}, r"\[MQ_TOPIC\] there is no topic 'ordres' in .*; did you mean orders\?"),
        ({"topic": "orders", "path": "/nowhere"}, r"\[MQ_STORE\] option path is '/nowhere'"),
        ({"assign": '{"orders": [0, 2]}'}, r"topic orders has the queues \[0, 1\], and not \[2\]"),
        ({"topic": "orders", "startingOffsets": '{"orders": {"0": 1}}'}, "leaves out orders/1"),
        ({"topic": "orders", "endingOffsets": '{"orders": {"0": 1, "1": 1, "5": 1}}'}, "names orders/5"),
        (
            {"topic": "orders", "startingOffsets": '{"orders": {"0": 1, "1": 0}}'},
            r"\[MQ_DATA_LOSS\] queue 0 of topic orders was to be read from offset 1 on, but it ends at 0",
        ),
    ],
)
def test_wrong_batch_options_raise_named_errors(
    broker: LocalBroker, directory: Path, options: dict[str, str], said: str
) -> None:
    with pytest.raises(SparkError, match=said):
        batch_rows(directory, "body", **options)


def test_a_directory_that_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no store")
    with pytest.raises(SparkError, match=r"\[MQ_STORE\] option path is .*: there is no store in"):
        batch_rows(tmp_path, "body", topic="orders")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]  # Nor is there one now.


def test_a_task_elsewhere_says_so(broker: LocalBroker, directory: Path) -> None:
    here = locate(str(directory))
    for there in (
        dataclasses.replace(here, boot_id="another machine's"),
        dataclasses.replace(here, path="/not/mounted/here"),
        dataclasses.replace(here, device=here.device + 1),
    ):
        with pytest.raises(SparkError, match=r"\[MQ_STORE_NOT_LOCAL\] .* was found by the driver"):
            broker_of(there)


def test_retention_between_plan_and_task(broker: LocalBroker, directory: Path) -> None:
    for loss_fails in ("true", "false"):
        send(broker, "orders", 0, *[bytes(500) for _ in range(40)])
        reader = source(
            directory, topic="orders", failOnDataLoss=loss_fails, startingOffsets="earliest"
        ).reader(schema=struct("queueOffset"))
        (partition,) = reader.partitions()
        assert broker.expire(retention_hours=0) > 0
        oldest, end = broker.topic("orders").queues[0].min_offset, broker.topic("orders").queues[0].max_offset
        if loss_fails == "true":
            with pytest.raises(
                SparkError, match=rf"\[MQ_DATA_LOSS\] .* the oldest message kept is at {oldest}"
            ):
                list(reader.read(partition))
        else:
            offsets = [
                offset for batch in reader.read(partition) for offset in batch["queueOffset"].to_pylist()
            ]
            assert offsets == list(range(oldest, end))


def test_properties_are_asked_for_in_words_that_are_known(broker: LocalBroker, directory: Path) -> None:
    """When Spark asks for the schema, which comes first."""
    wrong = source(directory, topic="orders", includeProperties="yes")
    with pytest.raises(
        SparkError, match=r"\[MQ_OPTION\] option includeProperties is 'yes': give true or false"
    ):
        wrong.schema()
    assert "properties" in source(directory, topic="orders", includeProperties=" True ").schema()


@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize("count", [None, 0, 100, 600, 700])
def test_a_topic_made_again_between_plan_and_task_or_in_it(
    broker: LocalBroker,
    directory: Path,
    caplog: pytest.LogCaptureFixture,
    count: int | None,
    is_begun: bool,
) -> None:
    """With as many messages in it, with others, or not made again at all: none of them was planned."""
    for loss_fails in ("true", "false"):
        if "orders" not in broker.topics():
            broker.create_topic("orders", 2)
        send(broker, "orders", 0, *[b"old %d" % number for number in range(600)])
        reader = source(directory, topic="orders", failOnDataLoss=loss_fails).reader(schema=struct("body"))
        (partition,) = reader.partitions()
        reading = reader.read(partition)
        read = next(reading)["body"].to_pylist() if is_begun else []
        broker.delete_topic("orders")
        if count is not None:
            broker.create_topic("orders", 2)
            send(broker, "orders", 0, *[b"new %d" % number for number in range(count)])
        if loss_fails == "true":
            said = "the topic was deleted and made again" if count is not None else "it is not there any more"
            place = f"from offset {len(read)} on"
            with pytest.raises(
                SparkError, match=rf"\[MQ_DATA_LOSS\] queue 0 of topic orders .*{place}, but {said}"
            ):
                list(reading)
        else:
            read += [body for batch in reading for body in batch["body"].to_pylist()]
            assert read == [b"old %d" % number for number in range(len(read))]
            (told,) = caplog.records  # Not one for each message.
            assert told.levelname == "WARNING"
        if count is not None:
            broker.delete_topic("orders")


def test_a_topic_with_more_queues_is_the_same(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, *numbered(600))
    reader = source(directory, topic="orders").reader(schema=struct("body"))
    (partition,) = reader.partitions()
    reading = reader.read(partition)
    read = next(reading)["body"].to_pylist()
    broker.create_topic("orders", 5)
    broker.create_topic("others", 1)
    read += [body for batch in reading for body in batch["body"].to_pylist()]
    assert read == numbered(600)


def test_a_topic_made_again_while_it_is_looked_at(
    broker: LocalBroker, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the list of topics and their limits: what is planned is of one of the two, and not of both."""
    send(broker, "orders", 0, b"old")
    here = broker_of(locate(str(directory)))
    real, left = here.bulk.limits, [1]

    def limits(queues: Sequence[mq.MessageQueue]) -> tuple[Sequence[int], Sequence[int]]:
        if left.pop():
            left.append(0)
            broker.delete_topic("orders")
            broker.create_topic("orders", 2)
            send(broker, "orders", 0, b"new")
        else:
            left.append(0)
        return real(queues)

    monkeypatch.setattr(here.bulk, "limits", limits)
    assert bodies(directory) == [b"new"]


def test_a_damaged_message_in_a_batch(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, b"first", b"second body", b"third")
    log = log_files(directory)[0]
    at = log.read_bytes().index(b"second body")
    with log.open("r+b") as file:
        file.seek(at)
        file.write(b"S")
    with pytest.raises(SparkError, match=r"\[MQ_DATA_LOSS\] .*queue offset 1 of orders/0"):
        bodies(directory)
    assert bodies(directory, failOnDataLoss="false") == [b"first", b"third"]
    with log.open("r+b") as file:  # Every test leaves a sound store behind.
        file.seek(at)
        file.write(b"s")


def test_a_beginning_that_is_not_there_yet(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, b"first")
    ahead = {"startingOffsets": '{"orders": {"0": 7, "1": 0}}'}
    with pytest.raises(
        SparkError, match=r"\[MQ_DATA_LOSS\] .*from offset 7 on, but it ends at 1: .* an option names"
    ):
        bodies(directory, **ahead)
    assert bodies(directory, **ahead, failOnDataLoss="false") == []


def test_a_body_that_does_not_decompress(broker: LocalBroker, directory: Path) -> None:
    """Its sender lied; the record is what was stored."""
    for body, flag in ((b"first", 0), (b"no zlib", 1), (b"third", 0)):
        append_one(broker, "orders", 0, mq.Message("orders", body), body, flag)
    with pytest.raises(SparkError, match=r"\[MQ_DATA_LOSS\] .*queue offset 1 of orders/0 .*decompress"):
        bodies(directory)
    assert bodies(directory, failOnDataLoss="false") == [b"first", b"third"]


def test_a_damaged_message_behind_others_that_are_not_wanted(broker: LocalBroker, directory: Path) -> None:
    for number, tag in enumerate(("other", "paid", "other", "other", "paid", "paid")):
        send(broker, "orders", 0, b"body %d" % number, tags=tag)
    log = log_files(directory)[0]
    at = log.read_bytes().index(b"body 4")
    with log.open("r+b") as file:
        file.seek(at)
        file.write(b"B")
    wanted: dict[str, str] = {"tags": "paid", "startingOffsets": '{"orders": {"0": 2, "1": 0}}'}
    with pytest.raises(SparkError, match=r"\[MQ_DATA_LOSS\] .*queue offset 4 of orders/0"):
        bodies(directory, **wanted)
    assert bodies(directory, **wanted, failOnDataLoss="false") == [b"body 5"]
    with log.open("r+b") as file:
        file.seek(at)
        file.write(b"b")


def test_a_store_opened_anew_is_opened_anew_here(directory: Path) -> None:
    first = mq.open(directory)
    send_to = first.create_topic("orders", 1)
    send_to.send(b"one")
    assert bodies(directory) == [b"one"]
    first.close()
    (directory / "mq" / "control").unlink()  # As after the machine was started again.
    with mq.open(directory) as second:
        second.topic("orders").send(b"two")
        assert bodies(directory) == [b"one", b"two"]
