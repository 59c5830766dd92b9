"""What is read from a topic has its queues' numbers, and another topic may have fewer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from mq.broker.local import LocalBroker
from mq.spark.errors import SparkError
from mq.spark.sink.rows import RowEncoder
from tests.spark.reading import batch_rows, send


def test_a_row_of_a_topic_with_more_queues_says_what_to_leave_out(
    broker: LocalBroker, directory: Path
) -> None:
    broker.create_topic("paid", 1)
    send(broker, "orders", 1, b"x")
    read = pa.RecordBatch.from_pylist(batch_rows(directory, "queueId", "body", topic="orders"))
    read = read.cast(pa.schema({"queueId": pa.int32(), "body": pa.binary()}))
    with pytest.raises(SparkError, match=r"topic paid has no queue 1 .*drop\('queueId'\)"):
        list(RowEncoder(broker, "paid", 0).encode(read))
    (staged,) = RowEncoder(broker, "paid", 0).encode(read.drop_columns(["queueId"]))
    assert staged.rows.column("body").to_pylist() == [b"x"]
