"""A master that is gone is one line in a consumer's log, without a traceback, and it is tried again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

import mq
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections import cluster as routes
from mq.remoting.client.connections.cluster import Cluster
from mq.remoting.client.connections.name_servers import NameServers
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.client.groups.initial_offset import InitialOffset
from mq.remoting.client.namespace import Namespace
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.offsets import GetMaxOffset, OffsetAnswer
from mq.remoting.codec.requests.statistics import GetConsumerConnections
from mq.remoting.codec.response_codes import ResponseCode
from tests.support.eventually import eventually
from tests.support.fake_cluster import FakeCluster, answer, open_cluster, requests_of
from tests.support.remoting_peer import Link, Peer, silence, with_code


def wait(what: Callable[[], bool]) -> None:
    eventually(what, lambda: "it did not happen", 60)


def test_a_master_that_is_gone_at_a_route_refresh_is_one_line(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(routes, "REFRESH_SECONDS", 0.05)
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 1

    def lines() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "cannot rebalance" in record.getMessage()]

    with Peer() as master, open_cluster(peer) as broker, mq.PushConsumer(broker, "billing") as consumer:
        cluster.serve(master)
        master.on(GetConsumerConnections.CODE, with_code(ResponseCode.CONSUMER_NOT_ONLINE))
        cluster.master = master.address
        consumer.subscribe("orders", listener=lambda _message: None)
        consumer.start()
        wait(lambda: len(consumer.assignment()) == 1)
        master.stop()
        cluster.queue_counts["orders"] = 2
        wait(lambda: bool(lines()))
        master.start()
        wait(lambda: len(consumer.assignment()) == 2)
        texts = [record.getMessage() for record in lines()]
        assert any(master.address in text for text in texts)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert len(texts) == len(set(texts))
    assert all("tries again in 1 s" in text for text in texts)


async def seven(link: Link, request: Frame) -> None:
    answer(link, request, OffsetAnswer(7))


def test_a_group_that_begins_with_the_last_begins_with_what_comes_when_the_master_is_back(
    peer: Peer, remoting: Remoting
) -> None:
    """Its members start while one of several masters is away."""
    cluster, queue = FakeCluster(peer), mq.MessageQueue("orders", "a", 0)
    cluster.queue_counts["orders"] = 1

    with Peer() as master:
        cluster.serve(master)
        master.on(GetMaxOffset.CODE, seven)
        cluster.master = master.address
        master.stop()
        known = Cluster(remoting, NameServers(remoting, (peer.address,)))
        assert known.route("orders") is not None
        initial = InitialOffset(Brokers(remoting, known), Namespace(), "last", [queue])
        with pytest.raises(mq.RemotingError, match=master.address):
            initial.offset(queue)
        master.start()
        wait(lambda: _offset_or_none(initial, queue) == 7)
        assert initial.offset(mq.MessageQueue("orders", "a", 1)) is None  # It was made later.


def test_a_broker_that_hangs_is_asked_for_an_end_once(peer: Peer, remoting: Remoting) -> None:
    """A consumer that starts waits for it, and not once for each of its queues."""
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 3
    known = Cluster(remoting, NameServers(remoting, (peer.address,)))
    assert known.route("orders") is not None
    peer.on(GetMaxOffset.CODE, silence)
    patient, remoting.options = remoting.options, replace(remoting.options, timeout=0.2)
    queues = [mq.MessageQueue("orders", "a", number) for number in range(3)]
    initial = InitialOffset(Brokers(remoting, known), Namespace(), "last", queues)
    wait(lambda: bool(requests_of(peer, GetMaxOffset)))  # It may have been given up before it was read.
    assert len(requests_of(peer, GetMaxOffset)) == 1
    remoting.options = patient
    peer.on(GetMaxOffset.CODE, seven)
    assert [initial.offset(queue) for queue in queues] == [7, 7, 7]


def _offset_or_none(initial: InitialOffset, queue: mq.MessageQueue) -> int | None:
    try:
        return initial.offset(queue)
    except mq.RemotingError:
        return None  # The next attempt to connect is not due yet.
