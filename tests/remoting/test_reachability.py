"""A broker that failed is probed in the background until it answers, as by RocketMQ's detector."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

import mq
from mq.client import fault
from mq.remoting.client import reachability
from mq.remoting.codec.bodies.route import BrokerAddresses, QueueCounts, TopicRoute
from mq.remoting.codec.fields import decode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.name_servers import GetRoute
from mq.remoting.codec.requests.offsets import GetMaxOffset
from mq.remoting.codec.requests.sending import SendMessageV2
from mq.remoting.codec.response_codes import ResponseCode
from tests.support.eventually import eventually
from tests.support.fake_cluster import FakeCluster, open_cluster, requests_of
from tests.support.remoting_peer import Link, Peer, silence, with_code

QUEUE = mq.MessageQueue("orders", "a", 0)
MESSAGE = mq.Message("orders", b"1")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "DETECT_SECONDS", 0.02)


@pytest.fixture
def cluster(peer: Peer) -> FakeCluster:
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 1
    return cluster


@pytest.fixture
def broker(peer: Peer, cluster: FakeCluster) -> Iterator[mq.Broker]:
    with open_cluster(peer) as broker:
        broker.publishable("orders")
        yield broker


def wait(what: Callable[[], bool]) -> None:
    eventually(what, lambda: "it did not happen", 60)


def probe_count(peer: Peer, queue: mq.MessageQueue = QUEUE) -> int:
    """How many probes asked for the end of this queue."""
    probes = [decode_fields(GetMaxOffset, frame.fields) for frame in requests_of(peer, GetMaxOffset)]
    return sum(probe.queue_id == queue.queue_id for probe in probes)


def wait_for_probes(peer: Peer, count: int, queue: mq.MessageQueue = QUEUE) -> None:
    before = probe_count(peer, queue)
    wait(lambda: probe_count(peer, queue) >= before + count)


def assert_none_are_sent(peer: Peer, broker: mq.Broker) -> None:
    """Nothing asks for the end of QUEUE while others are probed many times."""
    other = QUEUE._replace(queue_id=7)
    end = broker.when_reachable(other, lambda: None)
    wait_for_probes(peer, 2, other)  # By now a probe that was on its way has arrived.
    before = probe_count(peer)
    wait_for_probes(peer, 5, other)
    assert probe_count(peer) == before
    end()


def test_a_broker_is_probed_until_it_answers(
    peer: Peer, broker: mq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = peer.replies[GetMaxOffset.CODE]
    reached = threading.Event()

    async def late(link: Link, request: Frame) -> None:
        """Answer a probe that has been given up."""
        before = probe_count(peer)
        while probe_count(peer) < before + 2:  # noqa: ASYNC110 - nothing tells of the next probe
            await asyncio.sleep(0.005)
        await answers(link, request)

    with monkeypatch.context() as patched:
        patched.setattr(reachability, "PROBE_SECONDS", 0.02)
        peer.on(GetMaxOffset.CODE, silence)
        broker.when_reachable(QUEUE, reached.set)
        wait_for_probes(peer, 3)
        peer.on(GetMaxOffset.CODE, late)
        wait_for_probes(peer, 15)
        peer.on(GetMaxOffset.CODE, with_code(ResponseCode.SYSTEM_BUSY))
        wait_for_probes(peer, 3)
    assert not reached.is_set()
    peer.on(GetMaxOffset.CODE, answers)
    assert reached.wait(60)
    assert peer.open_count == 1
    done = probe_count(peer)
    again = threading.Event()
    monkeypatch.setattr(reachability, "PROBE_SECONDS", 60.0)
    broker.when_reachable(QUEUE, again.set)
    assert again.wait(60)
    assert probe_count(peer) == done + 1


def test_probes_that_are_ended_are_not_sent(peer: Peer, broker: mq.Broker) -> None:
    peer.on(GetMaxOffset.CODE, with_code(ResponseCode.SYSTEM_BUSY))
    end = broker.when_reachable(QUEUE, lambda: None)
    wait_for_probes(peer, 1)
    end()
    assert_none_are_sent(peer, broker)


def test_a_broker_in_no_route_is_not_probed(broker: mq.Broker, peer: Peer) -> None:
    reached = threading.Event()
    broker.when_reachable(mq.MessageQueue("orders", "gone", 0), reached.set)
    assert reached.wait(60)
    assert probe_count(peer) == 0


def test_nothing_is_probed_for_a_closed_broker_object(broker: mq.Broker) -> None:
    broker.close()
    with pytest.raises(mq.BrokerClosed):
        broker.when_reachable(QUEUE, lambda: None)


@pytest.fixture
def two(peer: Peer) -> Iterator[tuple[Peer, Peer]]:
    """Brokers "a" and "b", each with a queue of the topic; the name server is the peer."""
    with Peer() as first, Peer() as second:
        for each in (first, second):
            FakeCluster(each)

        async def route(link: Link, request: Frame) -> None:
            brokers = tuple(
                BrokerAddresses(name, {0: each.address}, "c") for name, each in (("a", first), ("b", second))
            )
            body = TopicRoute(brokers, (QueueCounts("a", 1, 1), QueueCounts("b", 1, 1)))
            link.answer(request, body=to_json(body))

        peer.on(GetRoute.CODE, route)
        yield first, second


def test_a_producer_leaves_an_unreachable_broker_alone_until_it_answers_a_probe(
    peer: Peer, two: tuple[Peer, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No broker is ever available here, so that the producer goes by what is reachable."""
    monkeypatch.setattr(fault, "pause_after", lambda _latency_ms: 1 << 40)
    away, _ = two
    used: list[str] = []
    with (
        open_cluster(peer) as broker,
        mq.Producer(broker, timeout=60.0, fault_avoidance=True, fault_detector=True) as producer,
    ):
        producer.after_send.append(lambda _message, queue, *_: used.append(queue.broker_name))

        def uses(name: str) -> bool:
            used.clear()
            producer.send(MESSAGE)
            return name in used

        wait(lambda: uses("a"))
        wait(lambda: uses("b"))
        away.stop()
        wait(lambda: uses("a"))  # The attempt fails, and another one is made at broker b.
        assert used[-1] == "b"
        for _ in range(20):
            assert not uses("a")
        away.start()
        wait(lambda: uses("a"))


def test_a_closed_producer_probes_nothing(peer: Peer, broker: mq.Broker) -> None:
    for request in (GetMaxOffset, SendMessageV2):
        peer.on(request.CODE, with_code(ResponseCode.SYSTEM_BUSY))
    with mq.Producer(broker, retries=0, fault_avoidance=True, fault_detector=True) as producer:
        for _ in range(3):
            with pytest.raises(mq.SendFailed):
                producer.send(MESSAGE)
        wait_for_probes(peer, 2)
    assert_none_are_sent(peer, broker)


def test_a_detector_without_fault_avoidance_is_refused(broker: mq.Broker) -> None:
    with pytest.raises(ValueError, match="needs fault_avoidance"):
        mq.Producer(broker, fault_detector=True)
