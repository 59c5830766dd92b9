"""Routes stay as long as they are used, and transaction producers are known to every broker."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import mq
from mq.client import pull_consumer
from mq.remoting.client import heartbeats
from mq.remoting.client.connections import cluster as routes
from mq.remoting.client.connections.cluster import Cluster
from mq.remoting.client.connections.name_servers import NameServers
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.codec.bodies.route import TopicRoute
from mq.remoting.codec.requests.name_servers import GetRoute
from mq.remoting.codec.requests.statistics import GetConsumerConnections
from mq.remoting.codec.response_codes import ResponseCode
from tests.support.eventually import eventually
from tests.support.fake_cluster import FakeCluster, open_cluster, requests_of
from tests.support.remoting_peer import Peer, silence, with_code

UNUSED_SECONDS = 0.3


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routes are refreshed, and dropped, many times a second."""
    monkeypatch.setattr(routes, "REFRESH_SECONDS", 0.02)
    monkeypatch.setattr(routes, "UNUSED_SECONDS", UNUSED_SECONDS)
    monkeypatch.setattr(heartbeats, "HEARTBEAT_SECONDS", 0.05)


def wait(what: Callable[[], bool]) -> None:
    eventually(what, lambda: "it did not happen", 60)


def test_a_steady_producer_notices_new_queues(peer: Peer, quick: None) -> None:
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 1
    with open_cluster(peer) as broker, mq.Producer(broker) as producer:

        def send_for(seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                producer.send(mq.Message("orders", b"1"))
                time.sleep(0.005)

        send_for(3 * UNUSED_SECONDS)
        cluster.queue_counts["orders"] = 4

        def uses_all() -> bool:
            send_for(0.02)
            return set(cluster.sent) == {0, 1, 2, 3}

        wait(uses_all)


def test_an_idle_producer_asks_for_the_route_again(
    peer: Peer, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 1
    with open_cluster(peer) as broker, mq.Producer(broker) as producer:
        version = broker.route_version()
        producer.send(mq.Message("orders", b"1"))
        wait(lambda: broker.route_version() >= version + 2)  # It was learnt, and dropped.
        cluster.queue_counts["orders"] = 4
        monkeypatch.setattr(
            routes, "UNUSED_SECONDS", 600.0
        )  # With a route that is made anew turns begin anew.
        for _ in range(4):
            producer.send(mq.Message("orders", b"1"))
        assert len(set(cluster.sent[1:])) == 4


@pytest.mark.parametrize("is_async", [False, True])
def test_a_send_waits_for_a_route_no_longer_than_it_may(peer: Peer, is_async: bool) -> None:
    peer.on(GetRoute.CODE, silence)
    # The question itself would take longer than a test may.
    with open_cluster(peer, timeout=3600) as broker, mq.Producer(broker) as producer:
        send = producer.send_async if is_async else producer.send
        with pytest.raises(
            mq.RequestTimeout, match=f"asking {peer.address} for the route of topic"
        ) as caught:
            send(mq.Message("orders", b"1"), timeout=0.2)
        assert caught.value.address == peer.address


def test_a_poll_asks_for_a_route_for_longer_than_it_waits_for_messages(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is not there is asked for at each rebalance, and no answer comes in no time."""
    monkeypatch.setattr(pull_consumer, "LOCK_SECONDS", 0.0)
    FakeCluster(peer).queue_counts["orders"] = 1
    peer.on(GetConsumerConnections.CODE, with_code(ResponseCode.CONSUMER_NOT_ONLINE))
    with open_cluster(peer) as broker, mq.PullConsumer(broker, "billing") as consumer:
        for topic in ("missing", "orders"):
            consumer.subscribe(topic)
        assert consumer.poll(0) == []
        assert [queue.topic for queue in consumer.assignment()] == ["orders"]


def test_only_routes_in_use_are_kept(peer: Peer, remoting: Remoting, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCluster(peer).queue_counts.update(orders=1, bills=1)
    changes: list[tuple[str, TopicRoute | None]] = []
    cluster = Cluster(remoting, NameServers(remoting, (peer.address,)), refresh_seconds=0.02)

    def with_one_in_use() -> float:
        cluster.use("orders")  # Here: a user that runs beside the refresh may stand still for too long.
        return time.monotonic()

    monkeypatch.setattr(routes, "monotonic", with_one_in_use)
    for topic in ("orders", "bills"):
        cluster.route(topic)
    cluster.changed.append(lambda topic, now: changes.append((topic, now)))
    monkeypatch.setattr(routes, "UNUSED_SECONDS", 1.0)
    wait(lambda: bool(changes))
    assert changes == [("bills", None)]
    assert cluster.topics == ("orders",)


def test_a_route_that_was_forgotten_meanwhile_does_not_end_the_refresh(
    peer: Peer, remoting: Remoting
) -> None:
    fake = FakeCluster(peer)
    fake.queue_counts.update(orders=1, bills=1)
    cluster = Cluster(remoting, NameServers(remoting, (peer.address,)), refresh_seconds=0.02)

    class Racing(dict[str, TopicRoute]):
        """Another thread forgets a topic right after its route was looked up."""

        def get(self, topic: str, default: object = None) -> TopicRoute | None:  # type: ignore[override]  # one use
            return self.pop(topic, None)

    for topic in ("orders", "bills"):
        cluster.route(topic)
    vars(cluster)["_routes"] = Racing(vars(cluster)["_routes"])
    del fake.queue_counts["orders"]
    before = len(requests_of(peer, GetRoute))
    wait(lambda: len(requests_of(peer, GetRoute)) > before + 20)


def groups_of(cluster: FakeCluster) -> list[str]:
    return [group.group_name for beat in cluster.heartbeats() for group in beat.producer_data_set]


def commit(message: mq.MessageExt) -> mq.TransactionState:
    return mq.TransactionState.COMMIT


def test_a_transaction_producer_is_known_before_it_sends(peer: Peer) -> None:
    cluster = FakeCluster(peer)
    with open_cluster(peer) as broker, mq.TransactionProducer(broker, "payments", commit):
        wait(lambda: "payments" in groups_of(cluster))


def test_an_idle_transaction_producer_stays_known(peer: Peer, quick: None) -> None:
    cluster = FakeCluster(peer)
    with open_cluster(peer) as broker, mq.TransactionProducer(broker, "payments", commit):
        wait(lambda: "payments" in groups_of(cluster))
        time.sleep(3 * UNUSED_SECONDS)
        count = len(cluster.heartbeats())
        wait(lambda: len(cluster.heartbeats()) > count + 10)


def test_a_transaction_producer_finds_a_broker_that_joins_later(peer: Peer, quick: None) -> None:
    cluster = FakeCluster(peer)
    cluster.master = None
    with open_cluster(peer) as broker, mq.TransactionProducer(broker, "payments", commit):
        time.sleep(UNUSED_SECONDS)
        cluster.master = peer.address
        wait(lambda: "payments" in groups_of(cluster))
