"""Fuzzed frames, half-open connections, frames at the size limit, wrong signatures and replays.

A stranger in another process sends them. An honest client, in a third one, is served beside it, and memory
stays bounded.

Each test prints how long the sends of the honest client took before and meanwhile. At full size the variables
are 1000000, 10000 and 1000:

MQ_FUZZ_FRAMES: how many frames (100,000); a tenth as many with wrong signatures or replayed.
MQ_HALF_OPEN: how many half-open connections (4,000).
MQ_LARGE_FRAMES: how many connections that send a frame at the limit (100).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import socket
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

import pytest

import mq
from mq.remoting import serve
from mq.remoting.codec.fields import encode_fields
from mq.remoting.codec.frame import FRAME_SIZE_MAX, Frame, HeaderEncoding, encode
from mq.remoting.codec.language import VERSION
from mq.remoting.codec.requests import requests
from mq.remoting.codec.requests.sending import SendMessage
from mq.remoting.codec.signature import Credentials, signed
from mq.remoting.server.server import Server
from mq.store.check import problems
from tests.support.eventually import eventually
from tests.support.processes.children import Child, hear, say
from tests.support.wire_values import Values

pytestmark = [pytest.mark.rounds, pytest.mark.timeout(1800)]

FRAMES = int(os.environ.get("MQ_FUZZ_FRAMES", "100000"))
HALF_OPEN = int(os.environ.get("MQ_HALF_OPEN", "4000"))
LARGE_FRAMES = int(os.environ.get("MQ_LARGE_FRAMES", "100"))
CHUNK = 500
GROWTH_MAX_KIB = 600 << 10
LIMIT = 240.0
CHILD_LIMIT = 1700.0
ROUND_COUNT, ROUND_SENDS = 5, 100
# Of the median send, by medians of rounds. Without turns it waits for all that the stranger has sent.
SLOWER_MAX = 1000.0
OPERATOR = Credentials("operator", "operators-secret")
KEYS = {OPERATOR.access_key: OPERATOR.secret_key}


class Honest:
    """A client, in a process of its own, whose sends are measured in rounds: some before, the others beside
    an attack."""

    def __init__(self, server: Server, signer: Credentials | None = None) -> None:
        self._server = server
        self._child = Child(send_when_told, server.name_server, signer, timeout=CHILD_LIMIT)
        self._rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.sent = 0

    def __enter__(self) -> Honest:
        self._child.__enter__()
        self.round()  # The first sends connect.
        self._before = [self.round() for _ in range(ROUND_COUNT)]
        self._beside = list[list[float]]()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.__exit__(kind, error, trace)

    def round(self) -> list[float]:
        """How long each send took, in ms, sorted."""
        self._child.say("round")
        taken: list[float] = json.loads(self._child.hear())
        self.sent += len(taken)
        return sorted(taken)

    def beside(self, is_over: Callable[[], bool], round_count: int = ROUND_COUNT) -> None:
        """So many rounds beside the attack, and more until it is over."""
        while len(self._beside) < round_count or not is_over():
            self._beside.append(self.round())

    def check(self, what: str, slower_max: float = SLOWER_MAX) -> None:
        p50, p99 = self._medians(0.5), self._medians(0.99)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self._rss_kib
        print(
            f"\n{what}: {self._server.traffic.requests:,} requests, {self._server.traffic.refused:,} refused;"
            f" honest sends p50 {p50[0]:.2f} -> {p50[1]:.2f} ms, p99 {p99[0]:.2f} -> {p99[1]:.2f} ms"
            f" ({p99[1] / p99[0]:.1f} times) of {len(self._beside)} rounds; memory grew {grown_kib >> 10} MiB"
        )
        assert p50[1] / p50[0] < slower_max
        assert grown_kib < GROWTH_MAX_KIB

    def _medians(self, part: float) -> tuple[float, float]:
        before, beside = (
            statistics.median(taken[int(len(taken) * part)] for taken in rounds)
            for rounds in (self._before, self._beside)
        )
        return before, beside


def honest_client(store: mq.Broker, server: Server, signer: Credentials | None = None) -> Honest:
    store.create_topic("honest", 1)
    return Honest(server, signer)


def send_when_told(name_server: str, signer: Credentials | None) -> None:
    """A round of sends for each line that is heard; says how long each took, in ms."""
    keys: dict[str, Any] = {}
    if signer is not None:
        keys = {"access_key": signer.access_key, "secret_key": signer.secret_key}
    with (
        mq.open("rocketmq://" + name_server, timeout=LIMIT, **keys) as client,
        mq.Producer(client, timeout=LIMIT) as producer,
    ):
        while hear():
            taken = []
            for _ in range(ROUND_SENDS):
                begin = time.perf_counter()
                producer.send(mq.Message("honest", b"body"))
                taken.append((time.perf_counter() - begin) * 1000)
            say(json.dumps(taken))


def connected(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    sock = socket.create_connection((host, int(port)), LIMIT)
    sock.settimeout(LIMIT)
    return sock


def fuzzed(random: Random, values: Values) -> bytes:
    """A frame that is sound, or nearly."""
    request = random.choice(list(requests().values()))
    fields = encode_fields(values.header(request))
    for name in list(fields):
        if random.random() < 0.2:
            fields[name] = random.choice(["", "-1", "9" * 30, "\U0001f600", "orders", "billing", "x" * 300])
        elif random.random() < 0.1:
            del fields[name]
        elif "opic" in name or name == "b":
            fields[name] = random.choice(["orders", "%RETRY%billing", "TBW102", "no topic", "%DLQ%"])
    body = random.choice([b"", b"{}", b"[1]", b"\0" * 40, random.randbytes(60)])
    encoding = random.choice([HeaderEncoding.JSON, HeaderEncoding.BINARY])
    data = bytearray(
        encode(Frame(request.CODE, fields, body, flags=random.choice([0, 0, 0, 2]), encoding=encoding))
    )
    if random.random() < 0.0002:  # Most of these end their connection.
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def to_orders(body: bytes, signer: Credentials) -> bytes:
    """A signed request to send this body."""
    request = SendMessage("shop", "orders", "TBW102", 4, 0, 0, 0, 0, "")
    fields = signed(encode_fields(request), body, signer, VERSION)
    return encode(Frame(SendMessage.CODE, fields, body))


def read_away(sock: socket.socket) -> None:
    try:
        while sock.recv(1 << 16):
            pass
    except OSError:
        return


def keep_sending(address: str, pool: list[bytes], random: Random) -> None:
    """Frames of the pool until the process is killed, 20 chunks on each connection."""
    say("sending")
    while True:
        with connected(address) as sock:
            reader = threading.Thread(target=read_away, args=(sock,))
            reader.start()
            try:
                for _ in range(20):
                    sock.sendall(b"".join(random.choices(pool, k=CHUNK)))
            except OSError:
                pass  # It was hung up on.
            finally:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)
                reader.join(LIMIT)


def keep_fuzzing(address: str) -> None:
    random, values = Random(7), Values(7)
    keep_sending(address, [fuzzed(random, values) for _ in range(20_000)], random)


def keep_replaying(address: str, recorded: bytes) -> None:
    """The recorded request, as it was and with a bit of its body turned, and requests of other secrets."""
    random = Random(7)
    forged = [to_orders(b"forged", Credentials(OPERATOR.access_key, f"{secret}")) for secret in range(50)]
    keep_sending(address, [recorded, recorded[:-1] + bytes([recorded[-1] ^ 1])] * 25 + forged, random)


def keep_half_open(address: str, count: int) -> None:
    """So many connections, each with three bytes of a frame."""
    raise_descriptors()
    opened = [connected(address) for _ in range(count)]
    for sock in opened:
        with contextlib.suppress(OSError):  # It was closed as idle meanwhile.
            sock.sendall(b"\0\0\1")
    say("opened")
    hear()


def send_large(address: str, count: int) -> None:
    """A frame at the limit on each of so many connections, all at the same time; says how many bytes went."""
    raise_descriptors()
    empty = len(encode(Frame(SendMessage.CODE, {}, b"")))
    frame = memoryview(encode(Frame(SendMessage.CODE, {}, bytes(FRAME_SIZE_MAX - empty))))
    waiting = selectors.DefaultSelector()
    for _ in range(count):
        sock = connected(address)
        sock.setblocking(False)
        waiting.register(sock, selectors.EVENT_WRITE, [0])
    say("opened")
    total = 0
    while waiting.get_map():
        for key, _ in waiting.select(LIMIT):
            assert isinstance(key.fileobj, socket.socket)
            try:
                key.data[0] += key.fileobj.send(frame[key.data[0] : key.data[0] + (1 << 16)])
                is_over = key.data[0] == len(frame)
            except BlockingIOError:
                continue
            except OSError:
                is_over = True  # It was hung up on.
            if is_over:
                total += key.data[0]
                waiting.unregister(key.fileobj)
    say(f"{total:,}")
    hear()


def raise_descriptors() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def test_honest_clients_are_served_beside_fuzzed_frames(directory: Path) -> None:
    with (
        mq.open(directory) as store,
        serve(store, port=0, namesrv_port=0) as server,
        honest_client(store, server) as honest,
    ):
        with Child(keep_fuzzing, server.address, timeout=CHILD_LIMIT) as child:
            assert child.hear() == "sending"
            honest.beside(lambda: server.traffic.requests >= FRAMES + honest.sent)
            child.kill()
        assert store.topic("honest").queues[0].max_offset == honest.sent
        honest.check("fuzzed frames")
    assert list(problems(directory)) == []


def test_wrong_signatures_store_nothing_and_replays_what_was_recorded(directory: Path) -> None:
    recorded = to_orders(b"recorded", OPERATOR)
    with (
        mq.open(directory) as store,
        serve(store, port=0, namesrv_port=0, access_keys=KEYS) as server,
        honest_client(store, server, OPERATOR) as honest,
    ):
        orders = store.create_topic("orders", 1)
        with Child(keep_replaying, server.address, recorded, timeout=CHILD_LIMIT) as child:
            assert child.hear() == "sending"
            honest.beside(lambda: server.traffic.requests >= FRAMES // 10 + honest.sent)
            child.kill()
        bodies = {message.body for message in orders.queues[0].read(0).messages}
        assert bodies == {b"recorded"}
        assert store.topic("honest").queues[0].max_offset == honest.sent
        honest.check(f"wrong signatures and {orders.queues[0].max_offset:,} replays")
    assert list(problems(directory)) == []


def test_half_open_connections_block_no_client(directory: Path) -> None:
    raise_descriptors()
    count = min(HALF_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1000)
    room = count + 100
    with (
        mq.open(directory) as store,
        serve(
            store,
            port=0,
            namesrv_port=0,
            idle_seconds=30.0,
            connections=room,
            connections_per_address=room,
        ) as server,
        honest_client(store, server) as honest,
    ):
        own = server.connections
        with Child(keep_half_open, server.address, count, timeout=CHILD_LIMIT) as child:
            assert child.hear() == "opened"
            seen = server.connections - own
            honest.beside(lambda: True)
            eventually(lambda: server.connections <= own, lambda: server.connections, LIMIT, 0.1)
            honest.check(f"{count:,} connections, {seen:,} of them half-open at once")
            child.say("")


def test_frames_at_the_size_limit_take_no_more_than_their_room(directory: Path) -> None:
    raise_descriptors()
    with (
        mq.open(directory) as store,
        serve(store, port=0, namesrv_port=0) as server,
        honest_client(store, server) as honest,
        Child(send_large, server.address, LARGE_FRAMES, timeout=CHILD_LIMIT) as child,
    ):
        assert child.hear() == "opened"
        sent = list[str]()
        waiting = threading.Thread(target=lambda: sent.append(child.hear()))
        waiting.start()
        honest.beside(lambda: not waiting.is_alive(), 1)
        honest.check(
            f"a frame at the limit from each of {LARGE_FRAMES:,} connections, {sent[0]} bytes of them"
        )
        # Their bodies are dropped as they come, so no connection is closed for the room that it takes.
        eventually(lambda: server.traffic.refused == LARGE_FRAMES, lambda: server.traffic.refused, LIMIT, 0.1)
        child.say("")
    assert list(problems(directory)) == []
