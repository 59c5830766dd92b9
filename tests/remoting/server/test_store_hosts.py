"""Records as a client gets them: with the address that it has connected to, and checksums that fit."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mq.message import MessageExt
from mq.remoting.server.store_hosts import StoreHosts, packed
from mq.store.log.records import split_records, with_store_host
from tests.support.memory.broker import MemoryBroker
from tests.support.records import STORE_HOST, encode_record, encoded

HOST = packed("10.1.2.3", 10912) or b""
V6_HOST = bytes(range(16)) + (10911).to_bytes(4, "big")
records = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["orders", "t" * 200]),
        "queue_id": st.integers(0, 9),
        "queue_offset": st.integers(0, 1 << 40),
        "log_offset": st.integers(0, 1 << 40),
        "body": st.binary(max_size=300),
        "properties": st.sampled_from([{}, {"KEYS": "k1 k2"}, {"TAGS": "t" * 100, "a": "b"}]).map(encoded),
        "checksum": st.booleans(),
        "store_host": st.sampled_from([STORE_HOST, HOST, packed("1.2.3.4", 1) or b""]),
    }
)


def stored(**fields: Any) -> MessageExt:
    return MessageExt(encode_record(**fields), "mq")


@given(st.lists(records, max_size=5))
def test_nothing_changes_but_host_and_checksum(fields: list[dict[str, Any]]) -> None:
    sent = StoreHosts(MemoryBroker()).records([stored(**each) for each in fields], HOST)
    assert sent == b"".join(encode_record(**{**each, "store_host": HOST}) for each in fields)
    assert len(split_records(sent)) == len(fields)


def test_without_a_host_nothing_changes() -> None:
    messages = [stored(**FIELDS) for _ in range(3)]
    hosts = StoreHosts(MemoryBroker())
    assert hosts.records(messages, None) == b"".join(message.record for message in messages)
    assert hosts.records([], HOST) == b""


def test_addresses_of_ipv6_are_kept() -> None:
    kept = [
        encode_record(**FIELDS, sys_flag=0x10, born_host=V6_HOST),
        encode_record(**FIELDS, sys_flag=0x20, store_host=V6_HOST),
    ]
    changed = encode_record(**FIELDS, store_host=HOST)
    assert with_store_host(kept[0] + encode_record(**FIELDS) + kept[1], HOST) == kept[0] + changed + kept[1]


def test_the_ids_of_a_first_try_get_the_host_as_well() -> None:
    def of(host: bytes) -> bytes:
        names = "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID"
        properties = {name: (host + bytes(8)).hex().upper() for name in names}
        return encode_record(**{**FIELDS, "properties": encoded(properties)}, store_host=host)

    messages = [MessageExt(of(STORE_HOST), "mq"), stored(**FIELDS)]
    sent = StoreHosts(MemoryBroker()).records(messages, HOST)
    assert sent == of(HOST) + encode_record(**FIELDS, store_host=HOST)


def test_hosts_that_were_seen_find_messages() -> None:
    with MemoryBroker() as store:
        topic = store.create_topic("orders", 1)
        sent = topic.send(b"x")
        hosts = StoreHosts(store)
        messages = list(topic.queues[0].read(0).messages)
        hosts.records(messages, HOST)
        assert hosts.message(messages[0].log_offset).msg_id == sent.msg_id


@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_a_damaged_record_is_left_as_it_is(fields: list[dict[str, Any]], data: st.DataObject) -> None:
    noise = bytearray(b"".join(encode_record(**each) for each in fields))
    for _ in range(data.draw(st.integers(0, 4))):
        noise[data.draw(st.integers(0, len(noise) - 1))] = data.draw(st.integers(0, 255))
    del noise[data.draw(st.integers(0, len(noise))) :]
    changed = with_store_host(bytes(noise), HOST)
    assert len(changed) == len(noise)
    first_size = int.from_bytes(noise[:4], "big", signed=True)
    if first_size > len(noise) or first_size < 0:
        assert changed == noise


FIELDS: dict[str, Any] = {
    "topic": "orders",
    "queue_id": 1,
    "queue_offset": 2,
    "log_offset": 3,
    "body": b"body",
    "properties": encoded({"KEYS": "k"}),
}
