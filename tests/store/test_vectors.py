"""The worked examples of the format, laid out as a store: every field is read, every bit of damage noticed.

They check the second encoder (encoder.py) as well, which is what mq's own records are compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mq
from mq.broker.local import LocalBroker
from mq.properties import decode
from mq.store.directory.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from mq.store.native import ffi, lib
from tests.support.store.encoder import Record, crc, properties
from tests.support.store.small_store import (
    LOG_FILE_SIZE,
    log_files,
    log_offset_of,
    open_small,
    queue_files,
    recovered,
    send,
)

BORN, STORED = bytes.fromhex("c0a8010a0000c738"), bytes.fromhex("0a00000500002a9f")
BORN_6 = bytes.fromhex("20010db8000000000000000000000001 0000c738")
STORED_6 = bytes.fromhex("20010db8000000000000000000000002 00002a9f")
T = 1700000000000
LONG_TOPIC = 130 * "x"
PLAIN = bytes.fromhex(
    "000000ae daa320a7 69c865ed 00000001 00000000 0000000000000000 0000000000000000 00000000"
    "0000018bcfe56800 c0a8010a0000c738 0000018bcfe5687b 0a00000500002a9f 00000000 0000000000000000"
    "0000000e 48656c6c6f20526f636b65744d51 06 546f70696341"
    "003f 54414753 01 54616741 02 4b455953 01 6b31206b32 02"
    "554e49515f4b4559 01 3041303030303035303030313138423441414332303030303030303030303030 02"
)
IPV6 = bytes.fromhex(
    "00000087 daa320a7 77065916 00000000 00000000 0000000000000000 00000000000000ae 00000030"
    "0000018bcfe56802 20010db8000000000000000000000001 0000c738 0000018bcfe5687c"
    "20010db8000000000000000000000002 00002a9f 00000000 0000000000000000"
    "00000002 7636 06 546f70696341 000c 54414753 01 e6a087e7adbe 02"
)
DELAYED = bytes.fromhex(
    "000000a2 daa320a7 329a809b 00000002 00000000 0000000000000000 0000000000000135 00000000"
    "0000018bcfe56803 c0a8010a0000c738 0000018bcfe5687d 0a00000500002a9f 00000000 0000000000000000"
    "00000005 64656c6179 13 5343484544554c455f544f5049435f58585858"
    "002f 5245414c5f544f504943 01 546f70696341 02 44454c4159 01 33 02"
    "54414753 01 54616741 02 5245414c5f514944 01 31 02"
)
LONG = bytes.fromhex(
    "000000e7 daa320ab 408ff555 00000000 00000000 0000000000000000 00000000000001d7 00000000"
    "0000018bcfe56804 c0a8010a0000c738 0000018bcfe5687e 0a00000500002a9f 00000000 0000000000000000"
    "00000009 6c6f6e67746f706963 0082" + 130 * "78" + "0000"
)
SMALLEST = bytes.fromhex(
    "00000061 daa320a7 00000000 00000001 00000000 0000000000000001 00000000000002be 00000000"
    "0000018bcfe56805 c0a8010a0000c738 0000018bcfe5687f 0a00000500002a9f 00000000 0000000000000000"
    "00000000 06 546f70696341 0000"
)
EXAMPLES = [PLAIN, IPV6, DELAYED, LONG, SMALLEST]
UNITS = {
    ("TopicA", 0): ["00000000000000ae 00000087 00000000000d1457"],
    ("TopicA", 1): [
        "0000000000000000 000000ae 000000000027a807",
        "00000000000002be 00000061 0000000000000000",
    ],
    ("SCHEDULE_TOPIC_XXXX", 2): ["0000000000000135 000000a2 0000018bcfe58f8d"],
    (LONG_TOPIC, 0): ["00000000000001d7 000000e7 0000000000000000"],
}
CHECKPOINT = bytes.fromhex("0000018bcfe5687f 0000018bcfe5687f" + 3 * "0000000000000000") + bytes(4056)
WITH_PROPERTY_CRC = (
    bytes.fromhex("0000008d")
    + PLAIN[4:109]
    + bytes.fromhex("001e 5441475301 54616741 02 5f5f435243333223 01 32373335353830353630 02")
)


def test_the_second_encoder_makes_the_examples() -> None:
    made = [
        Record(
            "TopicA",
            b"Hello RocketMQ",
            properties(TAGS="TagA", KEYS="k1 k2", UNIQ_KEY="0A000005000118B4AAC2000000000000"),
            queue_id=1,
            born_time=T,
            born_host=BORN,
            store_time=T + 123,
            store_host=STORED,
        ),
        Record(
            "TopicA",
            b"v6",
            properties(TAGS="标签"),
            log_offset=174,
            sys_flag=0x30,
            born_time=T + 2,
            born_host=BORN_6,
            store_time=T + 124,
            store_host=STORED_6,
        ),
        Record(
            "SCHEDULE_TOPIC_XXXX",
            b"delay",
            properties(REAL_TOPIC="TopicA", DELAY="3", TAGS="TagA", REAL_QID="1"),
            queue_id=2,
            log_offset=309,
            born_time=T + 3,
            born_host=BORN,
            store_time=T + 125,
            store_host=STORED,
        ),
        Record(
            LONG_TOPIC,
            b"longtopic",
            log_offset=471,
            born_time=T + 4,
            born_host=BORN,
            store_time=T + 126,
            store_host=STORED,
        ),
        Record(
            "TopicA",
            b"",
            queue_id=1,
            queue_offset=1,
            log_offset=702,
            born_time=T + 5,
            born_host=BORN,
            store_time=T + 127,
            store_host=STORED,
        ),
    ]
    assert [record.encode() for record in made] == EXAMPLES
    with_crc = replace(made[0], properties=properties(TAGS="TagA"))
    assert with_crc.encode(property_crc=True) == WITH_PROPERTY_CRC


@pytest.fixture(params=["log alone", "log and queues", "after a crash"])
def examples(request: pytest.FixtureRequest, directory: Path) -> Iterator[LocalBroker]:
    (directory / "commitlog").mkdir(parents=True)
    (directory / "commitlog" / f"{0:020}").write_bytes(b"".join(EXAMPLES).ljust(LOG_FILE_SIZE, b"\0"))
    (directory / "checkpoint").write_bytes(CHECKPOINT)
    (directory / "lock").write_bytes(b"lock")
    if request.param == "log and queues":
        for (topic, queue_id), units in UNITS.items():
            path = directory / "consumequeue" / topic / str(queue_id) / f"{0:020}"
            path.parent.mkdir(parents=True)
            path.write_bytes(b"".join(map(bytes.fromhex, units)).ljust(4 * 20, b"\0"))
    if request.param == "after a crash":
        (directory / "abort").write_text("4711")
    # Nobody delivers the delayed example: nothing comes after the examples by itself.
    with open_small(directory, duties=False) as broker:
        yield broker
    # And the queues, found or made, are the examples'.
    for (topic, queue_id), units in UNITS.items():
        found = b"".join(path.read_bytes() for path in queue_files(directory, topic, queue_id))
        assert found == b"".join(map(bytes.fromhex, units)).ljust(4 * 20, b"\0")
    assert log_files(directory)[0].read_bytes()[:799] == b"".join(EXAMPLES)


def read(broker: LocalBroker, topic: str, queue_id: int) -> list[mq.MessageExt]:
    queue = mq.MessageQueue(topic, broker.name, queue_id)
    return list(broker.puller(queue)(0, 32, 1 << 20, None, 0.0).messages)


def test_every_field_of_the_examples_is_read(examples: LocalBroker) -> None:
    assert read(examples, "TopicA", 1)[0].record == PLAIN
    found = {
        message.log_offset: message
        for topic, queue_id in UNITS
        for message in read(examples, topic, queue_id)
    }
    assert [found[at].record for at in sorted(found)] == EXAMPLES
    plain, ipv6, delayed, long, smallest = (found[at] for at in sorted(found))

    assert (plain.topic, plain.queue_id, plain.queue_offset, plain.log_offset) == ("TopicA", 1, 0, 0)
    assert (plain.body, plain.body_crc, plain.store_size) == (b"Hello RocketMQ", 1774740973, 174)
    assert (plain.tags, plain.keys) == ("TagA", ("k1", "k2"))
    assert (plain.born_time_ms, plain.store_time_ms) == (T, T + 123)
    assert (plain.born_host, plain.store_host) == ("192.168.1.10:51000", "10.0.0.5:10911")
    assert (plain.flag, plain.sys_flag, plain.reconsume_times, plain.prepared_transaction_offset) == (
        0,
        0,
        0,
        0,
    )
    assert plain.msg_id == "0A000005000118B4AAC2000000000000"
    assert plain.properties == {"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": plain.msg_id}

    assert (ipv6.queue_id, ipv6.queue_offset, ipv6.sys_flag) == (0, 0, 0x30)
    assert (ipv6.born_host, ipv6.store_host) == ("[2001:db8::1]:51000", "[2001:db8::2]:10911")
    assert (ipv6.born_time_ms, ipv6.store_time_ms) == (T + 2, T + 124)
    assert (ipv6.body, ipv6.tags) == (b"v6", "标签")
    assert ipv6.offset_msg_id == ipv6.msg_id == "20010DB800000000000000000000000200002A9F00000000000000AE"

    assert (delayed.topic, delayed.queue_id, delayed.delay_level) == ("SCHEDULE_TOPIC_XXXX", 2, 3)
    assert delayed.properties["REAL_TOPIC"] == "TopicA"
    assert delayed.properties["REAL_QID"] == "1"

    assert (long.topic, long.body, long.properties) == (LONG_TOPIC, b"longtopic", {})

    assert (smallest.body, smallest.body_crc, smallest.properties, smallest.queue_offset) == (b"", 0, {}, 1)
    assert smallest.offset_msg_id == "0A00000500002A9F00000000000002BE"


def test_the_examples_are_found_by_key_and_by_id(examples: LocalBroker) -> None:
    assert [found.record for found in examples.query("TopicA", "k2")] == [PLAIN]
    for msg_id, record in (
        ("0A000005000118B4AAC2000000000000", PLAIN),
        ("0A00000500002A9F00000000000002BE", SMALLEST),
        ("20010DB800000000000000000000000200002A9F00000000000000AE", IPV6),
    ):
        assert examples.message(msg_id).record == record


def test_sending_goes_on_behind_the_examples(examples: LocalBroker) -> None:
    examples.create_topic("TopicB", 1)
    sent = send(examples, "TopicB", 0, b"next")
    assert (sent.queue_offset, log_offset_of(sent)) == (0, 799)
    assert read(examples, "TopicB", 0)[0].store_time_ms >= T + 127


def test_a_record_that_lies_in_another_place_than_it_says_ends_the_log(directory: Path) -> None:
    """As old bytes that were not overwritten; nothing else tells, since RocketMQ has no checksum of it."""
    elsewhere = SMALLEST[:28] + bytes.fromhex("00000000000002bf") + SMALLEST[36:]
    (directory / "commitlog").mkdir(parents=True)
    data = b"".join([*EXAMPLES[:4], elsewhere])
    (directory / "commitlog" / f"{0:020}").write_bytes(data.ljust(LOG_FILE_SIZE, b"\0"))
    with open_small(directory, duties=False) as broker:  # One of the examples is due for delivery.
        assert recovered(broker).log_end == 702
        assert [message.record for message in read(broker, "TopicA", 1)] == [PLAIN]


def test_the_checkpoint_of_the_examples(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Checkpoint(T + 127, T + 127, 0), sync=True)
    assert (tmp_path / "checkpoint").read_bytes() == CHECKPOINT
    assert read_checkpoint(tmp_path) == Checkpoint(T + 127, T + 127, 0)


def parse(data: bytes) -> int:
    """The size of the whole record at the head of these bytes, or a negative code."""
    record = ffi.new("mq_record *")
    buffer = ffi.new("uint8_t[]", data)
    size = int(lib.mq_record_parse(buffer, len(data), record))
    return size if size <= 0 else min(size, lib.mq_record_verify(buffer, record) or size)


@pytest.mark.parametrize("data", [*EXAMPLES, WITH_PROPERTY_CRC])
def test_an_example_is_a_whole_record(data: bytes) -> None:
    assert parse(data) == len(data)
    assert parse(data + b"more") == len(data)
    for size in range(len(data)):
        assert parse(data[:size]) < 0


def test_every_flipped_bit_is_noticed_where_the_record_has_a_checksum_of_its_own() -> None:
    for place in range(8 * len(WITH_PROPERTY_CRC)):
        damaged = bytearray(WITH_PROPERTY_CRC)
        damaged[place // 8] ^= 1 << place % 8
        assert parse(bytes(damaged)) < 0, place


def test_every_flipped_bit_of_the_body_is_noticed_in_any_record() -> None:
    for place in range(8 * 88, 8 * 102):
        damaged = bytearray(PLAIN)
        damaged[place // 8] ^= 1 << place % 8
        assert parse(bytes(damaged)) < 0


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_no_bytes_make_the_parser_read_beyond_them(data: bytes) -> None:
    assert parse(data) <= len(data)


@settings(max_examples=300)
@given(data=st.data())
def test_no_damaged_record_makes_the_parser_read_beyond_it(data: st.DataObject) -> None:
    damaged = bytearray(data.draw(st.sampled_from(EXAMPLES)))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    assert parse(bytes(damaged)) <= len(damaged)


def test_offset_ids_are_host_and_place() -> None:
    place = bytes.fromhex("7f00000100002a9f"), 12471
    sent = mq.SendResult(mq.SendStatus.SEND_OK, mq.MessageQueue("A", "mq", 0), 0, "", place)
    assert sent.offset_msg_id == "7F00000100002A9F00000000000030B7"


def test_checksums_have_their_sign_bit_cleared() -> None:
    assert (crc(b"hi"), crc(b"Hello RocketMQ"), crc(b"")) == (1486039724, 1774740973, 0)
    assert int(lib.mq_crc32(0, b"hi", 2)) & 0x7FFFFFFF == 1486039724


def test_property_strings_are_read_as_rocketmq_reads_them() -> None:
    example = bytes.fromhex("4b455953016f726465722d313030310254414753015461674102")
    assert decode(example) == {"KEYS": "order-1001", "TAGS": "TagA"}
    assert decode(b"a\1\2b\1x\2\1y\2z\2b\1w\1v") == {"b": "w\1v"}
