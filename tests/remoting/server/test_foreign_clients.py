"""RocketMQ's clients in Go, JavaScript and C++ on a directory of mq."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.remoting import serve
from mq.remoting.server.server import Server
from tests.support.eventually import eventually
from tests.support.foreign.client import CLIENTS, Client, Heard, Line

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(900)]


@pytest.fixture
def store(directory: Path) -> Iterator[mq.LocalBroker]:
    with mq.open(directory, transaction_timeout=1.0, transaction_check_interval=1.0) as opened:
        yield opened


@pytest.fixture
def server(store: mq.LocalBroker) -> Iterator[Server]:
    with serve(store, port=0, namesrv_port=0) as server:
        yield server


def knowing(what: str) -> pytest.MarkDecorator:
    """Those of them that can do it."""
    return pytest.mark.parametrize(
        "client", [each for each in CLIENTS if what in each.knows], ids=lambda each: each.name
    )


every_one = pytest.mark.parametrize("client", CLIENTS, ids=lambda each: each.name)


def bodies(lines: list[Line]) -> Counter[str]:
    return Counter(line["body"] for line in lines)


def stored(store: mq.LocalBroker, topic: str) -> list[mq.MessageExt]:
    return [
        message for queue in store.topic(topic).queues for message in queue.read(0, count_max=1000).messages
    ]


@every_one
def test_what_it_sends_is_stored(store: mq.LocalBroker, server: Server, client: Client) -> None:
    store.create_topic("orders", 2)
    said = client.run("send", server.name_server, "orders", "sync", "a", "b", "c")
    assert [line["status"] for line in said] == [0, 0, 0]
    assert Counter(message.body for message in stored(store, "orders")) == Counter([b"a", b"b", b"c"])
    for line, body in zip(said, [b"a", b"b", b"c"], strict=True):
        (found,) = store.query("orders", body.decode())
        assert found.body == body
        # One of them makes up an id that it does not send.
        assert found.msg_id == line["sent"] or "ids" not in client.knows


@pytest.mark.parametrize(
    ("client", "way"),
    [(each, way) for each in CLIENTS for way in ("async", "oneway", "batch") if way in each.knows],
    ids=lambda each: each.name if isinstance(each, Client) else each,
)
def test_other_ways_of_sending(store: mq.LocalBroker, server: Server, client: Client, way: str) -> None:
    store.create_topic("orders", 2)
    client.run("send", server.name_server, "orders", way, "a", "b", "c")
    eventually(
        lambda: Counter(m.body for m in stored(store, "orders")) == Counter([b"a", b"b", b"c"]),
        lambda: stored(store, "orders"),
    )


@every_one
def test_it_consumes_by_tag_and_commits(store: mq.LocalBroker, server: Server, client: Client) -> None:
    topic = store.create_topic("orders", 2)
    for number in range(10):
        topic.send(b"%d" % number, tags=("paid", "lost")[number % 2])
    words = "consume", server.name_server, "billing", "orders", "clustering", "tag", "paid"
    with client.running(*words) as heard:
        assert bodies(heard.wait("body", 5)) == Counter("02468")
        client.run("send", server.name_server, "orders", "paid", "late")
        assert bodies(heard.wait("body", 6)) == Counter([*"02468", "late"])
        group = store.group("billing")
        eventually(lambda: group.lag("orders") == 0, lambda: group.states("orders"))


@knowing("sql")
def test_it_selects_by_sql(store: mq.LocalBroker, server: Server, client: Client) -> None:
    topic = store.create_topic("orders", 1)
    for number in range(6):
        topic.send(b"%d" % number, properties={"price": str(number * 5)})
    words = "consume", server.name_server, "priced", "orders", "clustering", "sql", "price > 10"
    with client.running(*words) as heard:
        assert bodies(heard.wait("body", 3)) == Counter("345")


@knowing("retry")
def test_what_it_gives_back_comes_again(store: mq.LocalBroker, server: Server, client: Client) -> None:
    topic = store.create_topic("orders", 1)
    topic.send(b"bad")
    words = "consume", server.name_server, "billing", "orders", "clustering", "tag", "*", "bad"
    with client.running(*words) as heard:
        heard.wait("body", 1)
        topic.send(b"good")  # The C++ client gives back all that it pulled with a bad one.
        came = heard.wait("body", 3)
        assert bodies(came) == Counter(["bad", "bad", "good"])
        assert [line["times"] for line in came if line["body"] == "bad"] == [0, 1]


@knowing("delayed")
def test_delayed_messages_come_when_they_are_due(
    store: mq.LocalBroker, server: Server, client: Client
) -> None:
    store.create_topic("orders", 1)
    begin = time.time()
    client.run("send", server.name_server, "orders", "delayed", "late")
    eventually(lambda: bool(stored(store, "orders")), lambda: "it never came")
    assert time.time() - begin >= 5.0


@knowing("orderly")
def test_it_consumes_in_order(store: mq.LocalBroker, server: Server, client: Client) -> None:
    topic = store.create_topic("orders", 2)
    expected = [f"n{number}" for number in range(50)]
    for body in expected:
        topic.send(body.encode(), shard_key="one")
    words = "consume", server.name_server, "billing", "orders", "orderly", "tag", "*"
    with client.running(*words) as heard:
        assert [line["body"] for line in heard.wait("body", 50)] == expected


def numbers(heard: Heard, count: int) -> Counter[str]:
    """The bodies that are numbers, once there are so many."""

    def found() -> list[Line]:
        return [line for line in heard.all("body") if line["body"].isdigit()]

    eventually(lambda: len(found()) >= count, lambda: heard.lines)
    return bodies(found())


@knowing("broadcasting")
def test_a_broadcast_reaches_it_beside_another(store: mq.LocalBroker, server: Server, client: Client) -> None:
    topic = store.create_topic("orders", 2)
    words = "consume", server.name_server, "news", "orders", "broadcasting", "tag", "*"
    with (
        mq.Producer(store) as producer,
        client.running(*words) as one,
        client.running(*words) as other,
    ):
        eventually(
            lambda: len(store.group("news").members()) == 2, lambda: store.group("news").members(), seconds=60
        )

        # A member that begins at the end asks where that is after it has joined. It did so for each queue
        # that it has heard of.
        def have_begun() -> bool:
            for queue in topic.queues:
                producer.send(mq.Message("orders", b"begin"), queue=queue)
            return all({line["queue"] for line in heard.all("body")} == {0, 1} for heard in (one, other))

        eventually(have_begun, lambda: (one.lines, other.lines), pause=0.1)
        for number in range(10):
            topic.send(b"%d" % number)
        for heard in (one, other):
            assert numbers(heard, 10) == Counter("0123456789")


@knowing("pull")
def test_a_foreign_client_pulls(store: mq.LocalBroker, server: Server, client: Client) -> None:
    topic = store.create_topic("orders", 2)
    for number in range(10):
        topic.send(b"%d" % number)
    assert bodies(client.run("pull", server.name_server, "reading", "orders", 10)) == Counter("0123456789")


@knowing("transactions")
def test_its_transactions_end_and_are_asked_about(
    store: mq.LocalBroker, server: Server, client: Client
) -> None:
    store.create_topic("orders", 1)
    words = "transact", server.name_server, "banking", "orders", "commit", "rollback", "ask"
    with client.running(*words) as heard:
        assert [line["asked"] for line in heard.wait("asked", 1)][:1] == ["ask"]
        eventually(lambda: len(stored(store, "orders")) == 2, lambda: stored(store, "orders"))
        assert Counter(m.body for m in stored(store, "orders")) == Counter([b"commit", b"ask"])


def test_members_of_all_languages_share_a_group(store: mq.LocalBroker, server: Server) -> None:
    topic = store.create_topic("orders", 6)
    ours: list[str] = []
    words = "consume", server.name_server, "billing", "orders", "clustering", "tag", "*"
    go, js, cpp = CLIENTS
    with (
        mq.PushConsumer(store, "billing") as consumer,
        go.running(*words) as in_go,
        js.running(*words) as in_js,
        cpp.running(*words) as in_cpp,
    ):
        consumer.subscribe("orders", listener=lambda message: ours.append(message.body.decode()))
        consumer.start()
        eventually(
            lambda: len(store.group("billing").members()) == 4, lambda: store.group("billing").members()
        )
        for number in range(300):
            topic.send(b"%d" % number)
        everybody = (in_go, in_js, in_cpp)
        expected = {str(number) for number in range(300)}

        def taken() -> Counter[str]:
            return sum((bodies(each.all("body")) for each in everybody), Counter(ours))

        eventually(lambda: taken().keys() == expected, lambda: expected - taken().keys())
    # The last offsets of some are on their way yet.
    group = store.group("billing")
    eventually(lambda: group.lag("orders") == 0, lambda: group.states("orders"))
