"""Where many queues have few messages each, a task does not reserve for each what a full batch needs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import mq
from mq.broker.local import LocalBroker
from tests.spark.reading import batch_rows, forget_brokers, send

QUEUE_COUNT = 300


def test_few_messages_reserve_little_memory(broker: LocalBroker, directory: Path) -> None:
    """A reservation of the 1 MiB of a full batch costs some ms of the kernel's time, and they are all held
    until there are enough rows for a batch."""
    broker.create_topic("wide", QUEUE_COUNT)
    for queue_id in range(QUEUE_COUNT):
        send(broker, "wide", queue_id, b"%d" % queue_id)
    usual = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counting)
    try:
        found = batch_rows(directory, "queueId", "queueOffset", "body", topic="wide")
    finally:
        pa.set_memory_pool(usual)
    assert [row["body"] for row in found] == [b"%d" % queue_id for queue_id in range(QUEUE_COUNT)]
    assert 0 < counting.max_memory() < QUEUE_COUNT * 64 * 1024


@pytest.mark.parametrize("size", [1, 4000, 5000, 300_000])
def test_messages_of_any_size_where_there_are_few(tmp_path: Path, size: int) -> None:
    bodies = [bytes([number]) * size for number in range(1, 6)]
    with mq.open(tmp_path / "large") as large:
        large.create_topic("orders", 1)
        send(large, "orders", 0, *bodies)
        found = batch_rows(tmp_path / "large", "queueOffset", "body", topic="orders")
        forget_brokers()
    assert [row["queueOffset"] for row in found] == list(range(5))
    assert [row["body"] for row in found] == bodies
