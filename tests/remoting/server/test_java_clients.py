"""RocketMQ's own Java clients, of 5.3 and of 4.9, on a directory of mq."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.remoting import serve
from mq.remoting.server.server import Server
from tests.support.cluster.java_clients import Came, JavaClients
from tests.support.eventually import eventually
from tests.support.serving import serving

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(600)]

WAIT = 120.0


@pytest.fixture
def store(directory: Path) -> Iterator[mq.LocalBroker]:
    with mq.open(directory, transaction_timeout=1.0, transaction_check_interval=1.0) as opened:
        yield opened


@pytest.fixture
def server(store: mq.Broker) -> Iterator[Server]:
    with serve(store, port=0, namesrv_port=0) as server:
        yield server


@pytest.fixture(params=["5.3", "4.9"])
def java(request: pytest.FixtureRequest, server: Server) -> Iterator[JavaClients]:
    with JavaClients(server.name_server, version=request.param) as clients:
        yield clients


def bodies(messages: list[Came]) -> Counter[bytes]:
    return Counter(message.body for message in messages)


def numbered(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def test_all_ways_of_sending_arrive(store: mq.LocalBroker, java: JavaClients) -> None:
    store.create_topic("orders", 2)
    java.consume("billing", ["orders"])
    sent = [
        *java.send_all("orders", numbered("sync", 8)),
        *java.send_async("orders", numbered("async", 8)),
        java.send_batch("orders", numbered("batch", 8)),
    ]
    java.send_oneway("orders", b"oneway")
    came = java.received("billing", 25, WAIT)
    assert {one.status for one in sent} == {"SEND_OK"}
    expected = [*numbered("sync", 8), *numbered("async", 8), *numbered("batch", 8), b"oneway"]
    assert bodies(came) == Counter(expected)
    ids = {message.msg_id for message in came}
    assert {one.msg_id for one in sent[:16]} <= ids
    java.stop_consumer("billing")
    eventually(
        lambda: store.group("billing").lag("orders") == 0, lambda: store.group("billing").states("orders")
    )
    assert store.group("billing").members() == []


def test_the_first_message_makes_its_topic(store: mq.LocalBroker, java: JavaClients) -> None:
    java.send("fresh", b"one", tags="paid", keys="k")
    assert [m.body for q in store.topic("fresh").queues for m in q.read(0).messages] == [b"one"]
    assert [m.body for m in store.query("fresh", "k")] == [b"one"]


def test_tags_and_sql_select(store: mq.LocalBroker, java: JavaClients) -> None:
    topic = store.create_topic("orders", 1)
    java.consume("tagged", {"orders": "paid || refunded"})
    java.consume("priced", {"orders": "price > 10"}, sql=True)
    for number in range(6):
        topic.send(b"%d" % number, tags=("paid", "lost")[number % 2], properties={"price": str(number * 5)})
    assert bodies(java.received("tagged", 3, WAIT)) == Counter([b"0", b"2", b"4"])
    assert bodies(java.received("priced", 3, WAIT)) == Counter([b"3", b"4", b"5"])


def test_a_local_and_a_java_member_share_a_group(store: mq.LocalBroker, java: JavaClients) -> None:
    topic = store.create_topic("orders", 4)
    ours: list[bytes] = []
    with mq.PushConsumer(store, "billing") as consumer:
        consumer.subscribe("orders", listener=lambda message: ours.append(message.body))
        consumer.start()
        java.consume("billing", ["orders"])
        eventually(
            lambda: len(store.group("billing").members()) == 2, lambda: store.group("billing").members()
        )
        eventually(
            lambda: (
                sum(q.topic == "orders" for q in consumer.assignment()) == 2
                and sum(name.startswith("orders ") for name in java.queues("billing")) == 2
            ),
            lambda: (consumer.assignment(), java.queues("billing")),
        )
        for number in range(200):
            topic.send(b"%d" % number)
        theirs = java.received("billing", 100, WAIT)
        eventually(lambda: len(ours) + len(theirs) >= 200, lambda: (len(ours), len(theirs)))
        assert bodies(theirs) + Counter(ours) == Counter(b"%d" % number for number in range(200))
        java.stop_consumer("billing")
        eventually(lambda: sum(q.topic == "orders" for q in consumer.assignment()) == 4, consumer.assignment)
    assert store.group("billing").lag("orders") == 0


def test_what_a_java_listener_gives_back_comes_again(store: mq.LocalBroker, java: JavaClients) -> None:
    topic = store.create_topic("orders", 1)
    java.consume("billing", ["orders"], failing=[b"bad"], reconsume_max=1)
    topic.send(b"bad")
    topic.send(b"good")
    came = java.received("billing", 3, WAIT)
    assert bodies(came) == Counter([b"bad", b"bad", b"good"])
    assert sorted(message.reconsume_times for message in came if message.body == b"bad") == [0, 1]
    eventually(lambda: "%DLQ%billing" in store.topics(), store.topics)


def test_java_consumes_in_order(store: mq.LocalBroker, java: JavaClients) -> None:
    topic = store.create_topic("orders", 2)
    java.consume("billing", ["orders"], orderly=True)
    expected = numbered("n", 50)
    for body in expected:
        topic.send(body, shard_key="one")
    assert [message.body for message in java.received("billing", 50, WAIT)] == expected


def test_delayed_messages_come_when_they_are_due(store: mq.LocalBroker, java: JavaClients) -> None:
    store.create_topic("orders", 1)
    java.consume("billing", ["orders"])
    begin = time.time()
    java.send("orders", b"late", delay_level=2)
    [message] = java.received("billing", 1, WAIT)
    assert message.body == b"late"
    assert time.time() - begin >= 5.0


def test_transactions_end_and_are_asked_about(store: mq.LocalBroker, java: JavaClients) -> None:
    store.create_topic("orders", 1)
    java.consume("billing", ["orders"])
    java.be_asked("banking", "orders", {"later": "COMMIT_MESSAGE"})
    java.transact("banking", "orders", b"now", "COMMIT_MESSAGE")
    java.transact("banking", "orders", b"never", "ROLLBACK_MESSAGE")
    java.transact("banking", "orders", b"later", "UNKNOW")
    assert bodies(java.received("billing", 2, WAIT)) == Counter([b"now", b"later"])
    assert [message.body for message in java.asked("banking", 1, WAIT)][:1] == [b"later"]


def test_a_request_gets_its_reply(store: mq.LocalBroker, java: JavaClients) -> None:
    store.create_topic("orders", 1)
    java.reply("answering", "orders")
    assert [java.request("orders", body) for body in (b"one", b"two")] == [b"oneone", b"twotwo"]
    replies = [m.body for q in store.topic("DefaultCluster_REPLY_TOPIC").queues for m in q.read(0).messages]
    assert replies == [b"oneone", b"twotwo"]


def test_a_reply_comes_from_a_client_of_another_process(
    store: mq.LocalBroker, directory: Path, java: JavaClients
) -> None:
    store.create_topic("orders", 1)
    with serving(directory) as process, JavaClients(process.name_server) as answering:
        answering.reply("answering", "orders")
        assert [java.request("orders", body) for body in (b"one", b"two")] == [b"oneone", b"twotwo"]


def test_java_pulls_seeks_and_commits(store: mq.LocalBroker, java: JavaClients) -> None:
    topic = store.create_topic("orders", 1)
    for number in range(5):
        topic.send(b"%d" % number)
    java.start_pulling("reading")
    queue = {"topic": "orders", "broker": store.name, "queue_id": 0}
    java.pull("assign", "reading", queues=[queue])
    came: list[bytes] = []
    until = time.monotonic() + WAIT
    while len(came) < 5 and time.monotonic() < until:
        came += [message.body for message in java.poll("reading", 1.0)]
    assert came == [b"0", b"1", b"2", b"3", b"4"]
    java.pull("commit", "reading")
    eventually(
        lambda: store.group("reading").lag("orders") == 0, lambda: store.group("reading").states("orders")
    )


def test_a_broadcast_reaches_every_member(store: mq.LocalBroker, java: JavaClients) -> None:
    topic = store.create_topic("orders", 2)
    java.consume("news", ["orders"], broadcasting=True)
    eventually(lambda: len(java.queues("news")) == 2, lambda: java.queues("news"))
    for number in range(10):
        topic.send(b"%d" % number)
    assert bodies(java.received("news", 10, WAIT)) == Counter(b"%d" % number for number in range(10))
