"""Changes and questions that go to all brokers of a cluster, one of which is away or refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mq
from mq.remoting.codec.bodies.route import ClusterInfo
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.name_servers import GetClusterInfo
from tests.support.fake_cluster import open_cluster
from tests.support.remoting_peer import Link, Peer
from tests.support.served_brokers import ServedBrokers, served_brokers

Change = Callable[[mq.Broker], object]


@pytest.fixture
def served(peer: Peer, tmp_path: Path) -> Iterator[ServedBrokers]:
    with served_brokers(peer, tmp_path) as served:
        for store in served.stores.values():
            store.create_topic("orders", 2)
            store.group("billing").reset("orders", to="earliest")
        yield served


@pytest.fixture
def broker(peer: Peer, served: ServedBrokers) -> Iterator[mq.Broker]:
    with open_cluster(peer) as broker:
        yield broker


CHANGES: dict[str, Change] = {
    "create": lambda broker: broker.create_topic("orders", 4),
    "delete_topic": lambda broker: broker.delete_topic("orders"),
    "delete_group": lambda broker: broker.group("billing").delete(),
    "reset": lambda broker: broker.group("billing").reset("orders", to="latest"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("away", [{"b"}, {"a", "b"}], ids=["one", "all"])
def test_a_change_is_refused_while_a_master_is_away(
    broker: mq.Broker, served: ServedBrokers, change: Change, away: set[str]
) -> None:
    served.slaves = away
    first = min(away)
    with pytest.raises(mq.RemotingError, match=f"broker '{first}' has no master now; the brokers known are"):
        change(broker)
    assert served.queue_counts("orders") == {"a": 2, "b": 2}
    for store in served.stores.values():
        assert list(store.group("billing").offsets("orders").values()) == [0, 0]
    served.slaves = set()
    change(broker)


def test_a_new_topic_is_made_where_there_is_a_master(broker: mq.Broker, served: ServedBrokers) -> None:
    served.slaves = {"b"}
    broker.create_topic("bills", 3)
    assert served.queue_counts("bills") == {"a": 3}
    served.slaves = {"a", "b"}
    with pytest.raises(mq.RemotingError, match="no broker has a master now; the brokers known are: a, b;"):
        broker.create_topic("payments")


def test_a_group_begins_at_the_ends_of_masters(broker: mq.Broker, served: ServedBrokers) -> None:
    """What a slave is told of it its master would not have."""
    for store in served.stores.values():
        store.topic("orders").send(b"old")
    queues = broker.topic("orders").queues
    served.slaves = {"b"}
    broker.topic("orders")  # It asks for the route.
    with mq.PullConsumer(broker, "reports", consume_from="last") as consumer:
        with pytest.raises(mq.RemotingError, match="broker 'b' has no master now"):
            consumer.assign(queues)
        for store in served.stores.values():
            assert store.group("reports").offsets("orders") == {}
        served.slaves = set()
        broker.topic("orders")
        consumer.assign(queues)
    for store in served.stores.values():
        assert sum(store.group("reports").offsets("orders").values()) == 1


def test_a_topic_that_is_only_to_be_there_needs_no_master_where_it_is(
    broker: mq.Broker, served: ServedBrokers
) -> None:
    served.slaves = {"a", "b"}
    assert len(broker.create_topic("orders").queues) == 4
    served.stores["a"].create_topic("bills", 1)
    with pytest.raises(mq.RemotingError, match="no broker has a master now"):
        broker.create_topic("bills")
    served.slaves = {"a"}
    broker.create_topic("bills")
    assert served.queue_counts("bills") == {"a": 1, "b": 4}


def test_a_name_server_that_knows_no_broker_is_an_error(
    peer: Peer, broker: mq.Broker, served: ServedBrokers
) -> None:
    async def nobody(link: Link, request: Frame) -> None:
        link.answer(request, body=to_json(ClusterInfo({}, {})))

    peer.on(GetClusterInfo.CODE, nobody)
    for change in (lambda: broker.create_topic("bills"), broker.group("billing").delete):
        with pytest.raises(mq.RemotingError, match=f"brokers known are: none; .* at {peer.address}"):
            change()


def test_a_refusal_of_one_broker_changes_none(broker: mq.Broker, served: ServedBrokers) -> None:
    served.stores["b"].create_topic("orders", 8)
    with pytest.raises(mq.NotPermitted, match="8 queues to read on broker 'b'"):
        broker.create_topic("orders", 6)
    assert served.queue_counts("orders") == {"a": 2, "b": 8}


def shrinking(served: ServedBrokers) -> mq.Broker:
    """A store whose topic "bills" has a message in each of 8 queues, and is to lose 4 of them."""
    store = served.stores["a"]
    bills = store.create_topic("bills", 8)
    for _ in range(8):
        bills.send(b"x")
    store.create_topic("bills", read_queue_count=4, shrink=True)
    return store


def test_a_topic_that_is_only_to_be_there_goes_on_shrinking(broker: mq.Broker, served: ServedBrokers) -> None:
    store = shrinking(served)
    broker.create_topic("bills")
    assert len(store.readable("bills")) == 8
    assert served.queue_counts("bills")["b"] == 4  # It had none.
    store.group("billing").reset("bills", to="latest")
    store.create_topic("bills")  # It looks whether all is consumed.
    assert len(store.readable("bills")) == 4


def test_a_refusal_to_shrink_does_not_advise_what_was_asked(broker: mq.Broker, served: ServedBrokers) -> None:
    orders = served.stores["a"].topic("orders")
    for _ in range(2):
        orders.send(b"x")
    with pytest.raises(mq.NotPermitted, match="queue 1 holds 1 message that is not") as caught:
        broker.create_topic("orders", 1, shrink=True)
    assert "shrink=True" not in str(caught.value)
    assert str(caught.value).endswith("or shrink the topic in the directory that is served")
