"""A checkpoint that does not fit: the topic was made again; the store, the options, its bytes are others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.spark.errors import SparkError
from tests.spark.reading import Query, forget_brokers, send
from tests.support import assigned
from tests.support.store.small_store import open_small

EARLIEST = {"topic": "orders", "startingOffsets": "earliest"}


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def strict_and_lenient(directory: Path, **options: str) -> tuple[Query, Query]:
    given = {name: value for name, value in {**EARLIEST, **options}.items() if value}
    queries = [Query(directory, **given, failOnDataLoss=fails) for fails in ("true", "false")]
    return queries[0], queries[1]


def refused(query: Query, said: str, code: str = "MQ_DATA_LOSS") -> None:
    with pytest.raises(SparkError) as caught:
        query.all()
    assert str(caught.value).startswith(f"[{code}] ")
    assert said in str(caught.value)


# A topic made again.


@pytest.mark.parametrize("counts", [(0, 0), (3, 0), (3, 2), (5, 0), (0, 9), (30, 30)])
def test_a_topic_made_again_is_known_whatever_it_has(
    broker: LocalBroker, directory: Path, counts: tuple[int, int]
) -> None:
    """Also while it is empty, and if the queue that was read last has nothing any more."""
    strict, lenient = strict_and_lenient(directory)
    send(broker, "orders", 0, *numbered(0, 3))
    send(broker, "orders", 1, *numbered(0, 2))
    assert len(strict.all()) == len(lenient.all()) == 5
    broker.delete_topic("orders")
    broker.create_topic("orders", 2)
    for queue_id, count in enumerate(counts):
        send(broker, "orders", queue_id, *numbered(100, 100 + count))
    for _ in range(2):
        refused(strict, "the topic was deleted and made again")
        strict.begin()
    assert len(lenient.all()) == sum(counts)
    lenient.begin()
    send(broker, "orders", 1, b"next")
    assert lenient.all() == [b"next"]


def test_a_topic_made_again_while_it_was_not_looked_at_is_not_mistaken_for_the_old_one_later(
    broker: LocalBroker, directory: Path
) -> None:
    _, lenient = strict_and_lenient(directory)
    for number in range(4):
        send(broker, "orders", 0, *numbered(0, number))
        assert lenient.all() == numbered(0, number)
        broker.delete_topic("orders")
        broker.create_topic("orders", 1 + number % 2)


@pytest.mark.parametrize("count", [0, 2, 9])
def test_a_topic_made_again_since_a_batch_was_planned(
    broker: LocalBroker, directory: Path, count: int
) -> None:
    strict, lenient = strict_and_lenient(directory)
    send(broker, "orders", 0, *numbered(0, 5))
    for query in (strict, lenient):
        assert query.plan()
    broker.delete_topic("orders")
    broker.create_topic("orders", 2)
    send(broker, "orders", 0, *numbered(100, 100 + count))
    for query in (strict, lenient):
        query.begin()  # Spark plans the same batch again.
    with pytest.raises(SparkError, match=r"\[MQ_DATA_LOSS\]"):
        strict.batch()
    assert lenient.batch() == []
    lenient.finish()
    assert lenient.all() == numbered(100, 100 + count)


@pytest.mark.parametrize("what", ["expired", "made again", "deleted"])
def test_a_topic_that_was_new_when_a_batch_was_planned(
    broker: LocalBroker, directory: Path, what: str
) -> None:
    """Where it begins is noted: what is lost since then is not passed over in silence."""
    strict, lenient = strict_and_lenient(directory, topic="", topicPattern="orders.*")
    for query in (strict, lenient):
        assert not query.plan()
    broker.create_topic("orders-new", 1)
    send(broker, "orders-new", 0, *[bytes([number]) * 500 for number in range(30)])
    for query in (strict, lenient):
        assert query.plan()
    if what == "expired":
        assert broker.expire(retention_hours=0) > 0
    else:
        broker.delete_topic("orders-new")
    if what == "made again":
        broker.create_topic("orders-new", 1)
        send(broker, "orders-new", 0, b"other")
    for query in (strict, lenient):
        query.begin()
    with pytest.raises(SparkError, match=r"\[MQ_DATA_LOSS\] queue 0 of topic orders-new was to be read"):
        strict.batch()
    oldest = broker.topic("orders-new").queues[0].min_offset if what == "expired" else 30
    assert [row["queueOffset"] for row in lenient.batch()] == list(range(oldest, 30))
    lenient.finish()
    assert lenient.all() == ([b"other"] if what == "made again" else [])


def test_a_topic_deleted_between_plan_and_task(broker: LocalBroker, directory: Path) -> None:
    strict, lenient = strict_and_lenient(directory)
    send(broker, "orders", 0, *numbered(0, 5))
    planned = [query.tasks() for query in (strict, lenient)]
    broker.delete_topic("orders")
    with pytest.raises(SparkError, match=r"\[MQ_DATA_LOSS\] queue 0 of topic orders .* not there any more"):
        list(strict.reader.read(planned[0][0]))
    assert list(lenient.reader.read(planned[1][0])) == []


def test_a_checkpoint_with_queues_that_were_removed(broker: LocalBroker, directory: Path) -> None:
    strict, lenient = strict_and_lenient(directory)
    for queue_id in (0, 1):
        send(broker, "orders", queue_id, b"x")
    assert len(strict.all()) == len(lenient.all()) == 2
    for queue in broker.topic("orders").queues:
        assigned.commit(
            broker, "g", queue.message_queue, queue.max_offset
        )  # A queue goes once it is consumed.
    broker.create_topic("orders", 1)
    refused(strict, "queue 1 of topic orders was to be read from offset 1 on, but it is not there any more")
    send(broker, "orders", 0, b"y")
    assert lenient.all() == [b"y"]


# Another store.


@pytest.mark.parametrize("kept", [0, 2])
def test_a_backup_from_before_the_topic_or_with_less_of_it(
    directory: Path, tmp_path: Path, kept: int
) -> None:
    with open_small(directory) as broker:
        if kept:
            broker.create_topic("orders", 1)
            send(broker, "orders", 0, *numbered(0, kept))
    shutil.copytree(directory, tmp_path / "backup")
    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        strict, lenient = strict_and_lenient(directory)
        send(broker, "orders", 0, *numbered(kept, 5))
        assert strict.all() == lenient.all() == numbered(0, 5)
    forget_brokers()
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "backup", directory)
    with open_small(directory) as broker:
        refused(strict, "older than the checkpoint" if kept else "not there any more")
        assert lenient.all() == []
        broker.create_topic("orders", 1)
        send(broker, "orders", 0, b"next")
        assert lenient.all() == [b"next"]
        forget_brokers()


def test_another_store_of_the_same_names(broker: LocalBroker, directory: Path, tmp_path: Path) -> None:
    strict, lenient = strict_and_lenient(directory)
    send(broker, "orders", 0, *numbered(0, 3))
    assert strict.all() == lenient.all() == numbered(0, 3)
    with open_small(tmp_path / "other") as other:
        other.create_topic("orders", 2)
        send(other, "orders", 0, b"longer than before", *numbered(11, 18))
        for query in (strict, lenient):
            query.directory = tmp_path / "other"
            query.begin()
        refused(strict, "the topic was deleted and made again")
        assert len(lenient.all()) == 8
        forget_brokers()


# Other options.


@pytest.mark.parametrize(
    "options", [{"topic": "payments"}, {"assign": '{"orders": [0]}', "topic": ""}, {"topicPattern": "x.*"}]
)
def test_options_that_leave_out_what_was_read(
    broker: LocalBroker, directory: Path, options: dict[str, str]
) -> None:
    """As when two sources of a query changed places."""
    broker.create_topic("payments", 2)
    for topic in ("orders", "payments"):
        for queue_id in (0, 1):
            send(broker, topic, queue_id, b"x")
    strict, lenient = strict_and_lenient(directory)
    assert len(strict.all()) == len(lenient.all()) == 2
    for query in (strict, lenient):
        query.options = {**query.options, **options}
        if len(options) == 2 or "topicPattern" in options:
            del query.options["topic"]
        query.begin()
    refused(strict, "or the options leave it out")
    assert len(lenient.all()) == (2 if options.get("topic") else 0)


def test_more_topics_than_before(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, b"x")
    query = Query(directory, **EARLIEST)
    assert query.all() == [b"x"]
    broker.create_topic("payments", 1)
    send(broker, "payments", 0, b"y")
    query.options["topic"] = "orders,payments"
    query.begin()
    assert query.all() == [b"y"]


# Bytes that changed.


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        ({}, "of version None"),
        ([], "of version None"),
        (None, "of version None"),
        ("x", "of version None"),
        ({"#v": 2, "orders": {"0": 1}}, "of version 2"),
        ({"#v": True, "orders": {"0": 1}}, "of version True"),
        ({"#v": 1.0, "orders": {"0": 1}}, "of version 1.0"),
        ({"#v": "1", "orders": {"0": 1}}, "of version '1'"),
        ({"orders": {"0": 1}}, "of version None"),
        ({"#v": 1, "orders": {"0": -1}}, "which is damaged"),
        ({"#v": 1, "orders": {"0": 1.5}}, "which is damaged"),
        ({"#v": 1, "orders": {"0": "1"}}, "which is damaged"),
        ({"#v": 1, "orders": {"0": True}}, "which is damaged"),
        ({"#v": 1, "orders": {"0": None}}, "which is damaged"),
        ({"#v": 1, "orders": {"0": 1 << 60}}, "which is damaged"),
        ({"#v": 1, "orders": {"x": 1}}, "which is damaged"),
        ({"#v": 1, "orders": {"-1": 1}}, "which is damaged"),
        ({"#v": 1, "orders": [1]}, "which is damaged"),
        ({"#v": 1, "orders": 1}, "which is damaged"),
        ({"#v": 1, "no.topic": {"0": 1}}, "which is damaged"),
        ({"#v": 1, "orders": {"0": 1}, "#last": {"orders": [0]}}, "which is damaged"),
        ({"#v": 1, "orders": {"0": 1}, "#last": {"orders": [0, 0, 0, "x"]}}, "which is damaged"),
        ({"#v": 1, "orders": {"0": 1}, "#last": {"orders": [0, 0, 1 << 70, 0]}}, "which is damaged"),
        ({"#v": 1, "orders": {"0": 1}, "#last": 7}, "which is damaged"),
        ({"#v": 1, "orders": {"0": 1}, "#begin": 7}, "which is damaged"),
        ({"#v": 1, "orders": {"0": 1}, "#begin": {"orders": {"0": -1}}}, "which is damaged"),
    ],
)
def test_an_offset_that_we_did_not_write(
    broker: LocalBroker, directory: Path, damaged: Any, said: str
) -> None:
    """The same whatever failOnDataLoss says: what was read is unknown."""
    send(broker, "orders", 0, b"x")
    query = Query(directory, **EARLIEST, failOnDataLoss="false")
    assert query.start is not None
    good = json.loads(query.start)
    reader, limit = query.reader, query.limit
    calls: list[Callable[[], Any]] = [
        lambda: reader.latestOffset(damaged, limit),
        lambda: reader.partitions(damaged, good),
        lambda: reader.partitions(good, damaged),
    ]
    for call in calls:
        with pytest.raises(SparkError) as caught:
            call()
        assert str(caught.value).startswith("[MQ_OPTION] the checkpoint has the offset ")
        assert said in str(caught.value)
        assert "new checkpointLocation" in str(caught.value)


def test_an_offset_that_a_later_release_wrote_more_into(broker: LocalBroker, directory: Path) -> None:
    """Under names that no topic has; as long as the version is ours it is ours to read."""
    send(broker, "orders", 0, b"x", b"y")
    query = Query(directory, **EARLIEST)
    query.start = json.dumps({"#v": 1, "#more": [1], "orders": {"1": 0, "0": 1}})
    query.has_finished = True
    assert query.all() == [b"y"]


def test_an_offset_out_of_a_checkpoint_is_an_option(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, *numbered(0, 5))
    query = Query(directory, **EARLIEST, maxOffsetsPerTrigger="3")
    assert query.plan()
    assert query.planned is not None
    again = Query(directory, topic="orders", startingOffsets=query.planned)
    assert again.all() == numbered(3, 5)
    assert mq.MessageQueue("orders", "mq", 0) in broker.readable("orders")
