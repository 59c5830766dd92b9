"""RocketMQ's Java clients on real servers: what the tests of mq on a cluster stand on."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.support.cluster.java_clients import Came, JavaClients, RequestFailed
from tests.support.cluster.shared import SharedCluster, unique_name
from tests.support.eventually import eventually

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(600)]

WAIT = 120.0


def bodies(messages: list[Came]) -> Counter[bytes]:
    return Counter(message.body for message in messages)


def numbered(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def test_messages_go_from_a_producer_to_a_consumer_on_both_brokers(java: JavaClients) -> None:
    topic, group = unique_name("orders"), unique_name("billing")
    java.create_topic(topic, 2)
    java.consume(group, [topic])

    sent = [
        *java.send_all(topic, numbered("sync", 8)),
        *java.send_async(topic, numbered("async", 8)),
        java.send_batch(topic, numbered("batch", 8)),
    ]
    java.send_oneway(topic, b"oneway")
    came = java.received(group, 25, WAIT)

    assert {one.status for one in sent} == {"SEND_OK"}
    assert {one.broker for one in sent} == {"a", "b"}
    expected = [*numbered("sync", 8), *numbered("async", 8), *numbered("batch", 8), b"oneway"]
    assert bodies(came) == Counter(expected)
    assert {name.split()[0] for name in java.queues(group)} >= {topic}
    java.stop_consumer(group)
    assert sum(offset for offset, _ in java.offsets(group, topic).values()) == 25


def test_a_4_9_cluster_does_the_same(java_4_9: JavaClients) -> None:
    topic, group = unique_name("orders"), unique_name("billing")
    java_4_9.create_topic(topic, 2)
    java_4_9.consume(group, [topic])

    java_4_9.send_all(topic, numbered("sync", 8))
    java_4_9.send_batch(topic, numbered("batch", 8))

    assert bodies(java_4_9.received(group, 16, WAIT)) == Counter(
        [*numbered("sync", 8), *numbered("batch", 8)]
    )
    with pytest.raises(RequestFailed, match="delay levels alone"):
        java_4_9.send(topic, b"later", delay_ms=1000)


def test_a_4_9_client_uses_a_5_3_cluster(cluster: SharedCluster) -> None:
    topic, group = unique_name("orders"), unique_name("billing")
    with cluster.clients(version="4.9") as old:
        old.create_topic(topic, 1)
        old.consume(group, [topic])
        old.send(topic, b"from 4.9")
        assert bodies(old.received(group, 1, WAIT)) == Counter([b"from 4.9"])


def test_consumers_select_by_tags_and_by_sql(java: JavaClients) -> None:
    topic, tagged, selected = unique_name("orders"), unique_name("tagged"), unique_name("selected")
    java.create_topic(topic, 1)
    java.consume(tagged, {topic: "paid || sent"})
    java.consume(selected, {topic: "amount > 5 AND TAGS = 'paid'"}, sql=True)

    for tag, amount in (("paid", 3), ("paid", 7), ("sent", 9), ("lost", 11)):
        java.send(topic, f"{tag} {amount}".encode(), tags=tag, properties={"amount": amount})

    assert bodies(java.received(tagged, 3, WAIT)) == Counter([b"paid 3", b"paid 7", b"sent 9"])
    assert bodies(java.received(selected, 1, WAIT)) == Counter([b"paid 7"])


def test_messages_of_one_key_come_in_order_and_one_at_a_time(java: JavaClients) -> None:
    topic, group = unique_name("orders"), unique_name("billing")
    java.create_topic(topic, 2)
    for number in range(10):
        for key in ("x", "y"):
            java.send(topic, f"{key}{number}".encode(), sharding_key=key)
    java.consume(group, [topic], orderly=True)

    came = [message.body.decode() for message in java.received(group, 20, WAIT)]

    for key in "xy":
        assert [body for body in came if body[0] == key] == [f"{key}{number}" for number in range(10)]


def test_every_member_of_a_broadcast_group_gets_every_message(java: JavaClients) -> None:
    topic, group = unique_name("orders"), unique_name("screens")
    java.create_topic(topic, 1)
    for consumer in (f"{group}-1", f"{group}-2"):
        java.consume(group, [topic], consumer=consumer, broadcasting=True)
    java.send(topic, b"to all")

    for consumer in (f"{group}-1", f"{group}-2"):
        assert bodies(java.received(consumer, 1, WAIT)) == Counter([b"to all"])


def test_what_fails_comes_again_and_ends_as_a_dead_letter(java: JavaClients) -> None:
    topic, group, reader = unique_name("orders"), unique_name("billing"), unique_name("reader")
    java.create_topic(topic, 1)
    # The topic of what comes again is new, and a consumer asks for routes every 30 s unless told otherwise.
    java.consume(group, [topic], failing=[b"bad"], reconsume_max=1, route_ms=1000)
    java.send_all(topic, [b"good", b"bad"])

    assert bodies(java.received(group, 3, WAIT)) == Counter({b"good": 1, b"bad": 2})
    java.stop_consumer(group)
    java.consume(reader, [f"%DLQ%{group}"])
    assert bodies(java.received(reader, 1, WAIT)) == Counter([b"bad"])


def test_messages_come_later_and_can_be_recalled(java: JavaClients) -> None:
    topic, group = unique_name("orders"), unique_name("billing")
    java.create_topic(topic, 1)
    java.consume(group, [topic])

    java.send(topic, b"by level", delay_level=1)
    java.send(topic, b"by time", delay_ms=2000)
    recalled = java.send(topic, b"recalled", deliver_at_ms=int(time.time() * 1000) + 4000)
    assert recalled.recall_handle is not None
    java.recall(topic, recalled.recall_handle)

    assert bodies(java.received(group, 2, WAIT)) == Counter([b"by level", b"by time"])
    assert bodies(java.received(group, 3, 8.0)) == Counter([b"by level", b"by time"])


def test_transactions_are_committed_rolled_back_and_asked_about(java: JavaClients) -> None:
    topic, group, sellers = unique_name("orders"), unique_name("billing"), unique_name("sellers")
    java.create_topic(topic, 1)
    java.consume(group, [topic])

    java.transact(sellers, topic, b"committed", "COMMIT_MESSAGE")
    java.transact(sellers, topic, b"rolled back", "ROLLBACK_MESSAGE")
    java.transact(sellers, topic, b"asked about", "UNKNOW")
    java.be_asked(sellers, topic, {"asked about": "COMMIT_MESSAGE"})

    assert bodies(java.received(group, 2, WAIT)) == Counter([b"committed", b"asked about"])
    assert {message.body for message in java.asked(sellers, 1, WAIT)} == {b"asked about"}


def test_a_lite_pull_consumer_seeks_and_commits(java: JavaClients) -> None:
    topic, group = unique_name("orders"), unique_name("reports")
    java.create_topic(topic, 1, broker="a")
    java.send_all(topic, numbered("m", 6))
    queue = {"topic": topic, "broker": "a", "queue_id": 0}
    java.start_pulling(group)
    java.pull("assign", group, queues=[queue])
    came: list[bytes] = []

    def polled() -> bool:
        # The Java client now and then loses a queue's task when it seeks while that one pulls.
        if not came:
            java.pull("seek", group, offset=4, **queue)
        came.extend(message.body for message in java.poll(group, 5.0))
        return len(came) >= 2

    eventually(polled, lambda: came)
    assert came == [b"m4", b"m5"]
    java.pull("commit", group)
    eventually(lambda: java.pull("committed", group, **queue) == 6, lambda: java.offsets(group, topic))
    java.pull("stop", group)


def test_an_operator_resets_finds_and_deletes(java: JavaClients) -> None:
    topic, group = unique_name("orders"), unique_name("billing")
    java.create_topic(topic, 1)
    java.create_group(group)
    sent = java.send(topic, b"one", keys="invoice-7")
    java.consume(group, [topic])
    assert len(java.received(group, 1, WAIT)) == 1
    assert len(java.members(group)) == 1
    java.stop_consumer(group)

    java.set_offset(group, topic, sent.broker, 0, 0)
    assert java.offsets(group, topic)[sent.broker, 0] == (0, 1)
    assert java.topic_offsets(topic)[sent.broker, 0] == (0, 1)
    eventually(lambda: len(java.find_key(topic, "invoice-7")) == 1, lambda: "not indexed")
    assert sent.offset_msg_id is not None
    assert java.find_id(topic, sent.offset_msg_id).body == b"one"
    java.delete_topic(topic)
    with pytest.raises(RequestFailed) as failed:
        java.route(topic)
    assert failed.value.code == 17


def test_load_runs_in_the_background_and_says_what_was_acknowledged(java: JavaClients) -> None:
    topic, group = unique_name("orders"), unique_name("billing")
    java.create_topic(topic, 2)
    java.consume(group, [topic])
    java.start_load(topic, "m", 200.0, keys=4)
    java.received(group, 50, WAIT)
    acknowledged, failed = java.end_load()

    assert failed == []
    came = java.received(group, len(acknowledged), WAIT)
    assert bodies(came) == Counter(body.encode() for body in acknowledged)
