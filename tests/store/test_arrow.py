"""Columns say of every message what the message itself says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import mq
from mq.api.broker import MessageQueue
from mq.broker.local import LocalBroker
from mq.compression import compressor
from mq.filter.tags import tag_hash
from mq.store.native import check, ffi, lib
from mq.store.queue.arrow import COLUMNS, Scan
from tests.support.appending import append_one
from tests.support.insides import arrow_reader_of, queue_number, store_of
from tests.support.store.small_store import open_small

pa = pytest.importorskip("pyarrow")

QUEUE = MessageQueue("orders", "mq", 0)
OWN_COLUMN = {"TAGS", "KEYS", "UNIQ_KEY"}
ALL = (*COLUMNS, "properties", "encoded")

words = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02 "), min_size=1, max_size=12).filter(
    lambda text: not text.isspace()
)
tags = words.filter(lambda text: text != "*" and "||" not in text and min(text) > " ")
messages = st.builds(
    mq.Message,
    st.just("orders"),
    st.binary(min_size=1, max_size=60),
    tags=st.none() | tags,
    keys=st.lists(words, max_size=3),
    properties=st.dictionaries(words.map("x{}".format), words, max_size=5),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
)


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        yield broker


def scan(
    broker: LocalBroker, columns: tuple[str, ...], unit: str = "us", hashes: frozenset[int] | None = None
) -> Scan:
    return arrow_reader_of(broker).scan(QUEUE, queue_number(broker, QUEUE), columns, unit, hashes)


def rows(batch: Any) -> list[dict[str, Any]]:
    batch.validate(full=True)
    return list(batch.to_pylist())


def expected(message: mq.MessageExt) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "brokerName": "mq",
        "queueId": 0,
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "tags": message.tags,
        "keys": " ".join(message.keys) or None,
        "bornTimestamp": message.born_time_ms,
        "storeTimestamp": message.store_time_ms,
        "reconsumeTimes": message.reconsume_times,
        "flag": message.flag,
        "body": message.body,
        "properties": [(k, v) for k, v in message.properties.items() if k not in OWN_COLUMN],
        "encoded": message.encoded,
    }


def read_all(broker: LocalBroker, begin: int, end: int) -> list[mq.MessageExt]:
    queue, found = broker.topic("orders").queues[0], list[mq.MessageExt]()
    while begin < end:
        result = queue.read(begin, count_max=end - begin)
        found += result.messages
        begin = result.next_offset
    return found


@settings(max_examples=60)
@given(
    sent=st.lists(messages, min_size=1, max_size=25),
    columns=st.lists(st.sampled_from(ALL), unique=True, min_size=1),
    begin=st.integers(0, 25),
    end=st.integers(0, 30),
    count_max=st.integers(1, 30),
)
def test_any_columns_of_any_range(
    tmp_path_factory: pytest.TempPathFactory,
    sent: list[mq.Message],
    columns: list[str],
    begin: int,
    end: int,
    count_max: int,
) -> None:
    with open_small(tmp_path_factory.mktemp("store")) as broker:
        broker.create_topic("orders", 1)
        for message in sent:
            append_one(broker, "orders", 0, message, message.body, 0)
        begin = min(begin, len(sent))
        wanted = [expected(m) for m in read_all(broker, begin, min(end, len(sent)))] if end > begin else []
        reader, found, at = scan(broker, tuple(columns)), list[dict[str, Any]](), begin
        while at < min(end, len(sent)):
            batch = reader.read(at, end, count_max, 1 << 20)
            assert 1 <= batch.records.num_rows == batch.next_offset - at <= count_max
            found += rows(batch.records)
            at = batch.next_offset
        for row in found:
            for name in {"bornTimestamp", "storeTimestamp"} & row.keys():
                row[name] = int(row[name].timestamp() * 1000)
        assert found == [{name: row[name] for name in columns} for row in wanted]


def test_the_last_property_of_a_name_counts(broker: LocalBroker) -> None:
    encoded = b"a\x01first\x02b\x01\x02\x01c\x02bb\x012\x02a\x01last\x02TAGS\x01x\x02TAGS\x01yy\x02"
    number, receipt = queue_number(broker, QUEUE), ffi.new("mq_receipt *")
    for _ in range(3):
        check(
            lib.mq_append(
                store_of(broker).live(),
                *(number, -1, 0, 0, b"body", 4, encoded, len(encoded)),
                *(ffi.NULL, ffi.NULL, receipt),
            )
        )
    batch = scan(broker, ("properties", "tags", "queueOffset")).read(0, 3, 10, 1 << 20)
    assert rows(batch.records) == [
        {"properties": [("bb", "2"), ("a", "last")], "tags": "yy", "queueOffset": offset}
        for offset in range(3)
    ]


def test_a_compressed_body_is_given_as_it_was_sent(broker: LocalBroker) -> None:
    body = b"again and " * 200
    packed, flags = compressor("zlib")(body)
    for stored, flag in ((b"plain", 0), (packed, flags), (b"p", 0), (packed, flags)):
        append_one(broker, "orders", 0, mq.Message("orders", stored), stored, flag)
    batch = scan(broker, ("body",)).read(0, 9, 10, 1 << 20)
    assert [row["body"] for row in rows(batch.records)] == [b"plain", body, b"p", body]


def batches_of(reader: Scan, byte_max: int) -> Iterator[Any]:
    at = 0
    while (batch := reader.read(at, 999, 999, byte_max)).records.num_rows:
        yield batch.records
        at = batch.next_offset


def test_a_body_that_does_not_decompress_is_lost_alone(broker: LocalBroker) -> None:
    for stored, flag in ((b"first", 0), (b"no zlib", 1), (b"third", 0), (b"none", 0x701)):
        append_one(broker, "orders", 0, mq.Message("orders", stored), stored, flag)
    reader = scan(broker, ("body",))
    batch = reader.read(0, 9, 10, 1 << 20)
    assert (rows(batch.records), batch.next_offset) == ([{"body": b"first"}], 1)
    with pytest.raises(mq.StoreCorrupted, match=r"queue offset 1 of orders/0 .* does not decompress") as lost:
        reader.read(1, 9, 10, 1 << 20)
    assert lost.value.queue_offset == 1
    assert rows(reader.read(2, 9, 10, 1 << 20).records) == [{"body": b"third"}]
    with pytest.raises(mq.StoreCorrupted, match=r"queue offset 3 of orders/0 .* no known compression"):
        reader.read(3, 9, 10, 1 << 20)


def test_what_bodies_come_to_is_bounded(broker: LocalBroker) -> None:
    """A few bytes may be many more."""
    body = bytes(100_000)
    packed, flags = compressor("zlib")(body)
    for stored, flag in [(packed, flags), (b"plain", 0)] * 5:
        append_one(broker, "orders", 0, mq.Message("orders", stored), stored, flag)
    found = list(batches_of(scan(broker, ("body",)), 4096))
    assert [row["body"] for records in found for row in rows(records)] == [body, b"plain"] * 5
    assert max(records.nbytes for records in found) < 2 * len(body)


def test_what_a_batch_has_besides_bodies_is_bounded(broker: LocalBroker) -> None:
    message = mq.Message("orders", b"x", keys="k" * 1000, properties={"name": "v" * 1000})
    for _ in range(300):
        append_one(broker, "orders", 0, message, message.body, 0)
    for columns in (("keys", "body"), ("properties",), ("encoded",)):
        found = list(batches_of(scan(broker, columns), 20_000))
        assert sum(records.num_rows for records in found) == 300
        assert max(records.nbytes for records in found) < 100_000


def test_a_message_larger_than_the_room_is_given_room(broker: LocalBroker) -> None:
    with open_small(broker.path) as again:
        sizes = [10, 3000, 10, 10]
        for size in sizes:
            append_one(again, "orders", 0, mq.Message("orders", bytes(size)), bytes(size), 0)
        reader, at, counts = scan(again, ("body", "properties", "encoded")), 0, []
        while (batch := reader.read(at, 9, 10, 16)).records.num_rows:
            counts.append(batch.records.num_rows)
            at = batch.next_offset
        assert counts[0] == 1
        assert sum(counts) == 4


def test_what_learned_of_small_messages_has_room_for_large_ones(broker: LocalBroker) -> None:
    small = mq.Message("orders", b"s")
    large = mq.Message("orders", b"l", keys="k" * 900, properties={f"name{n}": "v" * 50 for n in range(20)})
    for message in [small] * 20 + [large] * 20:
        append_one(broker, "orders", 0, message, message.body, 0)
    reader, found, at = scan(broker, ("keys", "properties", "msgId")), list[dict[str, Any]](), 0
    while (batch := reader.read(at, 99, 16, 1 << 20)).records.num_rows:
        found += rows(batch.records)
        at = batch.next_offset
    assert [row["keys"] for row in found] == [None] * 20 + ["k" * 900] * 20
    assert [len(row["properties"]) for row in found] == [0] * 20 + [20] * 20


def test_only_tags_that_are_wanted(broker: LocalBroker) -> None:
    for number in range(40):
        tag = ("paid", "open", None)[number % 3]
        append_one(broker, "orders", 0, mq.Message("orders", b"%d" % number, tags=tag), b"%d" % number, 0)
    reader = scan(broker, ("queueOffset", "tags"), hashes=frozenset([tag_hash("paid")]))
    batch = reader.read(1, 38, 100, 1 << 20)
    assert [row["queueOffset"] for row in rows(batch.records)] == list(range(3, 38, 3))
    assert batch.next_offset == 38


def test_offsets_that_the_queue_does_not_have(broker: LocalBroker) -> None:
    assert not scan(broker, ("body",)).read(0, 9, 10, 100).is_out
    append_one(broker, "orders", 0, mq.Message("orders", b"x"), b"x", 0)
    reader = scan(broker, ("body",))
    assert not reader.read(1, 9, 10, 100).is_out
    beyond = reader.read(2, 9, 10, 100)
    assert (beyond.is_out, beyond.max_offset, beyond.records.num_rows) == (True, 1, 0)
