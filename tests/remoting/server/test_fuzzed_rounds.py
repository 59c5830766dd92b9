"""Fuzzed frames of a stranger, thousands of half-open connections, frames at the limit.

MQ_FUZZ_FRAMES: how many frames (100,000).
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from pathlib import Path
from random import Random

import pytest

import mq
from mq.remoting import serve
from mq.remoting.codec.fields import encode_fields
from mq.remoting.codec.frame import FRAME_SIZE_MAX, Frame, HeaderEncoding, encode
from mq.remoting.codec.requests import requests
from mq.remoting.server.server import Server
from mq.store.check import problems
from tests.support.wire_values import Values

pytestmark = [pytest.mark.rounds, pytest.mark.timeout(1800)]

FRAMES = int(os.environ.get("MQ_FUZZ_FRAMES", "100000"))
CHUNK = 500
HALF_OPEN = 4000
GROWTH_MAX_KIB = 600 << 10
LIMIT = 120.0


def connected(server: Server) -> socket.socket:
    host, port = server.address.rsplit(":", 1)
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


def read_away(sock: socket.socket) -> None:
    try:
        while sock.recv(1 << 16):
            pass
    except OSError:
        return


def test_honest_clients_are_served_beside_fuzzed_frames(directory: Path) -> None:
    random, values = Random(7), Values(7)
    pool = [fuzzed(random, values) for _ in range(20_000)]
    with (
        mq.open(directory) as store,
        serve(store, port=0, namesrv_port=0) as server,
        mq.open("rocketmq://" + server.name_server, timeout=LIMIT) as client,
        mq.Producer(client) as producer,
    ):
        store.create_topic("honest", 1)
        producer.send(mq.Message("honest", b"first"))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        rounds, honest = 0, 1
        while server.traffic.requests < FRAMES:
            with connected(server) as sock:
                reader = threading.Thread(target=read_away, args=(sock,))
                reader.start()
                try:
                    for _ in range(20):
                        sock.sendall(b"".join(random.choices(pool, k=CHUNK)))
                except OSError:
                    pass  # It was hung up on.
                finally:
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)
                    reader.join(LIMIT)
            rounds += 1
            if rounds % 5 == 0:
                producer.send(mq.Message("honest", b"more"))
                honest += 1
        assert store.topic("honest").queues[0].max_offset == honest
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_MAX_KIB
    assert list(problems(directory)) == []


def test_half_open_connections_and_frames_at_the_limit_block_no_client(directory: Path) -> None:
    with (
        mq.open(directory) as store,
        serve(store, port=0, namesrv_port=0, idle_seconds=20.0) as server,
        mq.open("rocketmq://" + server.name_server, timeout=LIMIT) as client,
        mq.Producer(client) as producer,
    ):
        store.create_topic("honest", 1)
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        half = [connected(server) for _ in range(min(HALF_OPEN, descriptors // 3))]
        for sock in half:
            sock.sendall(b"\0\0\1")
        large = [connected(server) for _ in range(20)]
        for sock in large:
            sock.sendall((FRAME_SIZE_MAX - 4).to_bytes(4, "big") + bytes(1 << 16))
        for _ in range(20):
            producer.send(mq.Message("honest", b"one"))
        until = time.monotonic() + LIMIT
        while server.connections > 4 and time.monotonic() < until:
            time.sleep(0.1)
            producer.send(mq.Message("honest", b"more"))
        assert server.connections <= 4
        for sock in half + large:
            sock.close()
