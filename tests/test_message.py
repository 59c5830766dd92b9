"""Messages: what may be in one, how its properties are encoded, and how a stored record is taken apart.

The records are those of RocketMQ's own store (tests/data/rocketmq) and the worked bytes of its format.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

import mq
from mq.filter.selection import Selection
from mq.filter.tags import parse
from mq.message import unique_id_time_ms
from mq.properties import PROPERTIES_SIZE_MAX, RESERVED_NAMES, decode
from tests.support.records import encode_record

DATA = Path(__file__).parent / "data" / "rocketmq"
STORE_HOST = bytes([10, 0, 0, 5]) + (10911).to_bytes(4, "big")
BORN_HOST = bytes([192, 168, 1, 10]) + (51000).to_bytes(4, "big")
STORE_HOST_V6 = bytes.fromhex("20010db8000000000000000000000002") + (10911).to_bytes(4, "big")
BORN_HOST_V6 = bytes.fromhex("20010db8000000000000000000000001") + (51000).to_bytes(4, "big")

# Worked records: bytes, and the values they stand for.
PLAIN = bytes.fromhex(
    "000000ae daa320a7 69c865ed 00000001 00000000 0000000000000000 0000000000000000 00000000"
    "0000018bcfe56800 c0a8010a0000c738 0000018bcfe5687b 0a00000500002a9f 00000000 0000000000000000"
    "0000000e 48656c6c6f20526f636b65744d51 06 546f70696341"
    "003f 54414753 01 54616741 02 4b455953 01 6b31206b32 02"
    "554e49515f4b4559 01 3041303030303035303030313138423441414332303030303030303030303030 02"
)
V6 = bytes.fromhex(
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
SMALLEST = bytes.fromhex(
    "00000061 daa320a7 00000000 00000001 00000000 0000000000000001 00000000000002be 00000000"
    "0000018bcfe56805 c0a8010a0000c738 0000018bcfe5687f 0a00000500002a9f 00000000 0000000000000000"
    "00000000 06 546f70696341 0000"
)


def test_a_plain_record_is_taken_apart() -> None:
    message = mq.MessageExt(PLAIN, "mq")
    assert (message.topic, message.body, message.tags, message.keys) == (
        "TopicA",
        b"Hello RocketMQ",
        "TagA",
        ("k1", "k2"),
    )
    assert (message.queue_id, message.queue_offset, message.log_offset) == (1, 0, 0)
    assert (message.flag, message.sys_flag, message.reconsume_times) == (0, 0, 0)
    assert (message.born_time_ms, message.store_time_ms) == (1700000000000, 1700000000123)
    assert (message.born_host, message.store_host) == ("192.168.1.10:51000", "10.0.0.5:10911")
    assert message.msg_id == "0A000005000118B4AAC2000000000000"
    assert message.store_size == 174
    assert message.prepared_transaction_offset == 0
    assert message.transaction_id is None
    assert message.broker_name == "mq"


def test_hosts_may_be_ipv6() -> None:
    message = mq.MessageExt(V6, "mq")
    assert (message.topic, message.body, message.tags) == ("TopicA", b"v6", "标签")
    assert (message.born_host, message.store_host) == ("[2001:db8::1]:51000", "[2001:db8::2]:10911")
    assert (message.born_time_ms, message.store_time_ms) == (1700000000002, 1700000000124)
    assert message.offset_msg_id == "20010DB800000000000000000000000200002A9F00000000000000AE"
    assert message.msg_id == message.offset_msg_id


def test_a_delayed_record_keeps_where_it_belongs() -> None:
    message = mq.MessageExt(DELAYED, "mq")
    assert (message.topic, message.queue_id, message.delay_level) == ("SCHEDULE_TOPIC_XXXX", 2, 3)
    assert message.properties == {"REAL_TOPIC": "TopicA", "DELAY": "3", "TAGS": "TagA", "REAL_QID": "1"}


def test_the_smallest_record_has_neither_body_nor_properties() -> None:
    message = mq.MessageExt(SMALLEST, "mq")
    assert (message.body, message.properties, message.tags, message.keys) == (b"", {}, None, ())
    assert message.offset_msg_id == message.msg_id == "0A00000500002A9F00000000000002BE"


def test_the_tests_own_encoder_writes_the_worked_records() -> None:
    hosts: Any = {"born_host": BORN_HOST, "store_host": STORE_HOST, "checksum": False}
    times: Any = {"born_time_ms": 1700000000000, "store_time_ms": 1700000000123}
    properties = b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02UNIQ_KEY\x010A000005000118B4AAC2000000000000\x02"
    assert encode_record("TopicA", 1, 0, 0, b"Hello RocketMQ", properties, **hosts, **times) == PLAIN
    assert (
        encode_record(
            "TopicA", 1, 1, 702, b"", b"", **hosts, born_time_ms=1700000000005, store_time_ms=1700000000127
        )
        == SMALLEST
    )
    assert (
        encode_record(
            "TopicA",
            0,
            0,
            174,
            b"v6",
            "TAGS\x01标签\x02".encode(),
            sys_flag=0x30,
            born_host=BORN_HOST_V6,
            store_host=STORE_HOST_V6,
            born_time_ms=1700000000002,
            store_time_ms=1700000000124,
            checksum=False,
        )
        == V6
    )
    long = encode_record(
        "x" * 130,
        0,
        0,
        471,
        b"longtopic",
        b"",
        **hosts,
        born_time_ms=1700000000004,
        store_time_ms=1700000000126,
    )
    assert (len(long), long[4:8], long[88:102]) == (
        231,
        bytes.fromhex("daa320ab"),
        b"longtopic\x00\x82xxx",
    )
    assert mq.MessageExt(long, "mq").topic == "x" * 130


def test_the_checksum_property_is_the_worked_one_and_no_property_to_a_reader() -> None:
    record = encode_record(
        "TopicA",
        1,
        0,
        0,
        b"Hello RocketMQ",
        b"TAGS\x01TagA\x02",
        born_host=BORN_HOST,
        store_host=STORE_HOST,
        born_time_ms=1700000000000,
        store_time_ms=1700000000123,
    )
    assert len(record) == 141
    assert record[-20:] == bytes.fromhex("5f5f435243333223 01 32373335353830353630 02")
    message = mq.MessageExt(record, "mq")
    assert message.properties == {"TAGS": "TagA"}
    assert message.encoded.endswith(record[-20:])


@pytest.mark.parametrize("store", sorted(path.parent.name for path in DATA.glob("*/expected.jsonl")))
def test_records_of_rocketmqs_own_store_are_taken_apart(store: str) -> None:
    size = json.loads((DATA / store / "sizes.json").read_text())["commitlog_file_size"]
    lines = (DATA / store / "expected.jsonl").read_text().splitlines()
    expected = [line for line in map(json.loads, lines) if line["kind"] == "message"]
    assert expected
    for line in expected:
        place, at = divmod(line["log_offset"], size)
        path = DATA / store / "store" / "commitlog" / f"{place * size:020}"
        with path.open("rb") as file:
            file.seek(at)
            message = mq.MessageExt(file.read(line["store_size"]), "broker-a")
        for name in (
            "topic",
            "queue_id",
            "queue_offset",
            "log_offset",
            "store_size",
            "flag",
            "sys_flag",
            "born_time_ms",
            "born_host",
            "store_time_ms",
            "store_host",
            "reconsume_times",
            "prepared_transaction_offset",
            "body_crc",
            "offset_msg_id",
        ):
            assert getattr(message, name) == line[name], name
        assert message.properties == {k: v for k, v in line["properties"].items() if k != "__CRC32#"}
        assert len(message.stored_body) == line["stored_body_size"]
        assert hashlib.sha256(message.stored_body).hexdigest() == line["stored_body_sha256"]
        assert len(message.body) == line["body_size"]
        assert hashlib.sha256(message.body).hexdigest() == line["body_sha256"]
        assert message.msg_id == line["properties"].get("UNIQ_KEY", line["offset_msg_id"])


def test_what_is_given_can_be_read_back() -> None:
    message = mq.Message(
        "t", b"b", tags="tag", keys=["k1", "k2"], properties={"a": "1", "größe": "groß"}, flag=5
    )
    assert (message.topic, message.body, message.tags, message.keys) == ("t", b"b", "tag", ("k1", "k2"))
    assert (message.properties, message.flag) == ({"a": "1", "größe": "groß"}, 5)
    assert (message.delay_level, message.delay_ms, message.deliver_at_ms, message.wait) == (
        0,
        None,
        None,
        True,
    )
    assert not message.delayed
    assert message.plain


def test_the_property_string_is_rocketmqs() -> None:
    tagged = mq.Message("t", b"b", tags="TagA", keys="order-1001")
    assert tagged.encoded == bytes.fromhex("54414753 01 54616741 02 4b455953 01 6f726465722d31303031 02")
    assert mq.Message("t", b"b").encoded == b""
    assert mq.Message("t", b"b", tags="t").encoded == b"TAGS\x01t\x02"
    assert mq.Message("t", b"b", keys="k").encoded == b"KEYS\x01k\x02"
    assert (
        mq.Message("t", b"b", keys=("a", "b"), properties={"x": "y"}).encoded == b"KEYS\x01a b\x02x\x01y\x02"
    )
    assert mq.Message("t", b"b", wait=False).encoded == b"WAIT\x01false\x02"
    assert mq.Message("t", b"b", delay_level=18).encoded == b"DELAY\x0118\x02"
    assert mq.Message("t", b"b", delay_ms=0).encoded == b"TIMER_DELAY_MS\x010\x02"
    assert (
        mq.Message("t", b"b", deliver_at_ms=1700000000000).encoded == b"TIMER_DELIVER_MS\x011700000000000\x02"
    )


TEXT = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20
)
VISIBLE = TEXT.filter(str.strip)
NAMES = VISIBLE.filter(lambda name: name not in RESERVED_NAMES and not name.startswith("__RMQ.TRANSIENT."))


TAGS = VISIBLE.filter(lambda tag: tag != "*" and "||" not in tag and not any(c <= " " for c in tag))


@given(
    tags=st.none() | TAGS,
    keys=st.lists(VISIBLE.filter(lambda key: " " not in key), max_size=3),
    properties=st.dictionaries(NAMES, VISIBLE, max_size=4),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    twice=st.booleans(),
)
def test_any_properties_come_back(
    tags: str | None, keys: list[str], properties: dict[str, str], flag: int, twice: bool
) -> None:
    given_keys: str | list[str] = keys[0] if len(keys) == 1 else keys
    message = mq.Message("t", b"b", tags=tags, keys=given_keys, properties=properties or None, flag=flag)
    if twice:  # the second time the tag is known, and another path is taken
        message = mq.Message("t", b"b", tags=tags, keys=given_keys, properties=properties or None, flag=flag)
    assert (message.tags, message.keys, message.properties) == (tags, tuple(keys), properties)
    stored = mq.MessageExt(encode_record("t", 0, 0, 0, b"b", message.encoded, flag=flag), "mq")
    assert (stored.tags, stored.keys, stored.flag) == (tags, tuple(keys), flag)
    expected = dict(properties)
    if tags is not None:
        expected["TAGS"] = tags
    if keys:
        expected["KEYS"] = " ".join(keys)
    assert stored.properties == expected


@given(st.binary(max_size=60))
def test_any_property_string_decodes_by_the_rules_for_readers(encoded: bytes) -> None:
    expected = {}
    for piece in encoded.decode("utf-8", "replace").split("\x02"):
        if len(piece) >= 3 and "\x01" in piece[1:-1] and not piece.startswith("\x01"):
            name, value = piece.split("\x01", 1)
            if value:
                expected[name] = value
    assert decode(encoded) == expected


def test_of_equal_names_the_last_counts() -> None:
    encoded = b"TAGS\x01a\x02x\x01TAGS\x02TAGS\x01b\x02KEYS\x01k"
    stored = mq.MessageExt(encode_record("t", 0, 0, 0, b"b", encoded, checksum=False), "mq")
    assert (stored.tags, stored.keys) == ("b", ("k",))
    assert stored.properties["TAGS"] == "b"


@pytest.mark.parametrize("tags", ["Tag", None])
@pytest.mark.parametrize(
    "arguments",
    [
        {"keys": ""},
        {"keys": " "},
        {"keys": "a b"},
        {"keys": ["a b"]},
        {"keys": ["a", ""]},
        {"keys": "a\x01"},
        {"keys": ["\x02"]},
        {"keys": "\ud800"},
        {"properties": {"": "v"}},
        {"properties": {" ": "v"}},
        {"properties": {"n": ""}},
        {"properties": {"n": " "}},
        {"properties": {"n\x01": "v"}},
        {"properties": {"n": "v\x02"}},
        {"properties": {"n": "\udfff"}},
        {"properties": {"__RMQ.TRANSIENT.x": "v"}},
        {"properties": {"n": "v" * PROPERTIES_SIZE_MAX}},
        {"properties": {"n": "ß" * (PROPERTIES_SIZE_MAX // 2)}},
        {"keys": "k" * PROPERTIES_SIZE_MAX},
        {"keys": ["k" * 100] * 330},
        {"flag": 1 << 31},
        {"flag": -(1 << 31) - 1},
        {"delay_level": -1},
        {"delay_level": 19},
        {"delay_ms": -1},
        {"deliver_at_ms": -1},
        {"deliver_at_ms": 1 << 63},
        {"delay_ms": 1 << 70},
        {"delay_level": 1, "delay_ms": 5},
        {"delay_level": 1, "deliver_at_ms": 5},
        {"delay_ms": 0, "deliver_at_ms": 0},
    ],
)
def test_what_the_format_has_no_room_for_is_refused(arguments: dict[str, Any], tags: str | None) -> None:
    for _ in range(2):
        with pytest.raises(mq.MessageInvalid):
            mq.Message("topic", b"body", tags=tags, **arguments)


@pytest.mark.parametrize("tags", ["", " ", "a\x01b", "a\x02", "\ud800", "t" * PROPERTIES_SIZE_MAX])
def test_a_tag_that_no_reader_could_see_is_refused(tags: str) -> None:
    with pytest.raises(mq.MessageInvalid):
        mq.Message("topic", b"body", tags=tags, keys="k")


@pytest.mark.parametrize("tags", ["*", "a||b", "||", "a b", " a", "a ", "a\tb", "a\n", "\x03"])
def test_a_tag_that_no_expression_can_name_is_refused(tags: str) -> None:
    for _ in range(2):  # the second time, if it had been accepted, it would be known
        with pytest.raises(mq.MessageInvalid, match="where it"):
            mq.Message("t", b"b", tags=tags, keys="k")


@given(TEXT | st.text("a*| \t", min_size=1, max_size=4))
def test_a_tag_that_is_accepted_is_selected_by_its_name_alone(tags: str) -> None:
    try:
        message = mq.Message("t", b"b", tags=tags)
    except mq.MessageInvalid:
        return
    parsed = parse(message.tags)
    assert parsed is not None
    assert parsed.tags == {tags}


def test_a_stored_tag_of_any_kind_is_read() -> None:
    for tags in ("*", "a||b", "a b", " "):
        stored = mq.MessageExt(encode_record("t", 0, 0, 0, b"b", f"TAGS\x01{tags}\x02".encode()), "mq")
        assert stored.tags == tags
    assert Selection.of("x || a b").keep([stored]) == []


@pytest.mark.parametrize("keys", [5, None, b"k", 1.5])
def test_keys_that_are_no_text_are_told_in_words(keys: Any) -> None:
    for tags in ("Tag", None):
        with pytest.raises(TypeError, match=r"keys is a str, or several in a list, not "):
            mq.Message("t", b"b", tags=tags, keys=keys)
    with pytest.raises(TypeError, match="a key must be a str, not int"):
        mq.Message("t", b"b", keys=[5])  # type: ignore[list-item]  # what is to be refused


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_rocketmqs_own_names_cannot_be_set(name: str) -> None:
    with pytest.raises(mq.MessageInvalid, match="reserved"):
        mq.Message("topic", b"body", properties={name: "v"})


def test_a_dedup_key_is_no_property_of_the_users() -> None:
    with pytest.raises(mq.MessageInvalid, match="dedup_key="):
        mq.Message("topic", b"body", properties={"DEDUP_KEY": "other"}, dedup_key="key")
    message = mq.Message("topic", b"body", properties={"p": "q"}, keys="k", dedup_key="key")
    assert message.properties == {"p": "q"}
    assert message.without_wait().properties == {"p": "q"}
    assert message.without_wait().dedup_key == "key"
    assert message.without_wait().keys == message.keys == ("k", "key")


@pytest.mark.parametrize(
    "arguments",
    [
        {"body": "text"},
        {"body": None},
        {"body": 5},
        {"body": [1, 2]},
        {"topic": 5},
        {"topic": None},
        {"topic": b"t"},
        {"topic": ["t"]},
        {"tags": 5},
        {"tags": b"t"},
        {"tags": ["a", "b"]},
        {"keys": 5},
        {"keys": [5]},
        {"keys": b"ab"},
        {"properties": {"n": 5}},
        {"properties": {5: "v"}},
        {"flag": "1"},
        {"flag": 1.5},
        {"delay_level": "1"},
        {"delay_ms": 1.5},
        {"delay_level": True},
        {"delay_ms": True},
        {"deliver_at_ms": False},
        {"deliver_at_ms": "5"},
        {"wait": None},
        {"wait": 1},
    ],
)
def test_a_wrong_type_is_a_type_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        mq.Message(**{"topic": "topic", "body": b"body", "tags": "t", "keys": "k", **arguments})


@pytest.mark.parametrize("body", [b"", bytearray(), memoryview(b"")])
def test_a_body_has_at_least_one_byte(body: bytes) -> None:
    with pytest.raises(mq.MessageInvalid):
        mq.Message("topic", body)


def test_a_body_that_may_change_is_copied() -> None:
    body = bytearray(b"body")
    messages = [mq.Message("topic", body), mq.Message("topic", memoryview(body)[1:3])]
    body[:] = b"xxxx"
    assert [message.body for message in messages] == [b"body", b"od"]


@pytest.mark.parametrize("topic", ["", "a.b", "a b", "x" * 128, "größe", "a\n", "\x00"])
def test_a_topic_outside_of_rocketmqs_rule_is_refused(topic: str) -> None:
    for _ in range(2):
        with pytest.raises(mq.TopicInvalid):
            mq.Message(topic, b"body")


def test_properties_up_to_the_limit_are_taken() -> None:
    room = PROPERTIES_SIZE_MAX - len("TAGS\x01t\x02n\x01\x02")
    assert len(mq.Message("t", b"b", tags="t", properties={"n": "v" * room}).encoded) == PROPERTIES_SIZE_MAX
    with pytest.raises(mq.MessageInvalid, match="limit"):
        mq.Message("t", b"b", tags="t", properties={"n": "v" * (room + 1)})


def test_only_a_message_without_wait_or_delay_is_plain() -> None:
    assert mq.Message("t", b"b", flag=3, properties={"a": "b"}).plain
    for arguments in ({"wait": False}, {"delay_level": 1}, {"delay_ms": 0}, {"deliver_at_ms": 5}):
        message = mq.Message("t", b"b", tags="x", **arguments)
        assert not message.plain
        assert message.delayed == ("wait" not in arguments)
        assert message.wait == ("wait" not in arguments)


def test_without_wait_is_the_same_message_otherwise() -> None:
    message = mq.Message("t", b"b", tags="x", keys=["a", "b"], properties={"p": "q"}, flag=3)
    eager = message.without_wait()
    assert (eager.wait, message.wait) == (False, True)
    assert (eager.body, eager.tags, eager.keys, eager.properties, eager.flag) == (
        b"b",
        "x",
        ("a", "b"),
        {"p": "q"},
        3,
    )
    assert eager.without_wait() is eager


def test_messages_are_values() -> None:
    first, second = (mq.Message("t", b"b", tags="x", keys="k") for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != mq.Message("t", b"b", tags="y", keys="k")
    assert first != mq.Message("t", b"c", tags="x", keys="k")
    assert first != "t"
    assert pickle.loads(pickle.dumps(first)) == first
    stored = mq.MessageExt(PLAIN, "mq")
    assert pickle.loads(pickle.dumps(stored)) == stored
    assert stored != mq.MessageExt(PLAIN, "other")
    assert stored != mq.MessageExt(V6, "mq")
    assert "Hello RocketMQ" in repr(stored)
    assert "'TAGS': 'x'" in repr(first)


def test_what_a_message_was_made_from_cannot_be_reassigned() -> None:
    message = mq.Message("t", b"b", tags="x")
    for name in ("tags", "keys", "properties", "wait", "delay_level", "anything"):
        with pytest.raises(AttributeError):
            setattr(message, name, "y")


NOVEMBER = 1698796800000  # 2023-11-01 00:00 UTC


def test_a_unique_id_says_when_it_was_made() -> None:
    assert unique_id_time_ms("C0A8010A303918B4AAC247B7607B0007", 1700000000123) == 1700000000123
    assert (
        unique_id_time_ms("C0A80102123418B4AAC2075BCD150007", NOVEMBER + 20 * 86_400_000)
        == NOVEMBER + 123456789
    )
    v6 = "20010DB8000000000000000000000001" + "303918B4AAC2" + "47B7607B" + "0007"
    assert unique_id_time_ms(v6, 1700000000123) == 1700000000123


def test_a_unique_id_of_later_in_the_month_than_now_is_of_the_month_before() -> None:
    october = NOVEMBER - 31 * 86_400_000
    made = f"{29 * 86_400_000:08X}"
    assert (
        unique_id_time_ms("C0A8010A303918B4AAC2" + made + "0007", NOVEMBER + 5) == october + 29 * 86_400_000
    )


@pytest.mark.parametrize(
    "text", ["", "x", "0" * 31, "G" * 32, "F" * 32, "C0A8010A303918B4AAC2FFFFFFFF0007", "é" * 32]
)
def test_what_is_no_unique_id_has_no_time(text: str) -> None:
    assert unique_id_time_ms(text, 1700000000123) is None
