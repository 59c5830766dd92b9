"""The files that mq writes are those that RocketMQ's library writes, byte for byte.

The library is given the very messages that mq stored, with the same hosts and times, and both directories
are compared: segments with their BLANK records, queue files, index files.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

import mq
from tests.oracle.agreement import messages_of
from tests.oracle.sending import (
    SIZES,
    open_store,
    send_as_batch,
    send_everything,
    send_one_by_one,
)
from tests.support import oracle
from tests.support.oracle import USUAL_SIZES, Sizes, Step

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(600)]

BATCHES = "batches"


def all_messages(directory: Path, sizes: Sizes = SIZES) -> list[mq.MessageExt]:
    """Every message of a store in log order."""
    with open_store(directory, sizes) as broker:
        found = [
            message
            for topic in broker.topics()
            for queue in broker.topic(topic).queues
            for message in messages_of(broker, topic, queue.queue_id)
        ]
    return sorted(found, key=lambda message: message.log_offset)


def step_of(message: mq.MessageExt) -> Step:
    return oracle.put(
        message.topic,
        message.stored_body,
        queue_id=message.queue_id,
        properties=message.encoded.decode(),
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        born_time_ms=message.born_time_ms,
        born_host=message.born_host,
        store_time_ms=message.store_time_ms,
        store_host=message.store_host,
    )


def batch_step_of(members: list[mq.MessageExt]) -> Step:
    first = members[0]
    return oracle.batch(
        first.topic,
        [(member.stored_body, member.encoded.decode(), member.flag) for member in members],
        queue_id=first.queue_id,
        born_time_ms=first.born_time_ms,
        born_host=first.born_host,
        store_time_ms=first.store_time_ms,
        store_host=first.store_host,
    )


def steps_of(messages: list[mq.MessageExt], batch_size: int) -> Iterator[Step]:
    """The steps that store the same; the messages of one topic were sent in batches of one size."""
    for topic, run in groupby(messages, key=lambda message: message.topic):
        members = list(run)
        if topic == BATCHES:
            for at in range(0, len(members), batch_size):
                yield batch_step_of(members[at : at + batch_size])
        else:
            yield from map(step_of, members)


def assert_same_log(ours: Path, theirs: Path) -> None:
    """Segment by segment; mq may have one more, made ahead and empty."""
    segments = {path.name for path in (theirs / "commitlog").iterdir()}
    for path in (ours / "commitlog").iterdir():
        if path.name in segments:
            assert_same_bytes(path, theirs / "commitlog" / path.name)
            segments.remove(path.name)
        else:
            assert not any(path.read_bytes()), path
    assert segments == set()


def assert_same_queues(ours: Path, theirs: Path) -> None:
    files = [
        {path.relative_to(root) for path in (root / "consumequeue").rglob("*") if path.is_file()}
        for root in (ours, theirs)
    ]
    assert files[0] == files[1]
    for name in files[0]:
        assert_same_bytes(ours / name, theirs / name)


def assert_same_index(ours: Path, theirs: Path) -> None:
    """In the order of the names, which are times of creation."""
    pairs = zip(sorted((ours / "index").iterdir()), sorted((theirs / "index").iterdir()), strict=True)
    for our_file, their_file in pairs:
        assert_same_bytes(our_file, their_file)


def assert_same_bytes(ours: Path, theirs: Path) -> None:
    """The first difference says more than two long strings of bytes."""
    mine, library = ours.read_bytes(), theirs.read_bytes()
    assert len(mine) == len(library), ours
    different = next((at for at in range(len(mine)) if mine[at] != library[at]), None)
    assert different is None, (
        f"{ours} differs from {theirs} at {different}:"
        f" {mine[different : different + 32].hex()} is {library[different : different + 32].hex()}"
    )


def test_the_library_writes_the_same_bytes_for_single_messages(directory: Path, tmp_path: Path) -> None:
    with open_store(directory) as broker:
        broker.create_topic("orders", queue_count=3)
        broker.create_topic("a" * 127, queue_count=1)
        for first in range(0, 300, 20):
            send_one_by_one(broker, "orders", first, 13)
            send_one_by_one(broker, "a" * 127, first + 13, 7)
    stored = all_messages(directory)
    assert len(stored) == 300
    oracle.write(tmp_path / "theirs", SIZES, map(step_of, stored))
    assert_same_log(directory, tmp_path / "theirs")
    assert_same_queues(directory, tmp_path / "theirs")
    assert_same_index(directory, tmp_path / "theirs")


def test_the_library_writes_the_same_bytes_for_batches(directory: Path, tmp_path: Path) -> None:
    """Batches go to the next segment as a whole, and share one store time."""
    batch_size = 9
    with open_store(directory) as broker:
        broker.create_topic("orders", queue_count=2)
        broker.create_topic(BATCHES, queue_count=1)
        for first in range(0, 300, 20):
            send_one_by_one(broker, "orders", first, 11)
            send_as_batch(broker, BATCHES, first + 11, batch_size)
    stored = all_messages(directory)
    assert len(stored) == 300
    oracle.write(tmp_path / "theirs", SIZES, steps_of(stored, batch_size))
    assert_same_log(directory, tmp_path / "theirs")
    assert_same_queues(directory, tmp_path / "theirs")
    assert_same_index(directory, tmp_path / "theirs")


@pytest.mark.parametrize("left", [0, 1, 7, 8, 9, 30])
def test_a_segment_ends_as_the_library_ends_it(left: int, directory: Path, tmp_path: Path) -> None:
    """A record that would leave so many bytes of the segment, then one more."""
    with open_store(directory) as broker, mq.Producer(broker) as producer:
        broker.create_topic("orders", queue_count=1)
        producer.send(mq.Message("orders", b"x"))
        overhead = broker.topic("orders").queues[0].read(0).messages[0].store_size - 1
        # Incompressible, so that it is stored as it is.
        body_size = SIZES.commitlog_file_size - 2 * overhead - 1 - left
        producer.send(mq.Message("orders", random.Random(left).randbytes(body_size)))
        producer.send(mq.Message("orders", b"after"))
    stored = all_messages(directory)
    assert stored[1].log_offset == (overhead + 1 if left >= 8 else SIZES.commitlog_file_size)
    oracle.write(tmp_path / "theirs", SIZES, map(step_of, stored))
    assert_same_log(directory, tmp_path / "theirs")


def test_the_library_derives_the_same_queues_and_index(directory: Path, tmp_path: Path) -> None:
    """Left with the log alone, its recovery builds what mq had built."""
    with open_store(directory) as broker:
        send_everything(broker)
    theirs = Path(shutil.copytree(directory, tmp_path / "theirs"))
    for part in ("consumequeue", "index"):
        shutil.rmtree(theirs / part)
    (theirs / "checkpoint").unlink()
    (theirs / "abort").write_text("1")
    oracle.read(theirs, SIZES, close=True)
    assert_same_queues(directory, theirs)
    assert_same_index(directory, theirs)


def test_files_of_the_usual_sizes_are_read_as_well(directory: Path) -> None:
    """Segments of 1 GiB and index files of 420 MB, mostly holes; so the directory itself is handed over."""
    with mq.open(str(directory)) as broker:
        sent = send_everything(broker)
    report = oracle.read(directory, USUAL_SIZES, close=True)
    assert len(report.records) == len(sent)
    assert report.missing == []
    with mq.open(str(directory)) as broker:
        send_one_by_one(broker, "orders", 1000, 3)
        assert sum(queue.max_offset for queue in broker.topic("orders").queues) == 70 + 12 + 1 + 30 + 3
