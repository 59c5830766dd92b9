"""Replicas of real RocketMQ masters, and real slaves of a served store.

The real broker is killed and started again while messages are sent.

MQ_REAL_KILLS: how often (2).
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

import mq
from mq.store.check import problems
from mq.store.log.commitlog import segment_files
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.ports import free_port
from tests.support.cluster.programs import Version
from tests.support.cluster.servers import Broker, NameServer
from tests.support.cluster.settings import BrokerPlan, double_write
from tests.support.eventually import eventually as eventually_or

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("MQ_REAL_KILLS", "2"))
EXCEPTION = re.compile(r"\.(\w+Exception)\b")
VERSIONS: tuple[Version, ...] = ("5.3", "4.9")


def eventually(what: Callable[[], bool], why: Callable[[], object] = lambda: "") -> None:
    eventually_or(what, why, 120.0, 0.05)


def log_of(path: Path, end: int) -> bytes:
    return b"".join(file.read_bytes() for file in segment_files(path / "commitlog"))[:end]


@pytest.fixture(params=VERSIONS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A master that answers a send once a slave has it."""
    version = cast(Version, request.param)
    with Cluster([double_write("a", version)], version=version) as cluster:
        yield cluster


def is_replicated(producer: mq.Producer) -> bool:
    """Whether a message is sent that a slave has; a broker that comes back may refuse some."""
    try:
        return producer.send(mq.Message("orders", b"after")).status is mq.SendStatus.SEND_OK
    except mq.MQError:
        return False


def are_replicated(producer: mq.Producer, count: int) -> bool:
    """The same of so many in a row: a broker that stands still for a moment is late for one."""
    return all(is_replicated(producer) for _ in range(count))


class Load(threading.Thread):
    """Sends to a topic until the `with` ends, and notes the keys of the messages that two brokers have."""

    def __init__(self, producer: mq.Producer) -> None:
        super().__init__(name="load")
        self.acknowledged: list[str] = []
        self._producer = producer
        self._ending = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._ending.wait(0.005):
            number += 1
            key = f"load{number}"
            with suppress(mq.MQError):  # The broker is being killed.
                message = mq.Message("orders", b"x" * random.randrange(2000), keys=key)
                if self._producer.send(message).status is mq.SendStatus.SEND_OK:
                    self.acknowledged.append(key)

    def __enter__(self) -> Load:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join()


def kill_often(broker: Broker, load: Load) -> None:
    """Each time once messages have been acknowledged again."""
    for _ in range(KILLS):
        seen = len(load.acknowledged)
        eventually(lambda seen=seen: len(load.acknowledged) > seen + 20)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        time.sleep(random.uniform(0, 0.5))
        broker.kill()
        time.sleep(random.uniform(0, 1))
        broker.restart()


def ha_address(broker: Broker) -> str:
    host, _, port = broker.address.rpartition(":")
    return f"{host}:{int(port) + 1}"


def test_a_replica_of_a_real_master(cluster: Cluster, directory: Path) -> None:
    real = cluster.brokers["a"]
    with (
        mq.open(f"rocketmq://{cluster.name_server}", timeout=60.0) as remote,
        mq.Producer(remote, timeout=60.0, retries=0) as producer,
    ):
        remote.create_topic("orders", 4)
        with mq.remoting.replicate(ha_address(real), directory, timeout=60.0) as replica:
            eventually(lambda: replica.is_connected, lambda: str(replica.error))
            for number in range(200):
                producer.send(mq.Message("orders", b"%d" % number, keys=f"k{number}"))
            eventually(lambda: are_replicated(producer, 100), lambda: str(replica.error))
            producer.send(mq.Message("orders", b"late", delay_level=1))
            with Load(producer) as load:
                kill_often(real, load)
            eventually(lambda: is_replicated(producer))
            with mq.PullConsumer(remote, "billing") as consumer:
                consumer.subscribe("orders")
                seen = 0
                while seen < 200:
                    seen += len(consumer.poll(2.0))
                consumer.commit()
            offsets = directory / "config" / "consumerOffset.json"
            # Not those of the beginning, which it may fetch before.
            eventually(lambda: committed_in(content_of(offsets)) >= 200, lambda: str(content_of(offsets)))
            eventually(lambda: replica.lag == 0, lambda: f"{replica.lag} {replica.error}")
            end = replica.offset
            assert replica.cuts == ()
    assert log_of(directory, end) == log_of(real.store, end)
    assert list(problems(directory)) == []
    with mq.open(directory) as promoted:
        assert "orders" in promoted.topics()
        assert len(promoted.topic("orders").queues) == 4
        assert sum(promoted.group("billing").offsets("orders").values()) >= 200
        assert promoted.query("orders", "k7")[0].body == b"7"
        assert [key for key in load.acknowledged if not promoted.query("orders", key)] == []
        sent = promoted.topic("orders").send(b"here")
        assert sent.status is mq.SendStatus.SEND_OK


def content_of(config: Path) -> bytes:
    """What is in a file that RocketMQ writes anew and renames; nothing while it is not there."""
    with suppress(FileNotFoundError):
        return config.read_bytes()
    return b""


def committed_in(content: bytes) -> int:
    """The sum of the group's offsets of orders in RocketMQ's file, which has queue ids without quotes."""
    found = re.search(rb'"orders@billing"\s*:\s*\{([^}]*)\}', content)
    return 0 if found is None else sum(int(each.split(b":")[1]) for each in found[1].split(b","))


class _Served:
    """The name server of a served store, as a broker of the tests knows one."""

    running = True

    def __init__(self, address: str) -> None:
        self.address = address

    def knows(self, _address: str) -> bool:
        return True


@pytest.mark.parametrize("version", VERSIONS)
def test_a_real_slave_of_a_served_store(directory: Path, tmp_path: Path, version: Version) -> None:
    port = free_port((-2, 1))
    with (
        mq.open(directory, flush="sync", replicas=1, commitlog_file_size=128 << 20) as master,
        mq.remoting.serve(master, port=port, namesrv_port=0, ha_port=port + 1) as server,
        mq.Producer(master) as producer,
    ):
        message = mq.Message("orders", b"x" * 1000, keys="k")
        assert producer.send(message).status is mq.SendStatus.SLAVE_NOT_AVAILABLE
        plan = BrokerPlan("mq", version, "SLAVE", 1, settings={"brokerClusterName": "DefaultCluster"})
        served = cast(NameServer, _Served(server.name_server))
        slave = Broker(plan, tmp_path / "slave", [served])
        slave.start()
        try:
            eventually(lambda: are_replicated(producer, 200), slave.said)
            with Load(producer) as load:
                kill_often(slave, load)
            eventually(lambda: producer.send(message).status is mq.SendStatus.SEND_OK, slave.said)
            if version == "4.9":  # It asks every 10 s; a 5.3 slave once a minute.
                topics = slave.store / "config" / "topics.json"
                eventually(lambda: b'"orders"' in content_of(topics), slave.said)
            # It logs what the master does not answer. Late is another matter, on a busy machine.
            assert {*EXCEPTION.findall(slave.said(None))} <= {"RemotingTimeoutException"}
            end = master.replication.log_range[1]
            eventually(lambda: log_of(slave.store, end) == log_of(directory, end))
        finally:
            slave.close()
