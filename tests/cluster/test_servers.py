"""Servers that die, stop, come back, stand in for another, and refuse."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.cluster.access import Access, Account
from tests.support.cluster.asking import GET_CLUSTER, GET_ROUTE_OF_TOPIC, ask
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.java_clients import RequestFailed
from tests.support.cluster.programs import Version
from tests.support.cluster.settings import BrokerPlan, double_write, slave_of
from tests.support.cluster.shared import ROOT
from tests.support.eventually import eventually

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(600)]

WAIT = 120.0


def test_a_killed_broker_comes_back_with_its_messages() -> None:
    with Cluster([BrokerPlan("a"), BrokerPlan("b")]) as cluster, cluster.clients() as java:
        java.create_topic("orders", 2)
        java.start_producer("p", route_ms=1000)
        java.send_all("orders", [b"1", b"2", b"3", b"4"], producer="p")
        killed = cluster.brokers["a"]
        killed.kill()
        while_dead = java.send_all("orders", [b"5", b"6"], producer="p")
        killed.restart()

        assert {sent.broker for sent in while_dead} == {"b"}
        java.consume("billing", ["orders"], route_ms=1000)
        assert sorted(m.body for m in java.received("billing", 6, WAIT)) == [b"%d" % n for n in range(1, 7)]


def test_a_paused_broker_answers_when_it_goes_on() -> None:
    with Cluster() as cluster:
        broker = cluster.brokers["a"]
        broker.pause()
        with pytest.raises(TimeoutError):
            ask(broker.address, GET_ROUTE_OF_TOPIC, seconds=1.0)
        broker.resume()
        assert ask(broker.address, 28).code == 0


def test_a_name_server_that_comes_back_learns_of_the_brokers_again() -> None:
    with Cluster(name_servers=2) as cluster, cluster.clients() as java:
        java.create_topic("orders", 1)
        first, second = cluster.name_servers
        first.kill()
        assert second.knows(cluster.brokers["a"].address)

        def sends() -> bool:
            # The Java client fails with a name server that died before it turns to the other.
            try:
                return java.send("orders", b"through the second").status == "SEND_OK"
            except RequestFailed:
                return False

        eventually(sends, second.said)
        first.restart()
        eventually(cluster.brokers["a"].is_registered, first.said)


def test_a_double_write_waits_for_the_slave() -> None:
    master = double_write("a")
    with Cluster([master, slave_of(master)]) as cluster, cluster.clients() as java:
        java.create_topic("orders", 1)
        java.start_producer("p", retry_count=0, timeout_ms=20_000)

        def written_twice() -> bool:
            try:
                return java.send("orders", b"twice", producer="p").status == "SEND_OK"
            except RequestFailed:
                return False

        eventually(written_twice, cluster.brokers["a-slave1"].said)
        cluster.brokers["a-slave1"].kill()
        eventually(lambda: not written_twice(), lambda: "written without a slave")


ALICE = Account("alice-key", "alice-secret", topics={"orders": "PUB|SUB"}, groups={"billing": "SUB"})


@pytest.mark.parametrize("version", ["5.3", "4.9"])
def test_access_is_granted_by_right_and_by_secret(version: Version) -> None:
    with Cluster([BrokerPlan("a", version)], version=version, access=Access((ALICE,))) as cluster:
        with cluster.clients(version=version) as admin:
            for topic in ("orders", "salaries"):
                admin.create_topic(topic, 1)
        with cluster.clients(version=version, account=ALICE) as alice:
            assert alice.send("orders", b"one").status == "SEND_OK"
            alice.consume("billing", ["orders"])
            assert [m.body for m in alice.received("billing", 1, WAIT)] == [b"one"]
            with pytest.raises(RequestFailed) as denied:
                alice.send("salaries", b"two")
        mallory = Account("alice-key", "another secret")
        with cluster.clients(version=version, account=mallory) as java, pytest.raises(RequestFailed) as wrong:
            java.send("orders", b"three")
        assert (denied.value.code, wrong.value.code) == ((16, 16) if version == "5.3" else (1, 1))


def test_tls_takes_no_plain_connection() -> None:
    with Cluster(tls="enforcing") as cluster, cluster.clients() as java:
        assert cluster.certificates is not None
        java.create_topic("orders", 1)
        java.consume("billing", ["orders"])
        java.send("orders", b"sealed")
        assert [m.body for m in java.received("billing", 1, WAIT)] == [b"sealed"]

        for server in (*cluster.name_servers, *cluster.brokers.values()):
            with pytest.raises(OSError):  # noqa: PT011 - closed or reset, as the kernel has it
                ask(server.address, GET_CLUSTER)
            with pytest.raises(ssl.SSLCertVerificationError):
                ask(server.address, GET_CLUSTER, tls=ssl.create_default_context())
        sealed = cluster.certificates.client_context()
        assert ask(cluster.name_servers[0].address, GET_CLUSTER, tls=sealed).code == 0


HOLDER = """
import sys, time
from tests.support.cluster.cluster import Cluster
with Cluster() as cluster:
    print(cluster.brokers["a"].pid, cluster.name_servers[0].pid, flush=True)
    time.sleep(600)
"""


def test_no_server_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    # It leaves its files behind.
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, cwd=ROOT, text=True, env=environment
    )
    assert holder.stdout is not None
    pids = [int(pid) for pid in holder.stdout.readline().split()]
    assert len(pids) == 2
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()

    eventually(lambda: not any(map(is_running, pids)), lambda: pids)


def is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_starts_are_quick_and_small() -> None:
    """Generous bounds: the figures of a quiet machine are a tenth of them."""
    began = time.monotonic()
    with Cluster() as cluster:
        assert time.monotonic() - began < 120
        servers = [*cluster.name_servers, *cluster.brokers.values()]
        assert sum(server.rss_bytes for server in servers) < 1 << 30
