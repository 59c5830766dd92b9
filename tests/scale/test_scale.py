"""Size costs nothing where it need not: memory, reading, opening, topics, processes.

Ten million messages, a thousand topics, 64 processes: they are asked for by `-m scale`, and a smaller edition
of each runs with the other tests. Figures are compared with others of the same run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.check import problems
from tests.support.appending import append_one
from tests.support.insides import members_of, was_recovered
from tests.support.store.peer import Peer

BODY = b"x" * 100
# RocketMQ's own file sizes would make the small edition reserve gigabytes.
SIZES: dict[str, Any] = {
    "commitlog_file_size": 64 << 20,
    "queue_file_units": 300_000,
    "index_slot_count": 1 << 16,
    "index_unit_count": 1 << 18,
}
REOPEN_MS = 100  # the promise, whatever the size
DEATHS = 5
RSS_OF_PAGES = 24 << 20  # what one process may have more of its own after millions of messages

editions = pytest.mark.parametrize(
    "count",
    [
        pytest.param(200_000, id="small"),
        pytest.param(10_000_000, id="full", marks=[pytest.mark.scale, pytest.mark.timeout(1800)]),
    ],
)


def private_bytes(pid: int) -> int:
    """Memory that is the process's own; pages of mapped files are the kernel's to take back."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon")


FILL = """
messages = [mq.Message("A", {body!r}) for _ in range(1000)]
def fill_up(count):
    for _ in range(count // 1000):
        broker.append_batch(mq.MessageQueue("A", broker.name, 0), messages)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Peer]:
    with filling(tmp_path / "store") as peer:
        yield peer


def filling(path: Path) -> Peer:
    """A process that can fill_up() a store."""
    peer = Peer(path, **SIZES)
    peer.do("broker.create_topic('A', 1)")
    peer.do(FILL.format(body=BODY))
    return peer


@editions
def test_a_backlog_costs_no_memory_no_time_to_read_and_none_to_open(
    tmp_path: Path, writer: Peer, count: int
) -> None:
    writer.do(f"fill_up({count // 10})")
    memory = private_bytes(writer.pid)
    writer.do(f"fill_up({count - count // 10})")
    assert private_bytes(writer.pid) - memory < RSS_OF_PAGES

    with Peer(tmp_path / "store", **SIZES) as reader:
        reader.do("queue = broker.topic('A').queues[0]; queue.read(0); offset = 0")
        memory = private_bytes(reader.pid)
        reader.do(READ_ALL)
        assert reader.ask("offset") == count
        assert private_bytes(reader.pid) - memory < RSS_OF_PAGES
        # Where it lies in the backlog makes no difference.
        reader.do(TIMED.format(places=[1000, count - 1000]))
        first, last = reader.ask("times")
        assert last < 3 * first
        reader.kill()

    # All are dead: the next one opens it as fast as a store of a thousand messages. The best of a few times
    # counts: what a machine takes that halts, or does other things meanwhile, is not the store's.
    writer.kill()
    with filling(tmp_path / "small") as other:
        other.do("fill_up(1000)")
        other.kill()
    taken_ms = [
        [reopened_ms(tmp_path / name, tmp_path / "opener") for name in ("store", "small")]
        for _ in range(DEATHS)
    ]
    large_ms, small_ms = map(min, zip(*taken_ms, strict=True))
    assert large_ms < max(REOPEN_MS, 3 * small_ms)
    broker = LocalBroker(tmp_path / "store", **SIZES)
    try:
        assert not was_recovered(broker)
        queue = broker.topic("A").queues[0]
        assert queue.max_offset == count
        assert queue.read(count - 1).messages[0].body == BODY
        assert broker.topic("A").send(b"next").queue_offset == count
    finally:
        broker.close()


def reopened_ms(path: Path, other: Path) -> float:
    """How long the first process takes that opens it after all have died. It dies as well."""
    with Peer(other) as peer:
        peer.do("began = time.perf_counter()\n"
                f"opened = LocalBroker({str(path)!r}, **{SIZES!r})\n"
                "taken_ms = (time.perf_counter() - began) * 1000")  # fmt: skip
        assert peer.ask("not was_recovered(opened)")
        taken_ms = float(peer.ask("taken_ms"))
        peer.kill()
        return taken_ms


READ_ALL = """
while True:
    result = queue.read(offset, count_max=1000)
    if not result.messages:
        break
    assert result.messages[-1].queue_offset == offset + len(result.messages) - 1
    offset = result.next_offset
"""
TIMED = """
import statistics
def median(place):
    taken = []
    for _ in range(201):
        began = time.perf_counter()
        assert len(queue.read(place, count_max=32).messages) == 32
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
# In turn, so that a machine that is slow for a while is so for all of them.
times = [min(medians) for medians in zip(*([median(place) for place in {places}] for _ in range(5)))]
"""


@pytest.mark.parametrize(
    ("topic_count", "queue_count"),
    [
        pytest.param(50, 8, id="small"),
        pytest.param(1000, 8, id="full", marks=[pytest.mark.scale, pytest.mark.timeout(1800)]),
    ],
)
def test_many_topics_of_many_queues(directory: Path, topic_count: int, queue_count: int) -> None:
    names = [f"topic{number:04}" for number in range(topic_count)]
    sizes: dict[str, Any] = {**SIZES, "queue_file_units": 64}
    with LocalBroker(directory, **sizes) as broker:
        for name in names:
            broker.create_topic(name, queue_count)
        for name in names:
            for queue_id in range(queue_count):
                for _ in range(2):
                    body = f"{name}/{queue_id}".encode()
                    append_one(broker, name, queue_id, mq.Message(name, body, keys=name), body, 0)
        assert broker.topics() == names
        assert len(broker.query(names[-1], names[-1], count_max=100)) == 2 * queue_count
    with LocalBroker(directory, **sizes) as broker:
        assert not was_recovered(broker)
        for name in names:
            for queue in broker.topic(name).queues:
                assert [message.body for message in queue.read(0).messages] == [
                    f"{name}/{queue.queue_id}".encode()
                ] * 2


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(8, id="small"),
        pytest.param(64, id="full", marks=[pytest.mark.scale, pytest.mark.timeout(900)]),
    ],
)
def test_many_processes_come_send_read_and_go(directory: Path, count: int) -> None:
    with LocalBroker(directory, **SIZES) as broker:
        broker.create_topic("A", 4)
        peers = [Peer(directory, **SIZES) for _ in range(count)]
        members = members_of(broker)
        assert len(members.alive()) == count + 1
        for number, peer in enumerate(peers):
            peer.post("do", f"fill(broker, 'A', 100, 4, 'from{number}')")
        for peer in peers:
            peer.answer()
        for peer in peers:
            peer.post("ask", "sum(len(messages_of(queue)) for queue in broker.topic('A').queues)")
        assert [peer.answer() for peer in peers] == [100 * count] * count
        # Half of them leave, the others die.
        for number, peer in enumerate(peers):
            if number % 2:
                peer.close()
            else:
                peer.kill()
        assert [member.pid for member in members.alive()] == [os.getpid()]
        bodies = [
            message.body
            for queue in broker.topic("A").queues
            for at in range(0, 25 * count, 1000)
            for message in queue.read(at, count_max=1000).messages
        ]
        assert len(set(bodies)) == len(bodies) == 100 * count
    assert list(problems(directory)) == []
