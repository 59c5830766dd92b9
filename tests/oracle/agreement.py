"""What mq and RocketMQ's library must agree on: every field of every message, however it is found."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import mq
from tests.support.oracle import Record, Report

FIELDS = (
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
)
ROLLBACK = 0xC
QUERY_COUNT_MAX = 1024


def facts(message: mq.MessageExt) -> dict[str, Any]:
    """One message as mq sees it."""
    found = {field: getattr(message, field) for field in FIELDS}
    found["body"] = hashlib.sha256(message.body).hexdigest()
    found["properties"] = message.properties
    return found


def expected_facts(record: Record) -> dict[str, Any]:
    """The same as the library sees it; the checksum of the record is no property to mq."""
    expected = {field: getattr(record, field) for field in FIELDS}
    expected["body"] = record.body_sha256
    expected["properties"] = {name: value for name, value in record.properties.items() if name != "__CRC32#"}
    return expected


def queue_of(broker: mq.Broker, topic: str, queue_id: int) -> mq.Queue:
    (queue,) = (queue for queue in broker.topic(topic).queues if queue.queue_id == queue_id)
    return queue


def messages_of(broker: mq.Broker, topic: str, queue_id: int) -> Iterator[mq.MessageExt]:
    """All messages of a queue, pulled from its first offset on."""
    queue = queue_of(broker, topic, queue_id)
    offset = queue.min_offset
    while (pulled := queue.read(offset)).status is mq.PullStatus.FOUND:
        yield from pulled.messages
        assert pulled.next_offset > offset
        offset = pulled.next_offset
    assert offset == queue.max_offset


def assert_mq_finds(broker: mq.Broker, report: Report) -> None:
    """mq finds what the library found: by queue offset, by key, by unique id and by offset id."""
    for (topic, queue_id), (min_offset, max_offset) in report.queues.items():
        queue = queue_of(broker, topic, queue_id)
        assert (topic, queue_id, queue.min_offset, queue.max_offset) == (
            topic,
            queue_id,
            min_offset,
            max_offset,
        )
        found = [facts(message) for message in messages_of(broker, topic, queue_id)]
        assert found == [expected_facts(record) for record in report.queue(topic, queue_id)]
    assert_mq_looks_up(broker, [*report.records, *report.unqueued])


def assert_mq_looks_up(broker: mq.Broker, records: Iterable[Record]) -> None:
    """mq finds the records, and no others, by each of their words, and each by its id."""
    log_offsets: dict[tuple[str, str], set[int]] = {}
    for record in records:
        assert facts(broker.message(record.offset_msg_id)) == expected_facts(record)
        if record.sys_flag & ROLLBACK == ROLLBACK:
            continue  # never indexed
        for key in record.keys:
            log_offsets.setdefault((record.topic, key), set()).add(record.log_offset)
    for (topic, key), expected in log_offsets.items():
        found = broker.query(topic, key, count_max=QUERY_COUNT_MAX)
        assert (topic, key, {message.log_offset for message in found}) == (topic, key, expected)
        assert len(found) == len(expected)


def string_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, with the sign of 32 bits."""
    units = text.encode("utf-16-be")
    total = 0
    for at in range(0, len(units), 2):
        total = (31 * total + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return total - (1 << 32) if total >> 31 else total


def assert_library_looks_up(report: Report) -> None:
    """The library finds what it read from the queues also by each word and by each id.

    It may find more: it compares hashes, not words, and finds twice what a recovery indexed twice.
    """
    assert report.missing == []
    assert report.damaged == []
    for record in [*report.records, *report.unqueued]:
        assert report.by_id[record.offset_msg_id] == record.log_offset
        if record.sys_flag & ROLLBACK == ROLLBACK:
            continue
        for key in record.keys:
            assert record.log_offset in report.by_key[record.topic, key], (record.topic, key)
