"""The programs that measure RocketMQ's own clients run, and give figures; which, is no matter of a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.speed.peers.rocketmq_java import JavaClient
from tests.speed.peers.rocketmq_python import CPP, GRPC, measure
from tests.support.cluster.proxy import Proxy
from tests.support.cluster.shared import SharedCluster, attached, unique_name

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(900)]


@pytest.fixture
def cluster() -> SharedCluster:
    return attached("5.3")


@pytest.fixture
def topic(cluster: SharedCluster) -> Iterator[str]:
    name = unique_name("speed")
    with cluster.clients() as java:
        java.create_topic(name, 2)
        yield name


def test_the_java_client_is_measured(cluster: SharedCluster, topic: str) -> None:
    client = JavaClient(cluster.name_server, topic)
    for figures in (client.send(2, 0.5), client.send_async(0.5), client.send_batches(0.5, 50)):
        assert figures["rate"] > 0
        assert figures["cpu_us"] > 0
    client.fill(500)
    assert client.drain(unique_name("g"), 500)["rate"] > 0


def test_latencies_are_measured(cluster: SharedCluster, topic: str) -> None:
    figures = JavaClient(cluster.name_server, topic).latency(unique_name("g"), 50, 1000)
    assert 0 < figures["p50_us"] <= figures["p99_us"]


def test_the_python_client_with_the_library_in_c_is_measured(cluster: SharedCluster, topic: str) -> None:
    figures = measure(CPP, cluster.name_server, topic, 200, 1024)
    assert figures.keys() == {"send_rate", "send_cpu_us", "consume_rate", "consume_cpu_us"}
    assert min(figures.values()) > 0


def test_the_python_client_of_grpc_is_measured_through_a_proxy(
    cluster: SharedCluster, topic: str, tmp_path: Path
) -> None:
    proxy = Proxy(tmp_path / "proxy", cluster.name_server)
    try:
        proxy.start()
        figures = measure(GRPC, proxy.address, topic, 200, 1024)
    finally:
        proxy.close()
    assert min(figures.values()) > 0
