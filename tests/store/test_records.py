"""What mq writes is RocketMQ's, byte for byte: records, queue units, the ends of files, ids.

The yardstick is a second encoder in plain Python (encoder.py).
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mq
from mq.broker.local import LocalBroker
from mq.store.native import ffi, lib
from tests.support.appending import append_many, append_one
from tests.support.insides import store_of
from tests.support.store.encoder import Record, blank, properties, string_hash, unit
from tests.support.store.small_store import (
    LOG_FILE_SIZE,
    log_files,
    log_offset_of,
    messages_of,
    open_small,
    queue_files,
    send,
    written,
)

BORN_TIME = 1700000000000
BORN_HOST = bytes.fromhex("20010db8000000000000000000000001 0000c738")


def read(broker: LocalBroker, topic: str, queue_id: int) -> list[mq.MessageExt]:
    queue = mq.MessageQueue(topic, broker.name, queue_id)
    return list(broker.puller(queue)(0, 32, 1 << 20, None, 0.0).messages)


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory) as broker:
        broker.create_topic("A", 2)
        yield broker


def encoded_again(message: mq.MessageExt) -> bytes:
    """What the second encoder makes of what was read, with the checksum."""
    encoded = message.encoded
    assert encoded[-20:-11] == b"__CRC32#\1"
    return Record(
        message.topic,
        message.stored_body,
        encoded[:-20],
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.log_offset,
        message.sys_flag,
        message.born_time_ms,
        message.record[48 : 68 if message.sys_flag & 0x10 else 56],
        message.store_time_ms,
        message.record[76:84] if message.sys_flag & 0x10 else message.record[64:72],
        message.reconsume_times,
        message.prepared_transaction_offset,
    ).encode(property_crc=True)


MESSAGES = st.builds(
    mq.Message,
    st.just("A"),
    st.binary(min_size=1, max_size=400),
    tags=st.none() | st.sampled_from(["TagA", "标签", "😀", "order-created", "polygenelubricants", "a"]),
    keys=st.lists(st.from_regex(r"[a-z0-9]{1,9}", fullmatch=True), max_size=3),
    properties=st.none()
    | st.dictionaries(st.from_regex(r"p[a-z]{0,5}", fullmatch=True), st.just("größer"), max_size=3),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    wait=st.booleans(),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=st.lists(MESSAGES, min_size=1, max_size=8), batch=st.booleans(), queue_id=st.integers(0, 1))
def test_records_and_units_are_those_of_the_second_encoder(
    broker: LocalBroker, directory: Path, messages: list[mq.Message], batch: bool, queue_id: int
) -> None:
    queue = broker.topic("A").queues[queue_id]
    first = queue.max_offset
    before = time.time_ns() // 1_000_000
    if batch:
        append_many(broker, "A", queue_id, messages)
    else:
        for message in messages:
            append_one(broker, "A", queue_id, message, message.body, 0)
    after = time.time_ns() // 1_000_000
    stored = queue.read(first).messages
    assert len(stored) == len(messages)
    for place, (found, message) in enumerate(zip(stored, messages, strict=True)):
        assert found.record == encoded_again(found)
        assert found.queue_offset == first + place
        assert (found.body, found.flag, found.tags, found.keys) == (
            message.body,
            message.flag,
            message.tags,
            message.keys,
        )
        assert found.encoded == (
            message.encoded + b"UNIQ_KEY\1" + found.msg_id.encode() + b"\2" + found.encoded[-20:]
        )
        assert before <= found.store_time_ms <= after
        assert found.store_time_ms == found.born_time_ms
        file = directory / "commitlog" / f"{found.log_offset // LOG_FILE_SIZE * LOG_FILE_SIZE:020}"
        at = found.log_offset % LOG_FILE_SIZE
        assert file.read_bytes()[at : at + found.store_size] == found.record
        byte = found.queue_offset * 20
        file = directory / "consumequeue" / "A" / str(queue_id) / f"{byte // 80 * 80:020}"
        expected = unit(found.log_offset, found.store_size, string_hash(found.tags or ""))
        assert file.read_bytes()[byte % 80 : byte % 80 + 20] == expected


@pytest.mark.parametrize(
    ("tag", "code"),
    [
        ("a", "0000000000000061"),
        ("TagA", "000000000027a807"),
        ("标签", "00000000000d1457"),
        ("😀", "00000000001b0d63"),
        ("order-created", "ffffffffe897bb69"),
        ("TopicTest", "ffffffff8e987641"),
        ("polygenelubricants", "ffffffff80000000"),
        ("中文", "000000000009dcfa"),
        ("order-1001", "000000002a35fb7f"),
    ],
)
def test_the_hash_of_a_tag_stands_in_its_unit(
    broker: LocalBroker, directory: Path, tag: str, code: str
) -> None:
    send(broker, "A", 1, b"x", tags=tag)
    assert queue_files(directory, "A", 1)[0].read_bytes()[12:20].hex() == code
    assert string_hash(tag) == int.from_bytes(bytes.fromhex(code), "big", signed=True)


def overhead(broker: LocalBroker) -> int:
    """What a record has besides its body."""
    send(broker, "A", 0, b"x")
    return messages_of(broker.topic("A").queues[0])[-1].store_size - 1


@pytest.mark.parametrize(("spare", "fits"), [(8, True), (7, False), (9, True)])
def test_a_record_fits_if_eight_bytes_are_left_behind_it(
    broker: LocalBroker, directory: Path, spare: int, fits: bool
) -> None:
    rest = overhead(broker)
    end = log_offset_of(send(broker, "A", 0, b"x")) + rest + 1
    body = b"y" * (LOG_FILE_SIZE - end - spare - rest)
    sent = send(broker, "A", 0, body)
    assert log_offset_of(sent) == (end if fits else LOG_FILE_SIZE)
    following = send(broker, "A", 0, b"z")
    files = log_files(directory)
    if fits:
        assert log_offset_of(following) == LOG_FILE_SIZE
        assert files[0].read_bytes()[-spare:] == blank(spare) + bytes(spare - 8)
    else:
        left = LOG_FILE_SIZE - end
        assert files[0].read_bytes()[-left:] == blank(left) + bytes(left - 8)
    assert [message.body for message in messages_of(broker.topic("A").queues[0])] == [b"x", b"x", body, b"z"]


@pytest.mark.parametrize(("spare", "fits"), [(8, True), (7, False)])
def test_a_batch_is_never_parted(broker: LocalBroker, spare: int, fits: bool) -> None:
    rest = overhead(broker)
    room = LOG_FILE_SIZE - (rest + 1) - spare
    bodies = [b"a" * 1000, b"b" * 1000, b"c" * (room - 2000 - 3 * rest)]
    sent = append_many(broker, "A", 0, [mq.Message("A", body) for body in bodies])
    stored = messages_of(broker.topic("A").queues[0])[1:]
    assert stored[0].log_offset == (rest + 1 if fits else LOG_FILE_SIZE)
    assert [message.body for message in stored] == bodies
    assert [message.offset_msg_id for message in stored] == sent.offset_msg_id.split(",")


def test_what_no_file_could_hold_is_refused_and_leaves_nothing(broker: LocalBroker, directory: Path) -> None:
    rest = overhead(broker)
    largest = LOG_FILE_SIZE - 8 - rest
    with pytest.raises(mq.MessageTooLarge):
        send(broker, "A", 0, b"x" * (largest + 1))
    with pytest.raises(mq.MessageTooLarge):
        append_many(broker, "A", 0, [mq.Message("A", b"x" * 3000), mq.Message("A", b"x" * 3000)])
    assert send(broker, "A", 0, b"x" * largest).queue_offset == 1
    files = written(directory)
    assert len(files) == 2


def test_a_retry_topic_of_the_longest_group_is_still_of_the_first_version(broker: LocalBroker) -> None:
    topic = "%RETRY%" + 120 * "g"
    broker.publishable(topic)
    send(broker, topic, 0, b"again")
    (message,) = read(broker, topic, 0)
    assert message.record[4:8].hex() == "daa320a7"
    assert message.topic == topic
    assert message.record == encoded_again(message)


@pytest.mark.parametrize("size", [128, 130, 255])
def test_longer_names_make_records_of_the_second_version(
    broker: LocalBroker, directory: Path, size: int
) -> None:
    name = b"t" * size
    log = store_of(broker).log
    number = lib.mq_log_queue(log, name, size, 3, 1)
    receipt = ffi.new("mq_receipt *")
    envelope = ffi.new(
        "mq_append_options *",
        {
            "born_time": BORN_TIME,
            "reconsume_times": 7,
            "prepared_offset": 12345,
            "has_born_host": 1,
            "born_host": BORN_HOST,
        },
    )
    body, encoded = b"longtopic", properties(TAGS="TagA")
    result = lib.mq_append(
        log, number, -1, 5, 0x10, body, len(body), encoded, len(encoded), ffi.NULL, envelope, receipt
    )
    assert result == 0
    buffer, needed = ffi.new("char[]", 4096), ffi.new("int64_t *")
    length = lib.mq_log_record(log, receipt.log_offset, buffer, 4096, needed)
    message = mq.MessageExt(ffi.buffer(buffer, length)[:], "mq")
    assert message.record[4:8].hex() == "daa320ab"
    assert (message.topic, message.queue_id, message.body) == (name.decode(), 3, body)
    assert (message.born_time_ms, message.reconsume_times, message.prepared_transaction_offset) == (
        BORN_TIME,
        7,
        12345,
    )
    assert message.born_host == "[2001:db8::1]:51000"
    assert message.record == encoded_again(message)
    stored = queue_files(directory, name.decode(), 3)[0].read_bytes()[:20]
    assert stored == unit(message.log_offset, message.store_size, string_hash("TagA"))


@pytest.mark.parametrize(("sys_flag", "has_unit"), [(0, True), (4, False), (8, True), (12, False)])
def test_prepared_and_rolled_back_records_have_no_unit(
    broker: LocalBroker, sys_flag: int, has_unit: bool
) -> None:
    log = store_of(broker).log
    number = lib.mq_log_queue(log, b"A", 1, 0, 1)
    receipt = ffi.new("mq_receipt *")
    send(broker, "A", 0, b"before")
    assert lib.mq_append(log, number, -1, 0, sys_flag, b"x", 1, b"", 0, ffi.NULL, ffi.NULL, receipt) == 0
    assert broker.topic("A").queues[0].max_offset == 1 + has_unit
    assert receipt.queue_offset == (1 if has_unit else 0)


OURS = bytes.fromhex("7f00000100002a9f")
A_STORES = bytes.fromhex("7f0a0b0c00002a9f")
OF_A_CLIENT = bytes.fromhex("7f0000010000c738")


def is_whole(record: Record, *, property_crc: bool = False) -> bool:
    parsed = ffi.new("mq_record *")
    memory = ffi.from_buffer("uint8_t[]", record.encode(property_crc=property_crc))
    assert lib.mq_record_parse(memory, len(memory), parsed) == len(memory)
    return bool(lib.mq_record_verify(memory, parsed) == 0)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        # mq's own without the checksum of all bytes: damaged.
        (Record("A", b"x", b"TAGS\1a\2"), False),
        (Record("A", b"x", b"TAGS\1a\2", born_host=A_STORES, store_host=A_STORES), False),
        # Made by an older version, and appended again by this one.
        (Record("A", b"x", b"TAGS\1a\2", store_host=A_STORES), False),
        # A client's message at a broker of the same address.
        (Record("A", b"x", b"TAGS\1a\2", born_host=OF_A_CLIENT), True),
        (Record("A", b"x", b"TAGS\1a\2", born_host=OF_A_CLIENT, store_host=A_STORES), True),
        # The end of a transaction, by a broker.
        (Record("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"0,1,", b"WAIT\1true\2TAGS\1d\2"), True),
        (Record("rmq_sys_wheel_timer", b"0", b"TAGS\1_RECALL_TAG_\2"), True),
        # What a broker delivers of what mq put aside: mq's hosts, and mq's checksum of other bytes.
        (Record("A", b"x", b"__CRC32#\0010123456789\2DELAY\0013\2REAL_TOPIC\1A\2REAL_QID\0010\2"), True),
        # A broker of another address writes for itself.
        (Record("A", b"x", b"TAGS\1a\2", born_host=b"\x0a" + OURS[1:], store_host=b"\x0a" + OURS[1:]), True),
    ],
)
def test_what_a_broker_writes_at_the_same_address_is_whole(record: Record, expected: bool) -> None:
    assert is_whole(record) is expected
    assert is_whole(record, property_crc=True)


def test_a_unique_id_has_host_process_time_and_count() -> None:
    ids = []
    for _ in range(3):
        buffer = ffi.new("char[]", lib.MQ_UNIQUE_ID_SIZE)
        lib.mq_unique_id(buffer)
        ids.append(bytes.fromhex(ffi.buffer(buffer)[:].decode()))
    now = time.localtime()
    month_start = time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    for unique_id in ids:
        assert unique_id[:10] == ids[0][:10]
        assert unique_id[4:6] == struct.pack(">H", os.getpid() & 0xFFFF)
        elapsed_ms = (time.time() - month_start) * 1000
        assert 0 <= elapsed_ms - int.from_bytes(unique_id[10:14], "big") < 60_000
    counts = [int.from_bytes(unique_id[14:], "big") for unique_id in ids]
    assert [(count - counts[0]) & 0xFFFF for count in counts] == [0, 1, 2]


def test_ids_never_repeat_within_a_batch_or_between_sends(broker: LocalBroker) -> None:
    ids = [send(broker, "A", 0, b"x").msg_id for _ in range(50)]
    for _ in range(3):
        ids += append_many(broker, "A", 1, [mq.Message("A", b"x")] * 10).msg_ids
    assert len(set(ids)) == 80
    assert all(re.fullmatch("[0-9A-F]{32}", unique_id) for unique_id in ids)


def test_an_id_that_is_given_is_kept(broker: LocalBroker) -> None:
    given_id = "0A000005000118B4AAC2000000000000"
    sent = append_one(broker, "A", 0, mq.Message("A", b"x"), b"x", 0, given_id)
    assert sent.msg_id == given_id
    assert broker.message(given_id).body == b"x"
