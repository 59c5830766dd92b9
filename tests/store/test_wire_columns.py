"""Records of a pull as columns say what a scan of the store says; damaged ones are errors, and never more."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import mq
from mq.api.broker import MessageQueue
from mq.broker.local import LocalBroker
from mq.errors import StoreCorrupted
from mq.store.queue.arrow import COLUMNS
from mq.store.queue.wire_columns import WireColumns
from tests.support.appending import append_one
from tests.support.store.small_store import open_small

pytest.importorskip("pyarrow")

QUEUE = MessageQueue("orders", "mq", 0)
ALL = (*COLUMNS, "properties", "encoded")
COUNT = 40
COMPRESSED = 1  # by zlib: a bit of sys_flag
BIG = 1 << 20


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory) as broker:
        broker.create_topic("orders", 2)
        for number in range(COUNT):
            body = b"%d " % number * (number % 7 + 1)
            fields: dict[str, Any] = {"keys": f"k{number}", "properties": {"n": str(number)}}
            if number % 3:
                fields["tags"] = "odd" if number % 2 else "even"
            sent, flags = (zlib.compress(body), COMPRESSED) if number % 5 == 4 else (body, 0)
            append_one(broker, "orders", 0, mq.Message("orders", body, **fields), sent, flags)
        append_one(broker, "orders", 1, mq.Message("orders", b"another queue's"), b"another queue's", 0)
        yield broker


def records_of(broker: LocalBroker, queue: MessageQueue = QUEUE) -> list[bytes]:
    found: list[bytes] = []
    while messages := broker.puller(queue)(len(found), COUNT, BIG, None, 0.0).messages:
        found += [message.record for message in messages]
    return found


def all_of(content: bytes, *, count_max: int = 1000, byte_max: int = BIG) -> list[dict[str, Any]]:
    columns, rows, at, offset = WireColumns(QUEUE, "orders", ALL), [], 0, 0
    while at < len(content):
        taken = columns.take(content, at, offset, BIG, count_max, byte_max)
        taken.records.validate(full=True)
        assert taken.at > at
        rows += taken.records.to_pylist()
        at, offset = taken.at, taken.next_offset
    return rows


def test_columns_are_those_of_a_scan(broker: LocalBroker) -> None:
    scanned = broker.bulk.scan(QUEUE, ALL).read(0, COUNT, COUNT, BIG).records.to_pylist()
    assert len(scanned) == COUNT
    content = b"".join(records_of(broker))
    assert all_of(content) == scanned
    assert all_of(content, count_max=1) == scanned
    assert all_of(content, byte_max=1) == scanned
    assert all_of(content, count_max=7, byte_max=100) == scanned


def test_a_range_ends_where_it_is_to_end(broker: LocalBroker) -> None:
    records = records_of(broker)
    content = b"".join(records[3:])
    taken = WireColumns(QUEUE, "orders", ("queueOffset",)).take(content, 0, 2, 9, 1000, BIG)
    assert [row["queueOffset"] for row in taken.records.to_pylist()] == list(range(3, 9))
    assert (taken.next_offset, taken.at) == (9, len(content))
    empty = WireColumns(QUEUE, "orders", ("queueOffset",)).take(b"", 0, 2, 9, 1000, BIG)
    assert (empty.records.num_rows, empty.next_offset, empty.at) == (0, 2, 0)


def test_what_is_not_of_the_queue_is_refused(broker: LocalBroker) -> None:
    records = records_of(broker)
    other = records_of(broker, QUEUE._replace(queue_id=1))
    for content, offset in [
        (other[0], 0),  # of another queue
        (records[3], 4),  # from before
        (records[2] + records[1], 0),  # not in order: its second one
        (records[0][:-1], 0),  # not whole
        (struct.pack(">i", 1 << 30) + records[0][4:], 0),  # a length that lies
        (b"\xff" * 200, 0),
    ]:
        columns = WireColumns(QUEUE, "orders", ALL)
        at = 0
        if content.startswith(records[2]):  # What is sound comes first.
            at = columns.take(content, 0, offset, BIG, 1000, BIG).at
            assert at == len(records[2])
        with pytest.raises(StoreCorrupted, match=r"broker 'mq' sent .* of orders/0 damaged") as raised:
            columns.take(content, at, 3 if at else offset, BIG, 1000, BIG)
        assert raised.value.queue_offset is not None
    with pytest.raises(StoreCorrupted):
        WireColumns(QUEUE, "payments", ALL).take(records[0], 0, 0, BIG, 1000, BIG)


def test_any_bytes_are_records_or_an_error(directory: Path, broker: LocalBroker) -> None:
    """Bits turned over, pieces cut out, repeated and moved: what is taken is what was sent."""
    records = records_of(broker)
    whole = b"".join(records)
    sound = {row["queueOffset"]: row for row in all_of(whole)}

    @settings(max_examples=300)
    @given(
        st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 7)), max_size=4),
        st.lists(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole))), max_size=2),
        st.integers(1, COUNT),
        st.integers(1, 4000),
    )
    def check(flips: list[Any], pieces: list[Any], count_max: int, byte_max: int) -> None:
        content = bytearray(whole)
        for at, bit in flips:
            content[at] ^= 1 << bit
        for first, last in pieces:
            content += content[min(first, last) : max(first, last)]
        with contextlib.suppress(StoreCorrupted):
            columns, at, offset = WireColumns(QUEUE, "orders", ALL), 0, 0
            while at < len(content):
                taken = columns.take(bytes(content), at, offset, COUNT, count_max, byte_max)
                taken.records.validate(full=True)
                for row in taken.records.to_pylist():
                    assert row["body"] == sound[row["queueOffset"]]["body"]
                assert taken.at > at
                at, offset = taken.at, taken.next_offset

    check()
