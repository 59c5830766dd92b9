"""A master that is gone is one line in a consumer's log, without a traceback, and it is tried again."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

import mq
from mq.remoting.client.connections import cluster as routes
from mq.remoting.codec.requests.statistics import GetConsumerConnections
from mq.remoting.codec.response_codes import ResponseCode
from tests.support.eventually import eventually
from tests.support.fake_cluster import FakeCluster, open_cluster
from tests.support.remoting_peer import Peer, with_code


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
