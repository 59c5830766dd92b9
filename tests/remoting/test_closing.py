"""What others are in the middle of when the broker object of a cluster is closed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import mq
from mq.api.transactions import Checker
from mq.remoting.codec.fields import decode_fields
from mq.remoting.codec.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from mq.remoting.codec.requests.statistics import GetConsumerConnections
from mq.remoting.codec.response_codes import ResponseCode
from tests.support.fake_cluster import FakeCluster, HeldRequests, joined, open_cluster, requests_of
from tests.support.remoting_peer import Peer, with_code

LONG = 600.0
LIMIT = 60.0
BEGUN_SECONDS = 0.3  # after which the other thread waits: if it does not, the test proves nothing


@pytest.fixture
def cluster(peer: Peer) -> FakeCluster:
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 1
    peer.on(GetConsumerConnections.CODE, with_code(ResponseCode.CONSUMER_NOT_ONLINE))
    return cluster


def test_a_consumer_that_waits_for_messages_learns_of_the_close(peer: Peer, cluster: FakeCluster) -> None:
    with open_cluster(peer) as broker, mq.PullConsumer(broker, "billing") as consumer:
        consumer.subscribe("orders")
        consumer.poll(0.1)
        with ThreadPoolExecutor(1) as threads:
            polling = threads.submit(consumer.poll, LONG)
            time.sleep(BEGUN_SECONDS)
            broker.close()
            with pytest.raises(mq.BrokerClosed):
                polling.result(LIMIT)


def test_a_producer_that_waits_for_checks_learns_of_the_close(peer: Peer, cluster: FakeCluster) -> None:
    def ask(checker: Checker) -> None:
        while True:
            checker.next(LONG)

    with open_cluster(peer) as broker, ThreadPoolExecutor(1) as threads:
        asking = threads.submit(ask, broker.transactions.enlist("billing", "one"))
        time.sleep(BEGUN_SECONDS)
        broker.close()
        with pytest.raises(mq.BrokerClosed):
            asking.result(LIMIT)


@pytest.mark.parametrize("what", ["release", "leave"])
def test_a_close_waits_for_a_release_by_another_thread(peer: Peer, cluster: FakeCluster, what: str) -> None:
    """Its offset would not be written, and the messages would come again."""
    with open_cluster(peer) as broker, ThreadPoolExecutor(2) as threads:
        membership = joined(broker)
        claim = membership.claim(mq.MessageQueue("orders", "a", 0))
        assert claim is not None
        claim.commit(7)
        queries = HeldRequests(peer, QueryConsumerOffset)
        releasing = threads.submit(claim.release if what == "release" else membership.leave)
        queries.wait()
        closing = threads.submit(broker.close)
        time.sleep(BEGUN_SECONDS)
        queries.answer()
        releasing.result(LIMIT)
        closing.result(LIMIT)
    written = requests_of(peer, UpdateConsumerOffset)
    assert [decode_fields(UpdateConsumerOffset, each.fields).commit_offset for each in written] == [7]
