"""What the proxy does to frames, seen from both ends; no server of RocketMQ takes part."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.cluster.asking import ask, frame
from tests.support.eventually import eventually
from tests.support.fault_proxy import SYSTEM_BUSY, FaultProxy, FrameHead, response

SEND, PULL = 310, 11


class Echo:
    """A server that answers each request with its body and code 0, and notes the bytes that came."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.came = bytearray()
        self._threads = [threading.Thread(target=self._accept)]
        self._open: list[socket.socket] = []
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self._open.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        data = bytearray()
        with suppress(OSError), connection:
            while more := connection.recv(1 << 16):
                self.came += more
                data += more
                while len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[:4], "big"):
                    size = 4 + int.from_bytes(data[:4], "big")
                    whole, data = bytes(data[:size]), data[size:]
                    begin = 8 + int.from_bytes(whole[5:8], "big")
                    header = {"code": 0, "flag": 1, "opaque": FrameHead.of(whole).opaque}
                    connection.sendall(frame(header, whole[begin:]))

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy(echo.address) as between:
        yield between


def test_the_proxy_passes_frames_unchanged(proxy: FaultProxy, echo: Echo) -> None:
    body = bytes(range(256)) * 1000
    assert ask(proxy.address, SEND, {"k": "ü"}, body).body == body
    assert proxy.requests == [SEND]
    assert proxy.connection_count == 1


def test_the_second_send_is_answered_busy_and_does_not_reach_the_server(
    proxy: FaultProxy, echo: Echo
) -> None:
    proxy.answer_busy(SEND, number=2)

    codes = [ask(proxy.address, code, body=b"x").code for code in (SEND, PULL, SEND, SEND)]

    assert codes == [0, 0, SYSTEM_BUSY, 0]
    assert echo.came.count(b'"code": 310') == 2


def test_an_answer_is_cut_within_its_frame(proxy: FaultProxy, echo: Echo) -> None:
    proxy.cut_answer(SEND, after=40)

    with pytest.raises(ConnectionError, match="after 36 of"):
        ask(proxy.address, SEND, body=b"x" * 100)
    assert b"x" * 100 in echo.came
    assert ask(proxy.address, SEND, body=b"again").body == b"again"


def test_a_request_is_cut_within_its_frame(proxy: FaultProxy, echo: Echo) -> None:
    proxy.cut_request(SEND, after=30)

    with pytest.raises(ConnectionError):
        ask(proxy.address, SEND, body=b"x" * 100)
    eventually(lambda: len(echo.came) == 30, lambda: bytes(echo.came))


def test_requests_are_swallowed_until_it_is_healed(proxy: FaultProxy, echo: Echo) -> None:
    proxy.swallow(SEND)
    with pytest.raises(TimeoutError):
        ask(proxy.address, SEND, seconds=0.3)
    assert ask(proxy.address, PULL).code == 0
    proxy.heal()
    assert ask(proxy.address, SEND).code == 0


def test_an_answer_is_lost_though_the_request_was_served(proxy: FaultProxy, echo: Echo) -> None:
    proxy.swallow_answers(SEND, count=1)
    with pytest.raises(TimeoutError):
        ask(proxy.address, SEND, body=b"stored", seconds=0.5)
    eventually(lambda: b"stored" in echo.came, lambda: bytes(echo.came))
    assert ask(proxy.address, SEND).code == 0


def test_answers_and_requests_are_delayed(proxy: FaultProxy) -> None:
    proxy.delay_answers(0.15)
    proxy.delay_requests(0.15)
    began = time.monotonic()
    assert ask(proxy.address, SEND).code == 0
    assert time.monotonic() - began >= 0.3


def test_the_proxy_throttles_bytes(proxy: FaultProxy) -> None:
    proxy.throttle(200_000)
    began = time.monotonic()
    assert len(ask(proxy.address, SEND, body=b"x" * 30_000).body) == 30_000
    assert time.monotonic() - began >= 0.2


def read_to_end(connection: socket.socket) -> None:
    while connection.recv(100):
        pass


def test_connections_are_reset_and_refused(proxy: FaultProxy) -> None:
    host, _, port = proxy.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        eventually(lambda: proxy.connection_count == 1, lambda: proxy.connection_count)
        connection.sendall(frame({"code": SEND, "flag": 0, "opaque": 7}))
        assert connection.recv(4)
        proxy.reset_connections()
        with pytest.raises(ConnectionResetError):
            read_to_end(connection)
    proxy.refuse_connections()
    with pytest.raises(ConnectionError):
        ask(proxy.address, SEND)
    proxy.heal()
    assert ask(proxy.address, SEND).code == 0


def test_a_name_servers_proxy_leads_to_a_brokers_proxy(echo: Echo) -> None:
    with FaultProxy(echo.address, readdress={"127.0.0.1:10911": "127.0.0.1:7"}) as proxy:
        route = json.dumps({"brokerAddrs": {"0": "127.0.0.1:10911"}}).encode()
        answer = ask(proxy.address, 105, body=route)
    assert json.loads(answer.body) == {"brokerAddrs": {"0": "127.0.0.1:7"}}


def test_a_binary_header_is_read_and_answered_in_kind() -> None:
    header = struct.pack(">hBhiii", SEND, 0, 477, 99, 0, 0) + struct.pack(">i", 0)
    head = FrameHead.of(struct.pack(">II", 4 + len(header), 1 << 24 | len(header)) + header)
    assert head == FrameHead(SEND, 99, False, 1)
    answered = FrameHead.of(response(head, SYSTEM_BUSY, "büsy"))
    assert answered == FrameHead(SYSTEM_BUSY, 99, True, 1)


def test_bytes_that_are_no_frames_pass_too(proxy: FaultProxy, echo: Echo) -> None:
    host, _, port = proxy.address.rpartition(":")
    hello = b"\x16\x03\x01\x02\x00 and what follows"
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(hello)
        eventually(lambda: bytes(echo.came) == hello, lambda: bytes(echo.came))
