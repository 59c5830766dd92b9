"""Units inside the file of a queue that lead nowhere: the message is in the log, so its readers get it.

The file has its length, so opening the store does not see it. A reader that meets such a unit has it made
anew, also in a store that other processes have open.
"""

from __future__ import annotations

import logging
import random
import time
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.check import problems
from mq.broker.local import LocalBroker
from tests.damage.readable import readable
from tests.support.store.peer import Peer
from tests.support.store.small_store import SMALL, fill, log_files, messages_of

SIZES: dict[str, Any] = {**SMALL, "queue_file_units": 64}
UNIT = 20
COUNT = 40
WAYS = ("zeroed", "noise", "of another queue", "of earlier messages", "into the record", "before the record")
SPANS = ((0, 1), (0, 7), (11, 12), (11, 30), (33, COUNT - 1), (0, COUNT))
SOON = 60.0


def open_store(path: Path, *, read_only: bool = False, duties: bool = False) -> LocalBroker:
    return mq.open(path, read_only=read_only, duties=duties, **SIZES)


def queue_file(path: Path, topic: str = "orders", queue_id: int = 0) -> Path:
    return path / "consumequeue" / topic / str(queue_id) / f"{0:020}"


def moved(unit: bytes, distance: int) -> bytes:
    """A unit that leads to another place of the log, in order with its neighbours."""
    return max(int.from_bytes(unit[:8], "big") + distance, 0).to_bytes(8, "big") + unit[8:]


def damage(file: Path, begin: int, end: int, way: str = "zeroed") -> None:
    """Have units [begin, end) be what was not written there."""
    size = (end - begin) * UNIT
    other = file.parents[1] / "1" / file.name
    units = [file.read_bytes()[at * UNIT : (at + 1) * UNIT] for at in range(begin, end)]
    data = {
        "zeroed": bytes(size),
        "noise": random.Random(1).randbytes(size),
        "of another queue": other.read_bytes()[begin * UNIT : end * UNIT] if other.exists() else b"",
        "of earlier messages": file.read_bytes()[:UNIT] * COUNT,
        "into the record": b"".join(moved(unit, 8) for unit in units),
        "before the record": b"".join(moved(unit, -8) for unit in units),
    }[way][:size]
    with file.open("r+b") as opened:
        opened.seek(begin * UNIT)
        opened.write(data)


@pytest.fixture
def path(quick_path: Path) -> Path:
    """A closed store, of two queues of one topic, whose messages are in several files of the log."""
    path = quick_path / "store"
    with open_store(path) as broker:
        broker.create_topic("orders", 2)
        fill(broker, "orders", 2 * COUNT, 2)
    assert len(log_files(path)) > 3
    return path


def read(broker: LocalBroker, queue_id: int = 0) -> list[bytes]:
    return [message.body for message in messages_of(broker.topic("orders").queues[queue_id])]


WHOLE = [b"message %d" % number for number in range(0, 2 * COUNT, 2)]


