"""What a stranger sends: the server answers or hangs up, and goes on for the others."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mq
from mq.remoting import serve
from mq.remoting.codec.fields import encode_fields
from mq.remoting.codec.frame import FRAME_SIZE_MAX, Frame, FrameReader, HeaderEncoding, encode
from mq.remoting.codec.requests import requests
from mq.remoting.codec.requests.consuming import PullFlag, PullMessage
from mq.remoting.codec.requests.sending import SendMessage
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.server import Server
from tests.support.eventually import eventually
from tests.support.memory.broker import MemoryBroker
from tests.support.wire_values import Values

LIMIT = 60.0
CLUSTER_INFO = 106


@pytest.fixture(scope="module")
def serving() -> Iterator[tuple[Server, MemoryBroker]]:
    with MemoryBroker() as store, serve(store, port=0, namesrv_port=0) as server:
        yield server, store


def connected(server: Server) -> socket.socket:
    host, port = server.address.rsplit(":", 1)
    sock = socket.create_connection((host, int(port)), LIMIT)
    sock.settimeout(LIMIT)
    return sock


def sent_until_full(sock: socket.socket, data: bytes, size_max: int) -> int:
    """How much the other end and the system take of a stream like this."""
    sent = 0
    try:
        while sent < size_max:
            sent += sock.send(data)
    except BlockingIOError:
        pass
    return sent


def check_alive(server: Server) -> None:
    with connected(server) as sock:
        sock.sendall(encode(Frame(CLUSTER_INFO)))
        assert read(sock, 1)[0].code == 0


def read(sock: socket.socket, count: int) -> list[Frame]:
    """So many frames, fewer if the connection ends."""
    reader, frames = FrameReader(), list[Frame]()
    while len(frames) < count:
        try:
            data = sock.recv(1 << 16)
        except ConnectionError:
            break
        if not data:
            break
        frames += reader.feed(data)
    return frames


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=300))
def test_noise_costs_its_connection_at_most(serving: tuple[Server, MemoryBroker], noise: bytes) -> None:
    server, _ = serving
    with connected(server) as sock:
        sock.sendall(noise)
        sock.shutdown(socket.SHUT_WR)
        read(sock, 1)
    check_alive(server)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20) | st.integers().map(str)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    code=st.sampled_from(sorted(requests())) | st.integers(-(1 << 15), (1 << 15) - 1),
    fields=st.dictionaries(st.sampled_from([*"abcdefghijklmn", "topic", "queueId", "consumerGroup"]), TEXTS),
    body=st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b'{"clientID":1}', b"null", b"{" * 50]),
)
def test_every_request_is_answered(
    serving: tuple[Server, MemoryBroker], code: int, fields: dict[str, str], body: bytes
) -> None:
    server, _ = serving
    with connected(server) as sock:
        sock.sendall(encode(Frame(code, fields, body, opaque=7)))
        [answer] = read(sock, 1)
        assert answer.opaque == 7
        assert answer.is_response
        assert answer.code == 0 or answer.remark or answer.code in {19, 20, 21}


def test_sound_requests_of_every_kind_are_answered(serving: tuple[Server, MemoryBroker]) -> None:
    server, _ = serving
    values = Values(5)
    with connected(server) as sock:
        frames = [
            Frame(request.CODE, encode_fields(values.header(request)), opaque=place, encoding=encoding)
            for place, request in enumerate(requests().values())
            if request.CODE not in {11, 361}
            for encoding in [HeaderEncoding.JSON]
        ]
        sock.sendall(b"".join(map(encode, frames)))
        answers = read(sock, len(frames))
    assert {answer.opaque for answer in answers} == {frame.opaque for frame in frames}


def test_one_that_does_not_read_is_paused_and_the_others_are_served() -> None:
    with MemoryBroker() as store, serve(store, port=0, namesrv_port=0, unsent_size=1 << 16) as server:
        topic = store.create_topic("orders", 1)
        for _ in range(64):
            topic.send(bytes(4000))
        pull = PullMessage(
            "reading", "orders", 0, 0, 64, PullFlag.SUBSCRIPTION, 0, 0, 0, "*", "TAG", max_msg_bytes=1 << 18
        )
        request = encode(Frame(PullMessage.CODE, encode_fields(pull)))
        with connected(server) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            sock.setblocking(False)
            assert sent_until_full(sock, request * 100, 64 << 20) < 64 << 20
            check_alive(server)
            eventually(
                lambda: any(each.is_choked for each in list(server.served.connections)),
                lambda: [each.unsent for each in list(server.served.connections)],
                LIMIT,
            )
            (connection,) = [each for each in list(server.served.connections) if each.is_choked]
            assert connection.unsent < 20 << 20  # 64 answers of 256 KiB at most
        eventually(lambda: server.connections == 0, lambda: server.connections, LIMIT)


def test_a_connection_has_no_more_pulls_waiting_than_allowed() -> None:
    with MemoryBroker() as store, serve(store, port=0, namesrv_port=0, held_pulls=10) as server:
        store.create_topic("orders", 1)
        flags = PullFlag.SUBSCRIPTION | PullFlag.SUSPEND
        pull = PullMessage("reading", "orders", 0, 0, 32, flags, 0, 30_000, 0, "*", "TAG")
        request = encode(Frame(PullMessage.CODE, encode_fields(pull)))
        with connected(server) as sock:
            for _ in range(10):
                sock.sendall(request)
            eventually(lambda: held(server) == 10, lambda: held(server), LIMIT)
            sock.sendall(request)
            [refused] = read(sock, 1)
            assert refused.code == ResponseCode.SYSTEM_BUSY
            check_alive(server)
        eventually(lambda: held(server) == 0, lambda: held(server), LIMIT)


def held(server: Server) -> int:
    return sum(len(each.holds) for each in list(server.served.connections))


def test_half_open_connections_are_dropped_in_time() -> None:
    with MemoryBroker() as store, serve(store, port=0, namesrv_port=0, idle_seconds=2.0) as server:
        half = [connected(server) for _ in range(200)]
        for place, sock in enumerate(half):
            sock.sendall(encode(Frame(CLUSTER_INFO))[: place % 20])
        check_alive(server)
        eventually(lambda: server.connections == 0, lambda: server.connections, LIMIT)
        for sock in half:
            sock.close()


def test_unexpected_answers_and_oneway_requests_are_dropped(
    serving: tuple[Server, MemoryBroker],
) -> None:
    server, _ = serving
    with connected(server) as sock:
        sock.sendall(encode(Frame(0, flags=1, opaque=99)))
        sock.sendall(encode(Frame(9999, flags=2, opaque=98)))
        sock.sendall(encode(Frame(CLUSTER_INFO, opaque=97)))
        assert [frame.opaque for frame in read(sock, 1)] == [97]


def test_a_member_that_is_cut_off_leaves_its_queues(serving: tuple[Server, MemoryBroker]) -> None:
    server, store = serving
    store.create_topic("cut", 1)
    with (
        mq.open("rocketmq://" + server.name_server, timeout=30.0) as client,
        mq.PushConsumer(client, "cutting") as consumer,
    ):
        consumer.subscribe("cut", listener=lambda _: None)
        consumer.start()
        eventually(lambda: len(store.group("cutting").members()) == 1, lambda: None, LIMIT)
        before = set(server.served.connections)
        for connection in before:
            server.served.events.post(connection.close, "the test says so")
        # It comes back by a connection of its own making.
        eventually(lambda: not before & server.served.connections, lambda: None, LIMIT)
        eventually(lambda: len(store.group("cutting").members()) == 1, lambda: None, LIMIT)
    eventually(lambda: store.group("cutting").members() == [], lambda: None, LIMIT)


@pytest.mark.parametrize("is_oneway", [False, True])
def test_a_body_that_no_message_may_have_is_refused_without_being_kept(
    serving: tuple[Server, MemoryBroker], is_oneway: bool
) -> None:
    server, store = serving
    store.create_topic("orders", 1)
    fields = encode_fields(SendMessage("shop", "orders", "TBW102", 4, 0, 0, 0, 0, ""))
    frame = Frame(SendMessage.CODE, fields, bytes(FRAME_SIZE_MAX - 1000), flags=2 * is_oneway)
    data, refused = encode(frame), server.traffic.refused
    with connected(server) as sock:
        sock.sendall(data[: 8 << 20])
        [connection] = server.served.connections
        eventually(lambda: connection.received_size <= 2048, lambda: connection.received_size)
        sock.sendall(data[8 << 20 :] + encode(Frame(CLUSTER_INFO, opaque=7)))
        answers = read(sock, 1 if is_oneway else 2)
        assert answers[-1].opaque == 7
        if not is_oneway:
            assert answers[0].code == ResponseCode.MESSAGE_ILLEGAL
            assert f"{FRAME_SIZE_MAX - 1000:,} bytes is over the limit of 4,194,304" in answers[0].remark
    assert server.traffic.refused == refused + 1
    assert store.topic("orders").queues[0].max_offset == 0
