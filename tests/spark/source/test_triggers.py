"""What a trigger takes: limits by messages and by bytes, what is available now, what comes while it waits."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from mq.broker.local import LocalBroker
from tests.spark.reading import Query, send, source, struct
from tests.support.store.sleeping import Waiting

EARLIEST = {"topic": "orders", "startingOffsets": "earliest"}


def sizes_of(broker: LocalBroker) -> dict[tuple[int, int], int]:
    """The size of each record by queue and offset."""
    return {
        (queue.queue_id, message.queue_offset): message.store_size
        for queue in broker.topic("orders").queues
        for message in queue.read(0, count_max=1000).messages
    }


def test_a_limit_by_bytes_is_exact(broker: LocalBroker, directory: Path) -> None:
    for number in range(30):
        send(broker, "orders", number % 2, bytes(1 + number * 37 % 500))
    sizes = sizes_of(broker)
    limit = 1500
    query = Query(directory, **EARLIEST, maxBytesPerTrigger=str(limit))
    assert isinstance(query.limit, ReadMaxBytes)
    taken: set[tuple[int, int]] = set()
    for batch in query.batches():
        rows = {(row["queueId"], row["queueOffset"]) for row in batch}
        assert not rows & taken
        taken |= rows
        used = sum(sizes[row] for row in rows)
        following = [min((row for row in sizes.keys() - taken if row[0] == n), default=None) for n in (0, 1)]
        assert used <= limit
        assert all(row is None or used + sizes[row] > limit for row in following)
    assert taken == sizes.keys()


def test_a_trigger_keeps_both_limits(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, *[bytes(300)] * 5, *[b"x"] * 20)
    sizes = sizes_of(broker)
    query = Query(directory, **EARLIEST, maxBytesPerTrigger="1000", maxOffsetsPerTrigger="6")
    assert isinstance(query.limit, ReadMaxRows)
    counts = []
    for batch in query.batches():
        counts.append(len(batch))
        assert sum(sizes[row["queueId"], row["queueOffset"]] for row in batch) <= 1000
    assert max(counts) == 6
    assert min(counts[:-1]) < 6
    assert sum(counts) == 25


def test_a_message_larger_than_the_limit_comes_alone(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, b"small", bytes(900), b"small")
    send(broker, "orders", 1, *[b"other"] * 4)
    query = Query(directory, **EARLIEST, maxBytesPerTrigger="300")
    batches = [[len(row["body"]) for row in batch] for batch in query.batches()]
    assert [900] in batches
    assert sorted(size for batch in batches for size in batch) == [5] * 6 + [900]


def test_without_a_limit_and_once_everything_is_taken(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, *[b"x"] * 30)
    for limits in (
        {"maxBytesPerTrigger": "300"},
        {"maxBytesPerTrigger": "300", "minOffsetsPerTrigger": "99"},
    ):
        once = Query(directory, **EARLIEST, **limits)
        once.limit = ReadAllAvailable()
        assert [len(batch) for batch in once.batches()] == [30]
    assert isinstance(Query(directory, **EARLIEST).limit, ReadAllAvailable)


def test_what_is_available_now_while_more_comes_with_each_batch(broker: LocalBroker, directory: Path) -> None:
    """Messages, queues and topics that come meanwhile are for the next time, and the end is reached."""
    send(broker, "orders", 0, *[b"first"] * 5)
    query = Query(directory, topicPattern="orders.*", startingOffsets="earliest", maxOffsetsPerTrigger="2")
    query.reader.prepareForTriggerAvailableNow()
    counts = []
    for number, batch in enumerate(query.batches()):
        counts.append(len(batch))
        assert all(row["body"] == b"first" for row in batch)
        send(broker, "orders", 0, b"late")
        broker.create_topic("orders", 3 + number)
        send(broker, "orders", 2 + number, b"late")
        broker.create_topic(f"orders-{number}", 1)
        send(broker, f"orders-{number}", 0, b"late")
    assert [count for count in counts if count] == [2, 2, 1]
    assert len(counts) < 10
    query.begin()
    query.reader.prepareForTriggerAvailableNow()
    assert query.all() == [b"late"] * 3 * len(counts)


class Looking:
    """A look of a query for what is new, which waits."""

    def __init__(self, query: Query) -> None:
        self.found = False
        self._query = query
        self._waiting = Waiting(self._look)

    def _look(self) -> None:
        self.found = self._query.plan()

    def sleeps(self) -> None:
        self._waiting.goes_on()

    def bodies(self) -> list[bytes]:
        self._waiting.end()
        assert self.found
        found = [row["body"] for row in self._query.batch()]
        self._query.finish()
        return found


@pytest.mark.parametrize("queue_count", [1, 200])
def test_a_look_sleeps_and_is_woken(broker: LocalBroker, directory: Path, queue_count: int) -> None:
    """By a message of any queue, however many there are, and also its very first; by a topic that appears."""
    broker.create_topic("orders", queue_count)
    query = Query(directory, topicPattern="orders.*", pollTimeoutMs="600000")
    for queue_id in {0, queue_count // 2, queue_count - 1}:
        for body in (b"its first", b"another"):
            look = Looking(query)
            send(broker, "orders", queue_id, body)
            assert look.bodies() == [body]
    look = Looking(query)
    broker.create_topic("orders-new", 1)
    look.sleeps()  # It has nothing yet.
    send(broker, "orders-new", 0, b"of a new topic")
    assert look.bodies() == [b"of a new topic"]


def test_a_look_without_any_topic_sleeps_too(broker: LocalBroker, directory: Path) -> None:
    query = Query(directory, topicPattern="later.*", pollTimeoutMs="600000")
    look = Looking(query)
    broker.create_topic("later", 1)
    look.sleeps()
    send(broker, "later", 0, b"x")
    assert look.bodies() == [b"x"]


def test_a_look_that_waits_for_more_sleeps_until_there_is_enough(
    broker: LocalBroker, directory: Path
) -> None:
    query = Query(
        directory, **EARLIEST, pollTimeoutMs="600000", minOffsetsPerTrigger="10", maxTriggerDelay="1h"
    )
    send(broker, "orders", 0, b"the first batch does not wait")
    assert query.plan()
    query.finish()
    look = Looking(query)
    for number in range(9):
        send(broker, "orders", number % 2, b"%d" % number)
        look.sleeps()
    send(broker, "orders", 0, b"9")
    assert sorted(look.bodies()) == [b"%d" % number for number in range(10)]


def test_a_look_that_waits_for_more_gives_up_when_the_delay_is_over(
    broker: LocalBroker, directory: Path
) -> None:
    query = Query(
        directory, **EARLIEST, pollTimeoutMs="600000", minOffsetsPerTrigger="10", maxTriggerDelay="50ms"
    )
    send(broker, "orders", 0, b"first")
    assert query.plan()
    query.finish()
    send(broker, "orders", 0, b"second")
    assert query.plan()
    assert [row["body"] for row in query.batch()] == [b"second"]


def test_a_waiting_look_uses_no_processor(broker: LocalBroker, directory: Path) -> None:
    """It is asleep: between its begin and its end there is next to nothing in the process's time."""
    others = threading.active_count()  # of other tests' brokers, and of Spark's session
    broker.create_topic("orders", 200)
    reader: Any = source(directory, topic="orders", pollTimeoutMs="1000").streamReader(schema=struct("body"))
    start = reader.initialOffset()
    reader.latestOffset(start, reader.getDefaultReadLimit())  # What is done once is done.
    gc.disable()  # A collection of all that the process has takes as long.
    try:
        before = time.thread_time()
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
        used = time.thread_time() - before
    finally:
        gc.enable()
    assert used < 0.3  # One that looks again and again would need a second.
    assert threading.active_count() < others + 20