@pytest.mark.parametrize(
    ("way", "span"),
    # The first unit is that of the first message.
    [
        (way, span)
        for way in WAYS
        for span in SPANS
        if span != (0, 1) or way not in ("of earlier messages", "before the record")
    ],
)
def test_a_reader_gets_the_messages_of_damaged_units(
    path: Path,
    way: str,
    span: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("mq.store.recovery.plausibility.FILES_LOOKED_INTO", 0)
    units = queue_file(path).read_bytes()
    damage(queue_file(path), *span, way)
    with open_store(path) as broker, caplog.at_level(logging.WARNING, "mq.store"):
        assert read(broker) == WHOLE
        assert read(broker, 1) == [b"message %d" % number for number in range(1, 2 * COUNT, 2)]
    assert "orders/0 was damaged" in caplog.text
    assert queue_file(path).read_bytes() == units
    assert list(problems(path)) == []


def test_every_queue_of_a_topic_that_is_too_wide_to_be_looked_into(quick_path: Path) -> None:
    """A zeroed file of queue 1,199 was taken for sound, and its message for lost."""
    path, count = quick_path / "wide", 1200
    with open_store(path) as broker:
        broker.create_topic("orders", count)
        fill(broker, "orders", count, count)
    for queue_id in (5, count - 1):
        queue_file(path, "orders", queue_id).write_bytes(bytes(64 * UNIT))
    with open_store(path) as broker:
        for queue_id in (5, count - 1):
            assert read(broker, queue_id) == [b"message %d" % queue_id]


def test_a_missing_file_does_not_keep_the_damaged_units_beside_it_from_being_made_anew(
    quick_path: Path,
) -> None:
    path, sizes = quick_path / "store", {**SIZES, "queue_file_units": 16}
    with mq.open(path, duties=False, **sizes) as broker:
        broker.create_topic("orders", 2)
        fill(broker, "orders", 2 * COUNT, 2)
    with mq.open(path, duties=False, **sizes) as broker:
        queue_file(path).with_name(f"{16 * UNIT:020}").unlink()
        damage(queue_file(path), 10, 16)
        queue = broker.topic("orders").queues[0]
        got = [message.body for offset in range(16) for message in queue.read(offset, count_max=1).messages]
        assert got == WHOLE[:16]
        assert read(broker) == WHOLE


def test_a_group_consumes_them_while_others_send(path: Path) -> None:
    with open_store(path, duties=True) as broker, Peer(path, **SIZES, duties=False) as sender:
        damage(queue_file(path), 5, 35)
        sender.do("fill(broker, 'orders', 20, 2, prefix='later')")
        got: list[bytes] = []
        consumer = mq.PushConsumer(broker, "billing")
        consumer.subscribe("orders", listener=lambda message: got.append(message.body))
        with consumer:
            consumer.start()
            deadline = time.monotonic() + SOON
            while len(got) < 2 * COUNT + 20:
                assert time.monotonic() < deadline, f"{len(got)} messages came"
                time.sleep(0.02)
        assert set(got) >= set(WHOLE)
        assert broker.group("billing").lag("orders") == 0
        ends = [queue.max_offset for queue in broker.topic("orders").queues]
        assert sender.ask("[queue.max_offset for queue in broker.topic('orders').queues]") == ends


def test_a_store_that_is_read_only_says_that_the_log_may_have_them(path: Path) -> None:
    with open_store(path) as writer, open_store(path, read_only=True) as reader:
        damage(queue_file(path), 3, 6)
        units = queue_file(path).read_bytes()
        queue = reader.topic("orders").queues[0]
        with pytest.raises(mq.StoreCorrupted, match="the log may still have it") as caught:
            queue.read(3)
        assert caught.value.queue_offset == 3
        assert queue_file(path).read_bytes() == units
        assert any("its unit 3 of orders/0 is missing" in problem for problem in problems(path))
        assert read(writer) == WHOLE
        assert read(reader) == WHOLE


def test_what_the_log_does_not_have_is_lost_and_looked_for_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = log_files(path)[1]
    with open_store(path) as broker:
        queue = broker.topic("orders").queues[0]
        gone = [
            message.queue_offset
            for message in messages_of(queue)
            if int(file.name) <= message.log_offset < int(file.name) + SIZES["commitlog_file_size"]
        ]
        assert len(gone) > 3
        with file.open("r+b") as opened:
            opened.write(bytes(4000))
        damage(queue_file(path), gone[1] - 3, gone[-1] + 3)
        for _ in range(2):
            found, lost, offset = [], [], 0
            while offset < queue.max_offset:
                try:
                    result = queue.read(offset)
                except mq.StoreCorrupted as error:
                    lost.append((error.queue_offset, "it is lost" in str(error)))
                    offset += 1
                    continue
                found += [message.queue_offset for message in result.messages]
                offset = result.next_offset
            assert lost == [(each, True) for each in gone]
            assert found == [each for each in range(COUNT) if each not in gone]
        assert caplog.text.count("orders/0 was damaged") == 1
    told = "\n".join(problems(path))
    assert f"orders/0 queue offsets {gone[0]} to {gone[-1]}" in told


def test_a_sound_unit_of_a_damaged_record_stays(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_store(path) as broker:
        queue = broker.topic("orders").queues[0]
        (message,) = queue.read(20, count_max=1).messages
        start = message.log_offset // SIZES["commitlog_file_size"] * SIZES["commitlog_file_size"]
        with (path / "commitlog" / f"{start:020}").open("r+b") as file:
            file.seek(message.log_offset - start + 30)
            file.write(b"\xff" * 30)
        units = queue_file(path).read_bytes()
        with pytest.raises(mq.StoreCorrupted, match="it is lost"):
            queue.read(20)
        assert queue_file(path).read_bytes() == units
        assert "was damaged" not in caplog.text


def test_retention_takes_no_message_for_its_damaged_unit(path: Path) -> None:
    with open_store(path) as broker:
        damage(queue_file(path), 0, COUNT)
        oldest = broker.topic("orders").queues[1].min_offset
        assert broker.expire(retention_hours=0) > 0
        kept = broker.topic("orders").queues[1].min_offset
        assert oldest < kept < COUNT
        found = [message.body for message in readable(broker.topic("orders").queues[0])]
        assert found
        assert found == WHOLE[-len(found) :]
        assert len(found) >= COUNT - kept - 1


def test_arrow_reads_them(path: Path) -> None:
    pytest.importorskip("pyarrow")
    with open_store(path) as broker:
        damage(queue_file(path), 3, 30)
        queue, found = broker.readable("orders")[0], list[bytes]()
        while len(found) < COUNT:
            bodies = broker.read_arrow(queue, len(found), 7, 1 << 20)["body"].to_pylist()
            assert bodies
            found += bodies
        assert found == WHOLE


def test_messages_with_a_due_time_and_a_level_are_delivered(quick_path: Path) -> None:
    path = quick_path / "later"
    with open_store(path) as broker:
        topic = broker.create_topic("orders", 1)
        for number in range(10):
            topic.send(b"due %d" % number, delay_ms=1000)
            topic.send(b"level %d" % number, delay_level=1)
    for name, queue_id in (("rmq_sys_wheel_timer", 0), ("SCHEDULE_TOPIC_XXXX", 0)):
        damage(queue_file(path, name, queue_id), 3, 6)
    with open_store(path, duties=True) as broker:
        queue = broker.topic("orders").queues[0]
        deadline = time.monotonic() + SOON
        while queue.max_offset < 20:
            assert time.monotonic() < deadline, f"{queue.max_offset} messages were delivered"
            time.sleep(0.05)
        bodies = {message.body for message in messages_of(queue)}
        assert bodies == {b"%s %d" % (kind, number) for kind in (b"due", b"level") for number in range(10)}
