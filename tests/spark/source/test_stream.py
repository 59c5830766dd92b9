"""What a stream reads, whatever becomes of the store, the query and the checkpoint."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import mq
from mq.broker.local import LocalBroker
from mq.spark import lag
from mq.spark.errors import SparkError
from mq.spark.source.offset_planner import OffsetPlanner
from tests.spark.reading import Query, forget_brokers, rows, send, source, struct
from tests.support import assigned
from tests.support.store.small_store import open_small

EARLIEST = {"topic": "orders", "startingOffsets": "earliest"}


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def test_a_query_begins_where_it_is_told_to_and_goes_on(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, *numbered(0, 3))
    early, late = Query(directory, **EARLIEST), Query(directory, topic="orders")
    given = Query(directory, topic="orders", startingOffsets='{"orders": {"0": 1, "1": -1}}')
    assert (early.all(), late.all(), given.all()) == (numbered(0, 3), [], numbered(1, 3))
    send(broker, "orders", 1, b"x")
    for query in (early, late, given):
        query.begin()
        assert query.all() == [b"x"]
        assert query.all() == []


def test_a_batch_that_was_not_finished_is_the_same_again(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, *numbered(0, 5))
    query = Query(directory, **EARLIEST)
    assert query.plan()
    first = query.batch()
    send(broker, "orders", 0, *numbered(5, 9))
    send(broker, "orders", 1, b"x")
    query.begin()
    assert query.batch() == first
    query.finish()
    assert sorted(query.all()) == [*numbered(5, 9), b"x"]


def test_the_first_batch_begins_where_it_was_planned_to(broker: LocalBroker, directory: Path) -> None:
    """Spark asks for the beginning again when it reads that batch, and once more after a crash: by then
    "latest" is behind what is to be read."""
    send(broker, "orders", 0, b"before")
    query = Query(directory, topic="orders", startingOffsets="latest")
    assert not query.plan()
    send(broker, "orders", 0, b"one")
    assert query.plan()
    send(broker, "orders", 0, b"two")
    for _ in range(2):
        assert [row["body"] for row in query.batch()] == [b"one"]
        query.begin()
    query.finish()
    assert query.all() == [b"two"]


def test_a_limit_is_shared_by_backlog(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, *numbered(0, 30))
    send(broker, "orders", 1, *numbered(0, 10))
    query = Query(directory, **EARLIEST, maxOffsetsPerTrigger="12")
    sizes = [[sum(row["queueId"] == n for row in batch) for n in (0, 1)] for batch in query.batches()]
    assert sizes == [[9, 3], [9, 3], [9, 3], [3, 1]]


def test_topics_and_queues_that_appear_are_read_from_their_beginning(
    broker: LocalBroker, directory: Path
) -> None:
    query = Query(directory, topicPattern="orders.*")
    assert query.all() == []
    broker.create_topic("orders-late", 1)
    send(broker, "orders-late", 0, b"of a new topic")
    broker.create_topic("orders", 3)
    send(broker, "orders", 2, b"of a new queue")
    send(broker, "orders", 0, b"of an old one")
    assert query.all() == [b"of an old one", b"of a new queue", b"of a new topic"]


def test_what_is_available_now_and_no_more(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, *numbered(0, 5))
    query = Query(directory, **EARLIEST, maxOffsetsPerTrigger="2", minOffsetsPerTrigger="2")
    query.reader.prepareForTriggerAvailableNow()
    send(broker, "orders", 0, *numbered(5, 8))
    broker.create_topic("orders", 3)
    send(broker, "orders", 2, b"late")
    assert [len(batch) for batch in query.batches() if batch] == [2, 2, 1]
    query.begin()
    query.reader.prepareForTriggerAvailableNow()
    assert sorted(query.all()) == [*numbered(5, 8), b"late"]


def test_few_messages_wait_for_others_but_not_for_ever(broker: LocalBroker, directory: Path) -> None:
    now = 1000.0
    query = Query(directory, **EARLIEST, minOffsetsPerTrigger="3", maxTriggerDelay="1h")
    query.reader.clock = lambda: now
    send(broker, "orders", 0, b"first")
    assert query.all() == [b"first"]  # There was no wait before.
    send(broker, "orders", 0, *numbered(0, 2))
    assert query.all() == []
    send(broker, "orders", 0, b"2")
    assert query.all() == numbered(0, 3)
    send(broker, "orders", 0, b"late")
    now += 3599
    assert query.all() == []
    now += 2
    assert query.all() == [b"late"]
    send(broker, "orders", 1, b"later")
    assert query.all() == []  # It is the delay since the last batch.


def test_trigger_once_takes_all_there_is(broker: LocalBroker, directory: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    send(broker, "orders", 0, *numbered(0, 9))
    query = Query(directory, **EARLIEST, maxOffsetsPerTrigger="2", minOffsetsPerTrigger="1")
    query.limit = ReadAllAvailable()
    assert [len(batch) for batch in query.batches()] == [9]


def test_a_look_sleeps_until_there_is_a_message(broker: LocalBroker, directory: Path) -> None:
    for queue_id in (0, 1):  # The first message of a queue, and a later one.
        query = Query(directory, topic="orders", pollTimeoutMs="60000")
        sender = threading.Timer(0.05, send, (broker, "orders", queue_id, b"x"))
        sender.start()
        assert query.plan()
        sender.join()
        assert [row["body"] for row in query.batch()] == [b"x"]
        send(broker, "orders", queue_id, b"y")


def test_a_group_shows_what_was_finished(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, *numbered(0, 5))
    query = Query(directory, **EARLIEST, group="spark", maxOffsetsPerTrigger="3")
    assert query.plan()
    query.finish()
    assert broker.group("spark").offsets("orders").get(mq.MessageQueue("orders", "mq", 0), 0) == 0
    assert query.plan()
    assert broker.group("spark").lag("orders") == 2
    query.finish()
    assert not query.plan()
    assert broker.group("spark").lag("orders") == 0
    send(broker, "orders", 1, b"x")
    again = Query(directory, topic="orders", startingOffsets="group", group="spark")
    assert again.all() == [b"x"]


def test_a_group_to_begin_at_and_to_leave_alone(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, *numbered(0, 5))
    queue = mq.MessageQueue("orders", "mq", 0)
    assigned.commit(broker, "g", queue, 3)
    options = {"topic": "orders", "startingOffsets": "group", "group": "g"}
    assert Query(directory, **options, commitToGroup="false").all() == numbered(3, 5)
    assert broker.group("g").offsets("orders") == {queue: 3}
    assert Query(directory, **options).all() == numbered(3, 5)
    assert broker.group("g").offsets("orders")[queue] == 5


def test_what_the_store_has_against_a_step_has_a_code(
    broker: LocalBroker, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(directory, **EARLIEST)
    assert query.start is not None
    start = json.loads(query.start)

    def snapshot(*_: object, **__: object) -> None:
        raise mq.StoreCorrupted("its table of queues is damaged")

    monkeypatch.setattr(OffsetPlanner, "snapshot", snapshot)
    for step in (
        query.reader.initialOffset,
        query.reader.prepareForTriggerAvailableNow,
        lambda: query.reader.latestOffset(start, query.limit),
        query.reader.reportLatestOffset,
        lambda: query.reader.partitions(start, start),
    ):
        with pytest.raises(SparkError, match=r"\[MQ_STORE\] .*its table of queues is damaged"):
            step()


def test_the_lag_is_in_the_progress(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, *numbered(0, 5))
    query = Query(directory, **EARLIEST, maxOffsetsPerTrigger="3")
    query.plan()
    assert query.planned is not None
    latest = query.reader.reportLatestOffset()
    ours = {"latestOffset": latest, "endOffset": json.loads(query.planned)}
    others = {"latestOffset": {"topic": {"0": 9}}, "endOffset": None}
    queues = [mq.MessageQueue("orders", "mq", number) for number in (0, 1)]
    assert lag({"sources": [others, ours]}) == {queues[0]: 2, queues[1]: 0}
    # Of a source that counts, of one that says it in words, and before the first batch.
    for value in (7, "7", "null", "None", "as far as 7", None):
        other = {"latestOffset": value, "endOffset": value}
        assert lag({"sources": [other, ours]}) == {queues[0]: 2, queues[1]: 0}
        assert lag({"sources": [{"latestOffset": json.dumps(latest), "endOffset": value}]}) == {}
    assert lag(None) == {}


# What is lost.


def lost(query: Query) -> str:
    with pytest.raises(SparkError) as caught:
        query.all()
    assert str(caught.value).startswith("[MQ_DATA_LOSS] ")
    return str(caught.value)


def two_queries(directory: Path, **options: str) -> tuple[Query, Query]:
    """One that fails where something is lost, and one that does not."""
    queries = [Query(directory, **EARLIEST, **options, failOnDataLoss=fails) for fails in ("true", "false")]
    return queries[0], queries[1]


def test_retention_overtakes_a_slow_query(broker: LocalBroker, directory: Path) -> None:
    strict, lenient = two_queries(directory)
    send(broker, "orders", 0, *[bytes([number]) * 500 for number in range(40)])
    assert broker.expire(retention_hours=0) > 0
    oldest = broker.topic("orders").queues[0].min_offset
    assert f"from offset 0 on, but the oldest message kept is at {oldest}" in lost(strict)
    assert lenient.all() == [bytes([number]) * 500 for number in range(oldest, 40)]


def test_retention_overtakes_a_batch_that_is_planned(broker: LocalBroker, directory: Path) -> None:
    strict, lenient = two_queries(directory)
    send(broker, "orders", 0, *[bytes([number]) * 500 for number in range(40)])
    assert strict.plan()
    assert lenient.plan()
    assert broker.expire(retention_hours=0) > 0
    oldest = broker.topic("orders").queues[0].min_offset
    with pytest.raises(SparkError, match=r"\[MQ_DATA_LOSS\]"):
        strict.batch()
    assert [row["queueOffset"] for row in lenient.batch()] == list(range(oldest, 40))


def test_a_stream_whose_topic_is_deleted(broker: LocalBroker, directory: Path) -> None:
    strict, lenient = two_queries(directory)
    send(broker, "orders", 0, *numbered(0, 3))
    assert (strict.all(), lenient.all()) == (numbered(0, 3), numbered(0, 3))
    broker.delete_topic("orders")
    assert "it is not there any more" in lost(strict)
    assert lenient.all() == []
    broker.create_topic("orders", 1)
    send(broker, "orders", 0, b"new")
    assert lenient.all() == [b"new"]


@pytest.mark.parametrize("count", [1, 3, 7])
def test_a_topic_deleted_and_made_again(broker: LocalBroker, directory: Path, count: int) -> None:
    strict, lenient = two_queries(directory)
    send(broker, "orders", 0, *numbered(0, 3))
    assert (strict.all(), lenient.all()) == (numbered(0, 3), numbered(0, 3))
    broker.delete_topic("orders")
    broker.create_topic("orders", 2)
    send(broker, "orders", 0, *numbered(10, 10 + count))
    assert "the topic was deleted and made again" in lost(strict)
    assert lenient.all() == numbered(10, 10 + count)
    lenient.begin()
    assert lenient.all() == []


@pytest.mark.parametrize("count", [1, 3, 7])
def test_a_topic_made_again_between_plan_and_task(broker: LocalBroker, directory: Path, count: int) -> None:
    strict, lenient = two_queries(directory)
    send(broker, "orders", 0, *numbered(0, 3))
    planned = [(query.reader, query.tasks()) for query in (strict, lenient)]
    broker.delete_topic("orders")
    broker.create_topic("orders", 2)
    send(broker, "orders", 0, *numbered(10, 10 + count))
    forget_brokers()
    with pytest.raises(SparkError, match=r"\[MQ_DATA_LOSS\] .*the topic was deleted and made again"):
        rows(*planned[0])
    assert rows(*planned[1]) == []
    lenient.finish()
    assert lenient.all() == numbered(10, 10 + count)  # By the next batch, from its beginning.


@pytest.mark.parametrize("more", [False, True])
def test_a_checkpoint_ahead_of_the_store(directory: Path, tmp_path: Path, more: bool) -> None:
    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        send(broker, "orders", 0, *numbered(0, 5))
    shutil.copytree(directory, tmp_path / "backup")
    with open_small(directory) as broker:
        strict, lenient = two_queries(directory)
        send(broker, "orders", 0, *numbered(5, 9))
        assert (strict.all(), lenient.all()) == (numbered(0, 9), numbered(0, 9))
        forget_brokers()
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "backup", directory)
    with open_small(directory) as broker:
        if more:  # The store went on without the query: other messages stand where it was.
            send(broker, "orders", 0, *numbered(20, 30))
        strict.begin()
        lenient.begin()
        assert ("the topic was deleted" if more else "older than the checkpoint") in lost(strict)
        first = lenient.all()
        # None is left out that is new; what was read before may come again only where offsets say nothing.
        assert first == (numbered(0, 5) + numbered(20, 30) if more else [])
        send(broker, "orders", 0, b"next")
        assert lenient.all() == [b"next"]
        forget_brokers()


def test_a_topic_that_is_not_there_when_the_query_begins(broker: LocalBroker, directory: Path) -> None:
    with pytest.raises(SparkError, match=r"\[MQ_TOPIC\] there is no topic 'ordres'"):
        Query(directory, topic="ordres")


def test_the_checkpoint_of_a_later_release(broker: LocalBroker, directory: Path) -> None:
    query = Query(directory, **EARLIEST)
    assert query.start is not None
    query.start = query.start.replace('"#v": 1', '"#v": 2')
    with pytest.raises(SparkError, match="of version 2; this release reads"):
        query.plan()


def test_a_stream_that_is_refused_says_so_when_it_is_asked(broker: LocalBroker, directory: Path) -> None:
    reader = source(directory, topic="orders", endingOffsets="latest").streamReader(schema=struct("body"))
    for ask in (reader.getDefaultReadLimit, reader.initialOffset):
        with pytest.raises(SparkError, match=r"it is for spark\.read"):
            ask()


class Pipeline(RuleBasedStateMachine):
    """Messages, triggers of any size, restarts and replays: every message is read once, queues in order."""

    @initialize(
        rows_max=st.sampled_from(["1", "3", "10", None]),
        how=st.fixed_dictionaries(
            {
                "minPartitions": st.sampled_from(["1", "2", "5"]),
                "targetRowsPerTask": st.sampled_from(["0", "1", "4", "100"]),
                "maxRecordsPerPartition": st.sampled_from(["1", "3", "100"]),
                "batchRows": st.sampled_from(["1", "2", "100"]),
            }
        ),
    )
    def begin(self, rows_max: str | None, how: dict[str, str]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="mq-spark-"))
        self.broker = open_small(self.directory)
        self.broker.create_topic("orders-a", 2)
        options = {"topicPattern": "orders.*", "startingOffsets": "earliest", **how}
        if rows_max:
            options["maxOffsetsPerTrigger"] = rows_max
        self.query = Query(self.directory, **options)
        self.sent: dict[tuple[str, int], list[bytes]] = {}
        self.read: dict[tuple[str, int], list[bytes]] = {}
        self.planned: list[dict[str, Any]] | None = None

    @rule(
        topic=st.sampled_from(["orders-a", "orders-b"]), queue_id=st.integers(0, 1), count=st.integers(1, 12)
    )
    def send(self, topic: str, queue_id: int, count: int) -> None:
        if topic not in self.broker.topics():
            self.broker.create_topic(topic, 2)
        sent = self.sent.setdefault((topic, queue_id), [])
        bodies = numbered(len(sent), len(sent) + count)
        send(self.broker, topic, queue_id, *bodies)
        sent += bodies

    @precondition(lambda self: self.planned is None)
    @rule()
    def plan(self) -> None:
        if self.query.plan():
            self.planned = self.query.batch()

    @precondition(lambda self: self.planned is not None)
    @rule()
    def replay(self) -> None:
        self.query.begin()
        assert self.query.batch() == self.planned

    @precondition(lambda self: self.planned is not None)
    @rule()
    def finish(self) -> None:
        assert self.planned is not None
        for row in self.planned:
            self.read.setdefault((row["topic"], row["queueId"]), []).append(row["body"])
        self.query.finish()
        self.planned = None

    def teardown(self) -> None:
        if not hasattr(self, "query"):
            return
        if self.planned is not None:
            self.finish()
        for batch in self.query.batches():
            for row in batch:
                self.read.setdefault((row["topic"], row["queueId"]), []).append(row["body"])
        forget_brokers()
        self.broker.close()
        shutil.rmtree(self.directory)
        assert self.read == self.sent


TestPipeline = Pipeline.TestCase
TestPipeline.settings = settings(max_examples=25, stateful_step_count=20)
