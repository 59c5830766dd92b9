"""`mq DIR serve` as a process of its own, and several on one directory: stopped, killed, side by side."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from pathlib import Path

import pytest

import mq
from mq.cli.verbs.network.serve import LIMITS
from mq.remoting.codec.frame import Frame, encode
from mq.remoting.codec.requests.name_servers import GetClusterInfo
from mq.remoting.server.options import Limits
from mq.store.check import problems
from tests.support.eventually import eventually
from tests.support.serving import Serving, serving

LIMIT = 60.0


def test_each_limit_of_serve_is_an_option() -> None:
    assert tuple(name for name, _, _ in LIMITS) == Limits.__slots__


def test_limits_of_the_command_line_hold(directory: Path) -> None:
    with serving(directory, "--connections-per-address", "1", "--idle-seconds", "1000.5") as process:
        host, port = process.address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), LIMIT) as first:
            first.sendall(encode(Frame(GetClusterInfo.CODE)))
            assert first.recv(4)
            with socket.create_connection((host, int(port)), LIMIT) as second:
                assert second.recv(1) == b""


def connected(process: Serving) -> mq.Broker:
    return mq.open("rocketmq://" + process.name_server, timeout=30.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_end(directory: Path, number: int) -> None:
    with serving(directory) as process:
        with connected(process) as client:
            client.create_topic("orders", 1)
            with mq.Producer(client, timeout=LIMIT) as producer:
                producer.send(mq.Message("orders", b"one"))
            assert process.process.stdout is not None
            facts = json.loads(process.process.stdout.readline())
            assert {"connections", "requests", "stored", "pulled", "clients"} <= facts.keys()
        assert process.end(number) == 0
    with mq.open(directory) as store:
        assert [m.body for q in store.topic("orders").queues for m in q.read(0).messages] == [b"one"]


def test_a_message_of_another_process_answers_a_pull(directory: Path) -> None:
    came: list[bytes] = []
    with serving(directory) as process, connected(process) as client, mq.open(directory) as store:
        topic = store.create_topic("orders", 1)
        with mq.PushConsumer(client, "billing") as consumer:
            consumer.subscribe("orders", listener=lambda message: came.append(message.body))
            consumer.start()
            [member] = waited_for(lambda: store.group("billing").members())
            assert re.match(r"127\.0\.0\.1:\d+ \(PYTHON, 5\.3\.3\)", member.host)
            eventually(lambda: bool(consumer.assignment()), lambda: "nothing was assigned", LIMIT)
            topic.send(b"one")
            eventually(lambda: came == [b"one"], lambda: came, LIMIT)


def waited_for(what: object) -> list[mq.Member]:
    found: list[mq.Member] = []

    def look() -> bool:
        found[:] = what()  # type: ignore[operator]  # a callable, as the test writes it
        return bool(found)

    eventually(look, lambda: "nothing came", LIMIT)
    return found


def test_the_members_of_a_killed_server_are_gone_and_nothing_is_lost(directory: Path) -> None:
    with mq.open(directory) as store, serving(directory) as process, connected(process) as client:
        topic = store.create_topic("orders", 4)
        came: list[bytes] = []
        with mq.PushConsumer(client, "billing") as remote, mq.PushConsumer(store, "billing") as local:
            for consumer in (remote, local):
                consumer.subscribe("orders", listener=lambda message: came.append(message.body))
                consumer.start()
            eventually(lambda: len(store.group("billing").members()) == 2, lambda: None, LIMIT)
            acknowledged = []
            with mq.Producer(client, retries=0, timeout=LIMIT) as producer:
                for n in range(50):
                    producer.send(mq.Message("orders", b"%d" % n))
                    acknowledged.append(b"%d" % n)
            process.end(signal.SIGKILL)
            eventually(
                lambda: [each.client_id for each in store.group("billing").members()] == [local.client_id],
                lambda: store.group("billing").members(),
                LIMIT,
            )
            topic.send(b"after")
            eventually(lambda: {*acknowledged, b"after"} <= set(came), lambda: len(came), LIMIT)
    assert list(problems(directory)) == []


def test_several_processes_serve_one_directory(directory: Path) -> None:
    with (
        serving(directory) as first,
        serving(directory) as second,
        connected(first) as one,
        connected(second) as other,
    ):
        one.create_topic("orders", 4)
        came: list[bytes] = []
        consumers = [mq.PushConsumer(client, "billing") for client in (one, other)]
        for consumer in consumers:
            consumer.subscribe("orders", listener=lambda message: came.append(message.body))
            consumer.start()
        eventually(
            lambda: [sum(q.topic == "orders" for q in c.assignment()) for c in consumers] == [2, 2],
            lambda: [c.assignment() for c in consumers],
            LIMIT,
        )
        with mq.Producer(one, timeout=LIMIT) as producer:
            for n in range(40):
                producer.send(mq.Message("orders", b"%d" % n))
        eventually(lambda: len(came) >= 40, lambda: len(came), LIMIT)
        assert sorted(came, key=int) == [b"%d" % n for n in range(40)]
        for consumer in consumers:
            consumer.close()


def test_processes_may_share_their_ports(directory: Path) -> None:
    with serving(directory, "--share-ports") as first:
        port = first.name_server.rpartition(":")[2]
        with serving(directory, "--share-ports", "--name-server-port", port) as second:
            assert second.name_server == first.name_server
            for _ in range(8):  # The system shares the connections out.
                with connected(first) as client:
                    assert client.topics() == []
            os.kill(second.process.pid, 0)
