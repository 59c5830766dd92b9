"""Access control: signatures, rights, TLS, limits."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import mq
from mq.remoting import serve
from mq.remoting.codec.fields import Request, encode_fields
from mq.remoting.codec.frame import Frame, FrameReader, encode
from mq.remoting.codec.requests.name_servers import GetClusterInfo, GetRoute
from mq.remoting.codec.requests.offsets import GetMaxOffset
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.codec.signature import Credentials, signed
from mq.remoting.server.access import AccessKeys
from mq.remoting.server.server import Server
from tests.support.cluster.certificates import Certificates
from tests.support.eventually import eventually
from tests.support.memory.broker import MemoryBroker

LIMIT = 60.0
KEYS: AccessKeys = {
    "operator": "operators-secret",
    "shop": ("shops-secret", {"orders": "PUB", "billing": "SUB", "prices": "SUB"}),
}


def opened(server: Server, key: str, secret: str) -> mq.Broker:
    return mq.open("rocketmq://" + server.name_server, access_key=key, secret_key=secret, timeout=30.0)


def ask(server: Server, request: Request, **fields: str) -> Frame:
    """The answer to one request on a connection of its own."""
    host, port = server.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), LIMIT) as sock:
        sock.sendall(encode(Frame(request.CODE, {**encode_fields(request), **fields})))
        return answer(sock)


def answer(sock: socket.socket) -> Frame:
    reader = FrameReader()
    sock.settimeout(LIMIT)
    while True:
        data = sock.recv(1 << 16)
        assert data, "the connection was closed"
        for frame in reader.feed(data):
            return frame


def is_closed(sock: socket.socket) -> bool:
    sock.settimeout(LIMIT)
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def until(what: Callable[[], bool]) -> None:
    eventually(what, lambda: "it did not come true", LIMIT)


def test_a_key_without_rights_of_its_own_may_do_everything(store: mq.Broker) -> None:
    with (
        serve(store, port=0, namesrv_port=0, access_keys=KEYS) as server,
        opened(server, "operator", "operators-secret") as client,
    ):
        client.create_topic("orders", 1)
        with mq.Producer(client, timeout=LIMIT) as producer:
            producer.send(mq.Message("orders", b"one"))
        assert client.topic("orders").queues[0].max_offset == 1


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"AccessKey": "operator"},
        {"AccessKey": "operator", "Signature": "f6pvscTLZgPnFQLvMUrJAMrEfxg="},
        {"AccessKey": "nobody", "Signature": "f6pvscTLZgPnFQLvMUrJAMrEfxg="},
    ],
)
def test_without_a_valid_signature_nothing_is_answered(store: mq.Broker, fields: dict[str, str]) -> None:
    with serve(store, port=0, namesrv_port=0, access_keys=KEYS) as server:
        for request in (GetRoute("orders"), GetClusterInfo(), GetMaxOffset("orders", 0)):
            refused = ask(server, request, **fields)
            assert refused.code == ResponseCode.NO_PERMISSION
            assert refused.body == b""
            assert "no valid signature" in refused.remark


def test_a_signature_of_another_request_is_none(store: mq.Broker) -> None:
    with serve(store, port=0, namesrv_port=0, access_keys=KEYS) as server:
        other = signed({"topic": "prices"}, b"", Credentials("operator", "operators-secret"), 479)
        assert ask(server, GetRoute("orders"), **{**other, "topic": "orders"}).code == 16


def test_a_key_with_rights_may_do_no_more(store: mq.Broker) -> None:
    for name in ("orders", "prices", "secrets"):
        store.create_topic(name, 1)
    with (
        serve(store, port=0, namesrv_port=0, access_keys=KEYS) as server,
        opened(server, "shop", "shops-secret") as client,
    ):
        with mq.Producer(client, retries=0, timeout=LIMIT) as producer:
            producer.send(mq.Message("orders", b"one"))
            with pytest.raises(mq.MQError, match="lacks PUB for 'prices'"):
                producer.send(mq.Message("prices", b"one"))
        (queue,) = store.topic("secrets").queues
        with pytest.raises(mq.NotPermitted, match="lacks SUB for 'secrets'"):
            client.max_offset(queue.message_queue)
        with pytest.raises(mq.MQError, match="UPDATE_AND_CREATE_TOPIC is for operators"):
            client.create_topic("more", 1)
        assert store.topics() == ["orders", "prices", "secrets"]


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"a": ""}, TypeError),
        ({"": "b"}, TypeError),
        ({"a": ("b", {"orders": "WRITE"})}, ValueError),
    ],
)
def test_bad_keys_are_refused(keys: AccessKeys, error: type[Exception]) -> None:
    with MemoryBroker() as store, pytest.raises(error):
        serve(store, port=0, namesrv_port=0, access_keys=keys)


def test_with_tls_nothing_goes_in_the_clear(store: mq.Broker, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls" / "server.pem", tmp_path / "tls" / "server.key")
    store.create_topic("orders", 1)
    trusted = ssl.create_default_context(cafile=str(certificates.authority))
    with serve(store, port=0, namesrv_port=0, tls=context) as server:
        with mq.open("rocketmq://" + server.name_server, tls=trusted, timeout=30.0) as client:
            with mq.Producer(client, timeout=LIMIT) as producer:
                producer.send(mq.Message("orders", b"x" * 100_000))
            assert client.topic("orders").queues[0].read(0).messages[0].body == b"x" * 100_000
        host, port = server.address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), LIMIT) as sock:
            sock.sendall(encode(Frame(GetRoute.CODE, {"topic": "orders"})))
            assert is_closed(sock) or sock.recv(1) != b"\0"


def test_a_certificate_is_made_where_none_is_given(store: mq.Broker) -> None:
    anybody = ssl.create_default_context()
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    with (
        serve(store, port=0, namesrv_port=0, tls=True) as server,
        mq.open("rocketmq://" + server.name_server, tls=anybody, timeout=30.0) as client,
    ):
        assert client.topics() == store.topics()


def test_there_are_no_more_connections_than_allowed(store: mq.Broker) -> None:
    with serve(store, port=0, namesrv_port=0, connections_per_address=2) as server:
        host, port = server.address.rsplit(":", 1)
        first, second = (socket.create_connection((host, int(port)), LIMIT) for _ in range(2))
        with first, second:
            until(lambda: server.connections == 2)
            with socket.create_connection((host, int(port)), LIMIT) as third:
                assert is_closed(third)
        until(lambda: server.connections == 0)
        assert ask(server, GetClusterInfo()).code == 0


def test_a_silent_connection_is_closed(store: mq.Broker) -> None:
    with serve(store, port=0, namesrv_port=0, idle_seconds=1.0) as server:
        host, port = server.address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), LIMIT) as sock:
            sock.sendall(b"\0\0")  # A part of a frame is none.
            assert is_closed(sock)


def test_a_frame_over_the_limit_ends_its_connection_alone(store: mq.Broker) -> None:
    with serve(store, port=0, namesrv_port=0, frame_size=1 << 16) as server:
        host, port = server.address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), LIMIT) as sock:
            sock.sendall((1 << 20).to_bytes(4, "big"))
            assert is_closed(sock)
        assert ask(server, GetClusterInfo()).code == 0


@pytest.mark.parametrize(
    ("name", "value"), [("connections", 0), ("frame_size", 1 << 30), ("idle_seconds", -1)]
)
def test_bad_limits_are_refused(name: str, value: Any) -> None:
    with MemoryBroker() as store, pytest.raises(ValueError, match=f"^{name} is"):
        serve(store, port=0, namesrv_port=0, **cast("Any", {name: value}))
