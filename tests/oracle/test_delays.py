"""Delayed messages between mq and RocketMQ's library: put aside by one, found, or delivered, by the other.

The library has the store alone; what delivers is RocketMQ's broker, which goes by the time in each queue
unit and by delayOffset.json. So those are looked at for the one way; for the other, mq delivers what the
library stored.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

import mq
from mq.store.directory.delay_levels import LEVELS, parse_levels
from tests.oracle.agreement import assert_library_looks_up, messages_of, string_hash
from tests.oracle.sending import SIZES, open_store
from tests.support import assigned, oracle

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(600)]

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


@pytest.fixture
def waiting(directory: Path) -> Path:
    """A closed store of mq's: one message waits in each level but the first, whose own was delivered."""
    with open_store(directory) as broker:
        topic = broker.create_topic("orders", 4)
        with mq.Producer(broker) as producer:
            for level in range(1, 19):
                queue = mq.MessageQueue("orders", broker.name, level % 4)
                message = mq.Message("orders", b"%d" % level, tags="t", keys=f"k{level}", delay_level=level)
                producer.send(message, queue=queue)
        (came,) = topic.queues[1].read(0, wait=60.0).messages
        assigned.send_back(broker, came, "billing")
        assigned.send_back(broker, came, "billing", delay_level=-1)
    return directory


@pytest.mark.parametrize("lost", [None, "consumequeue"])
def test_the_library_finds_what_waits_and_when_it_is_due(
    waiting: Path, tmp_path: Path, lost: str | None
) -> None:
    if lost is not None:
        shutil.rmtree(waiting / lost)
        (waiting / "abort").touch()
    report = oracle.read(Path(shutil.copytree(waiting, tmp_path / "copy")), SIZES)
    assert_library_looks_up(report)
    for level, delay in enumerate(parse_levels(LEVELS), start=1):
        records = report.queue(SCHEDULE, level - 1)
        assert len(records) == (2 if level == 3 else 1)
        for record in records:
            assert record.tags_code == record.store_time_ms + delay
            assert record.properties["DELAY"] == str(level)
        assert records[0].properties["REAL_TOPIC"] == "orders"
        assert records[0].properties["REAL_QID"] == str(level % 4)
    again = report.queue(SCHEDULE, 2)[1]
    assert (again.properties["REAL_TOPIC"], again.reconsume_times) == ("%RETRY%billing", 1)
    (delivered,) = report.queue("orders", 1)
    assert delivered.tags_code == string_hash("t")
    (dead,) = report.queue("%DLQ%billing", 0)
    assert (dead.properties["RETRY_TOPIC"], dead.reconsume_times) == ("orders", 1)
    assert dead.properties["ORIGIN_MESSAGE_ID"] == delivered.offset_msg_id


def test_the_offsets_say_what_was_delivered(waiting: Path) -> None:
    content = json.loads((waiting / "config" / "delayOffset.json").read_text())
    with open_store(waiting, read_only=True) as broker:
        # A slow machine may have come to deliver the next level as well.
        delivered = [
            message.body.decode()
            for queue in broker.topic("orders").queues
            for message in messages_of(broker, "orders", queue.queue_id)
        ]
    assert "1" in delivered
    assert content["offsetTable"] == dict.fromkeys(delivered, 1)


def test_mq_delivers_what_the_library_left_waiting(directory: Path) -> None:
    """Stored now, so due in a second, in five, and in two hours; and one that delayOffset.json counts as
    delivered, of which the log has no delivery: the file is of a newer log."""
    unique_id = "C0A8010A303918B4AAC247B7607B"
    steps = [
        oracle.put(
            SCHEDULE,
            b"%d" % number,
            queue_id=level - 1,
            properties={
                "REAL_TOPIC": "orders",
                "REAL_QID": "1",
                "DELAY": str(level),
                "TAGS": "t",
                "UNIQ_KEY": f"{unique_id}{number:04X}",
            },
            reconsume_times=number,
        )
        for number, level in enumerate((1, 1, 2, 18))
    ]
    stored = oracle.write(directory, SIZES, [oracle.put("orders", b"plain", queue_id=1), *steps])
    (directory / "config").mkdir()
    (directory / "config" / "delayOffset.json").write_text(
        '{\n\t"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},\n\t"offsetTable":{1:1\n\t}\n}'
    )
    with open_store(directory) as broker:
        queue = broker.topic("orders").queues[1]
        found: list[mq.MessageExt] = []
        until = time.monotonic() + 60
        while len(found) < 4:
            assert time.monotonic() < until
            found += queue.read(len(found), wait=1.0).messages
        assert [message.body for message in found] == [b"plain", b"0", b"1", b"2"]
        for message, record, delay in zip(found[1:], stored[1:4], (1000, 1000, 5000), strict=True):
            assert message.store_time_ms > record.store_time_ms + delay
            assert message.properties == record.properties
            assert (message.born_host, message.born_time_ms) == (record.born_host, record.born_time_ms)
            assert message.reconsume_times == record.reconsume_times
        assert len(queue.read(1, expression="t").messages) == 3
    report = oracle.read(directory, SIZES)
    assert_library_looks_up(report)
    assert [record.tags_code for record in report.queue("orders", 1)[1:]] == [string_hash("t")] * 3
