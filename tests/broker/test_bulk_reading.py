"""Many queues of a directory at once: what each has, what so many bytes are, and waiting for any of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from tests.support.appending import append_one
from tests.support.store.sleeping import Waiting
from tests.support.store.small_store import open_small


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory) as broker:
        yield broker


def queues_of(broker: LocalBroker, topic: str) -> list[mq.MessageQueue]:
    return list(broker.readable(topic))


def send(broker: LocalBroker, queue: mq.MessageQueue, body: bytes = b"x") -> None:
    append_one(broker, queue.topic, queue.queue_id, mq.Message(queue.topic, body), body, 0)


def test_limits_are_those_of_the_queues(broker: LocalBroker, directory: Path) -> None:
    broker.create_topic("orders", 3)
    queues = queues_of(broker, "orders")
    reader = mq.open(directory, read_only=True, create=False)
    for number in range(60):
        send(broker, queues[number % 2], bytes(400))
    assert broker.expire(retention_hours=0) > 0
    for one in (broker, reader):
        oldest, ends = one.bulk.limits(queues)
        assert list(ends) == [one.max_offset(queue) for queue in queues] == [30, 30, 0]
        assert list(oldest) == [one.min_offset(queue) for queue in queues]
        assert oldest[0] > 0
    broker.delete_topic("orders")
    with pytest.raises(mq.TopicNotFound):
        broker.bulk.limits(queues)
    broker.create_topic("orders", 3)
    send(broker, queues[2])
    for one in (broker, reader):  # The same list, of another topic.
        assert [list(part) for part in one.bulk.limits(queues)] == [[0, 0, 0], [0, 0, 1]]
    reader.close()


def test_bytes_are_those_of_whole_records(broker: LocalBroker) -> None:
    broker.create_topic("orders", 2)
    queue, empty = queues_of(broker, "orders")
    for size in (1, 300, 20, 700, 5):
        send(broker, queue, bytes(size))
    sizes = [message.store_size for message in broker.topic("orders").queues[0].read(0).messages]
    for start in range(6):
        for end in range(start, 6):
            for count in range(end - start + 1):
                room = sum(sizes[start : start + count])
                assert broker.bulk.fit(queue, start, end, room) == (start + count, room)
                if start + count < end:
                    more = room + sizes[start + count] - 1
                    assert broker.bulk.fit(queue, start, end, more) == (start + count, room)
    assert broker.bulk.fit(empty, 0, 0, 100) == (0, 0)


def test_what_the_index_does_not_know_yet(directory: Path) -> None:
    with open_small(directory, duties=False) as broker:  # These bring it up, too.
        broker.create_topic("orders", 2)
        queue, empty = queues_of(broker, "orders")
        for number in range(7):
            if number == 4:
                assert broker.query("orders", "k") == []  # Brings the index up to date.
            send(broker, queue)
        assert [broker.bulk.first_not_indexed(queue, start, 7) for start in (0, 3, 5)] == [4, 4, 5]
        assert broker.bulk.first_not_indexed(queue, 0, 2) == 2
        assert broker.bulk.first_not_indexed(empty, 0, 0) == 0


def slept(wait: Callable[[], None], act: Callable[[], object]) -> None:
    """Waits, long, until the test acts."""
    waiting = Waiting(wait)
    time.sleep(0.03)
    waiting.goes_on()  # No reader has checked meanwhile.
    act()
    waiting.end()


@pytest.mark.parametrize("count", [2, 200])
def test_a_reader_sleeps_until_any_queue_gets_its_first_message(directory: Path, count: int) -> None:
    """Also one that has no number yet; with more queues than one system call can wait for."""
    with open_small(directory, message_size_max=1000) as broker:
        broker.create_topic("orders", count)
        queues = queues_of(broker, "orders")
        send(broker, queues[0])
        with mq.open(directory, read_only=True, create=False) as reader:
            positions = {queue: 1 if queue == queues[0] else 0 for queue in queues}
            for queue in (queues[-1], queues[0], queues[-1]):
                slept(lambda: reader.bulk.wait(dict(positions), 60), partial(send, broker, queue))
                positions[queue] += 1
            slept(lambda: reader.bulk.wait(positions, 60), lambda: broker.create_topic("more", 1))
            version = reader.route_version()
            broker.create_topic("late", 1)
            reader.bulk.wait(positions, 60, version)  # Not slept through, though it was before.
            broker.delete_topic("orders")
            reader.bulk.wait(positions, 60, version)


def test_files_that_retention_removed_are_let_go(broker: LocalBroker, directory: Path) -> None:
    broker.create_topic("orders", 1)
    (queue,) = queues_of(broker, "orders")
    for _ in range(60):
        send(broker, queue, bytes(400))
    with mq.open(directory, read_only=True, create=False) as reader:
        assert len(reader.topic("orders").queues[0].read(0, count_max=60).messages) == 60
        assert broker.expire(retention_hours=0) > 0
        log = str(directory / "commitlog")
        held = [line for line in Path("/proc/self/maps").read_text().splitlines() if log in line]
        assert any("(deleted)" in line for line in held)
        assert reader.bulk.release() > 0
        held = [line for line in Path("/proc/self/maps").read_text().splitlines() if log in line]
        assert not any("(deleted)" in line for line in held)
