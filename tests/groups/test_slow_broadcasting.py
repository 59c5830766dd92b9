"""What a broadcasting consumer has not read is not taken away unnoticed, while it is away as well."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.api.retention import Unread
from mq.broker.local import LocalBroker
from tests.support import assigned
from tests.support.recording_listener import Heard
from tests.support.store.small_store import LOG_FILE_SIZE, open_small, send

GROUP = "caches"


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory) as broker:
        broker.create_topic("orders", 2)
        yield broker


def filled(broker: LocalBroker, count: int = 2) -> None:
    for number in range(count):
        send(broker, "orders", number % 2, b"%d" % number)


def consume(broker: LocalBroker, count: int, client_id: str = "box", **options: Any) -> list[bytes]:
    heard = Heard()
    options = {"model": "broadcasting", "client_id": client_id, "threads": 1, **options}
    with mq.PushConsumer(broker, GROUP, **options) as consumer:
        consumer.subscribe("orders", listener=heard)
        consumer.start()
        heard.wait(count)
    return heard.bodies


def all_read_by_billing(broker: LocalBroker) -> None:
    for queue in broker.topic("orders").queues:
        assigned.commit(broker, "billing", queue.message_queue, queue.max_offset)


def read_count(broker: LocalBroker) -> int:
    return len(broker.topic("orders").queues)


def test_a_queue_that_it_has_not_read_stays(broker: LocalBroker) -> None:
    filled(broker)
    consume(broker, 2)
    filled(broker)
    all_read_by_billing(broker)
    with pytest.raises(mq.NotPermitted, match=r"queue 1 holds 1 message .* by the group caches"):
        broker.create_topic("orders", 1)
    consume(broker, 2)
    broker.create_topic("orders", 1)
    assert read_count(broker) == 1


def test_the_slowest_consumer_of_the_group_counts(broker: LocalBroker) -> None:
    filled(broker)
    consume(broker, 2, "slow")
    filled(broker)
    consume(broker, 4, "fast")
    all_read_by_billing(broker)
    with pytest.raises(mq.NotPermitted, match=r"queue 1 holds 1 message .* by the group caches"):
        broker.create_topic("orders", 1)


def test_offsets_of_a_topic_of_before_count_for_nothing(broker: LocalBroker) -> None:
    filled(broker, 8)
    consume(broker, 8)
    broker.delete_topic("orders")
    broker.create_topic("orders", 2)
    filled(broker)
    all_read_by_billing(broker)
    with pytest.raises(mq.NotPermitted, match="by the group caches"):
        broker.create_topic("orders", 1)


def test_offsets_that_cannot_be_read_are_those_of_before(broker: LocalBroker, directory: Path) -> None:
    filled(broker)
    consume(broker, 2)
    filled(broker)
    consume(broker, 2)
    (directory / "mq" / "broadcast" / GROUP / "box" / "offsets.json").write_text("{")
    all_read_by_billing(broker)
    with pytest.raises(mq.NotPermitted, match="by the group caches"):
        broker.create_topic("orders", 1)
    for file in (directory / "mq" / "broadcast" / GROUP / "box").glob("offsets*"):
        file.unlink()
    broker.create_topic("orders", 1)


def test_a_group_that_clusters_by_now_goes_by_its_own_offsets(broker: LocalBroker) -> None:
    filled(broker)
    consume(broker, 2)
    filled(broker)
    with mq.PullConsumer(broker, GROUP, consume_from="last") as consumer:
        consumer.subscribe("orders")
        assert consumer.poll(0) == []
        broker.create_topic("orders", 1)


@pytest.fixture
def expired(broker: LocalBroker) -> LocalBroker:
    """With one consumer that has read two messages of many, which retention is about to delete."""
    filled(broker)
    consume(broker, 2)
    body = bytes(LOG_FILE_SIZE // 4)
    for number in range(2, 12):
        send(broker, "orders", number % 2, body)
    all_read_by_billing(broker)
    return broker


def test_retention_names_it(expired: LocalBroker, caplog: pytest.LogCaptureFixture) -> None:
    unread = expired.retention.expiring(hours=0).unread
    assert {(each.group, each.queue_id, each.first) for each in unread} == {(GROUP, 0, 1), (GROUP, 1, 1)}
    with caplog.at_level(logging.WARNING, "mq"):
        expired.expire(retention_hours=0)
    assert [record for record in caplog.records if f"group {GROUP} had not read" in record.getMessage()]


def test_retention_does_not_name_it_for_what_it_has_read(expired: LocalBroker) -> None:
    consume(expired, 10)
    assert expired.retention.expiring(hours=0).unread == ()


def test_retention_names_it_for_messages_that_are_not_due_yet(directory: Path) -> None:
    with open_small(directory, message_delay_level="1000s") as broker:
        broker.create_topic("orders", 2)
        filled(broker)
        consume(broker, 2)
        broker.topic("orders").send(b"late", delay_level=1)
        for _ in range(8):
            send(broker, "others", 0, bytes(LOG_FILE_SIZE // 4))
        unread = broker.retention.expiring(hours=0).unread
        assert unread == (Unread(GROUP, "SCHEDULE_TOPIC_XXXX", 0, 0, 0),)
