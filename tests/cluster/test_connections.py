"""Our connections to real clusters: the older generation, and servers that die and come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mq.errors import MQError, RemotingError
from mq.remoting.client.connections.addresses import parse_addresses
from mq.remoting.client.connections.answers import checked, framed
from mq.remoting.client.connections.cluster import Cluster as Routes
from mq.remoting.client.connections.name_servers import NameServers
from mq.remoting.client.connections.options import RemotingOptions
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.codec.fields import decode_fields
from mq.remoting.codec.frame import Frame, HeaderEncoding
from mq.remoting.codec.records import decode_records
from mq.remoting.codec.requests.consuming import PullFlag, PullMessage
from mq.remoting.codec.requests.sending import SendAnswer, SendMessageV2
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.settings import BrokerPlan
from tests.support.cluster.shared import SharedCluster, unique_name
from tests.support.eventually import eventually

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(600)]

UNIQUE_ID = "7F0000010001000000000000000A0000"


@contextmanager
def connected(options: RemotingOptions, name_server: str) -> Iterator[tuple[Remoting, Routes]]:
    remoting = Remoting("rocketmq://tests", options)
    try:
        yield remoting, Routes(remoting, NameServers(remoting, parse_addresses(name_server)), 1.0)
    finally:
        remoting.close()


def send(remoting: Remoting, broker: str, topic: str, body: bytes) -> Frame:
    properties = f"UNIQ_KEY\x01{UNIQUE_ID}\x02"
    header = SendMessageV2("senders", topic, "TBW102", 4, 0, 0, int(time.time() * 1000), 0, properties)
    return remoting.call(broker, framed(header, body))


def pull(remoting: Remoting, broker: str, group: str, topic: str) -> Frame:
    header = PullMessage(group, topic, 0, 0, 32, PullFlag.SUBSCRIPTION, 0, 15_000, 0, "*", "TAG")
    return remoting.call(broker, framed(header))


def found(answer: Frame) -> list[bytes]:
    checked(answer, PullMessage, "the broker")
    return [message.body for message in decode_records(answer.body, "a")]


@pytest.mark.parametrize("encoding", list(HeaderEncoding), ids=lambda encoding: encoding.name)
def test_a_broker_of_4_9(cluster_4_9: SharedCluster, encoding: HeaderEncoding) -> None:
    topic = unique_name("orders")
    with cluster_4_9.clients() as java:
        java.create_topic(topic, 1)
        java.create_group(topic)
        with connected(RemotingOptions(60, encoding=encoding), cluster_4_9.name_server) as (remoting, routes):
            assert routes.route(topic) is not None
            broker = routes.address("a")
            assert broker == cluster_4_9.brokers["a"]
            answer = checked(send(remoting, broker, topic, b"ours"), SendMessageV2, broker)
            assert answer.encoding is encoding  # 4.9 answers as it was asked.
            assert decode_fields(SendAnswer, answer.fields).queue_offset == 0
            java.send(topic, b"theirs")

            def both() -> bool:
                answer = pull(remoting, broker, topic, topic)
                return answer.code == 0 and len(found(answer)) == 2

            eventually(both, lambda: "the second message is in no queue yet")
            assert found(pull(remoting, broker, topic, topic)) == [b"ours", b"theirs"]


def test_servers_that_die_and_come_back() -> None:
    with Cluster([BrokerPlan("a"), BrokerPlan("b")], name_servers=2) as cluster:
        with cluster.clients() as java:
            java.create_topic("orders", 1)
        with connected(RemotingOptions(5.0), cluster.name_server) as (remoting, routes):
            assert routes.route("orders") is not None
            first, second = cluster.name_servers
            first.kill()
            assert routes.refresh("orders", 30) is not None
            second.kill()
            with pytest.raises(RemotingError, match="no name server answered"):
                routes.refresh("orders", 5)
            assert routes.route("orders") is not None  # as it was
            first.restart()
            address = cluster.brokers["a"].address
            checked(send(remoting, address, "orders", b"before"), SendMessageV2, address)
            cluster.brokers["a"].kill()
            with pytest.raises(MQError):
                send(remoting, address, "orders", b"into the void")
            eventually(lambda: routes.address("a") is None, lambda: routes.brokers)
            cluster.brokers["a"].restart()
            eventually(lambda: routes.address("a") == address, lambda: routes.brokers)
            eventually(works(remoting, address), lambda: "it does not answer")


def works(remoting: Remoting, address: str) -> Callable[[], bool]:
    def answers() -> bool:
        try:
            return send(remoting, address, "orders", b"after").code == 0
        except MQError:
            return False

    return answers
