"""Producer.send_oneway on a cluster: a request that no broker answers."""

from __future__ import annotations

import pytest

import mq
from mq.remoting.codec.requests.sending import SendMessageV2
from tests.support.eventually import eventually
from tests.support.fake_cluster import FakeCluster, open_cluster, requests_of
from tests.support.remoting_peer import Peer, silence

LONG = 3600.0  # A test that waits for an answer ends by its own limit.


def test_a_oneway_send_waits_for_no_answer(peer: Peer) -> None:
    FakeCluster(peer).queue_counts["orders"] = 1
    peer.on(SendMessageV2.CODE, silence)
    results: list[mq.SendResult | None] = []
    with open_cluster(peer, LONG) as broker, mq.Producer(broker, timeout=LONG) as producer:
        producer.after_send.append(lambda _message, _queue, result, _error: results.append(result))
        for body in (b"1", b"2"):
            producer.send_oneway(mq.Message("orders", body))
        eventually(lambda: len(requests_of(peer, SendMessageV2)) == 2, lambda: peer.requests, 60)
    for body, request in zip((b"1", b"2"), requests_of(peer, SendMessageV2), strict=True):
        assert request.is_oneway
        assert request.body == body
        assert "WAIT\x01false\x02" in request.fields["i"]
    assert [result.queue_offset for result in results if result is not None] == [-1, -1]


def test_a_oneway_send_before_any_connection_is_not_lost_by_a_close(peer: Peer) -> None:
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 1
    with open_cluster(peer) as broker, mq.Producer(broker) as producer:
        producer.send_oneway(mq.Message("orders", b"1"))
    eventually(lambda: len(cluster.sent) == 1, lambda: peer.requests, 60)


def test_a_oneway_send_to_a_broker_that_is_not_there_is_an_error(peer: Peer) -> None:
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 1
    cluster.master = "127.0.0.1:1"
    with (
        open_cluster(peer) as broker,
        mq.Producer(broker) as producer,
        pytest.raises(mq.RemotingError, match=r"127\.0\.0\.1:1 cannot be reached"),
    ):
        producer.send_oneway(mq.Message("orders", b"1"))
