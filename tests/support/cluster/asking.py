"""One request of RocketMQ's remoting protocol over a connection of its own, with a JSON header.

It knows nothing of mq's codec, so that what tests mq stands on its own feet.
"""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import struct
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

FRAME_BYTES_MAX = 1 << 24
GET_ROUTE_OF_TOPIC = 105
GET_CLUSTER = 106
_opaque = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered; `code` 0 is success."""

    code: int
    remark: str | None
    fields: dict[str, str]
    body: bytes


def frame(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """The bytes of a request or an answer."""
    text = json.dumps(header).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


def ask(
    address: str,
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    seconds: float = 10.0,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Send a request and read its answer; raises OSError."""
    host, _, port = address.rpartition(":")
    header = {
        "code": code, "flag": 0, "language": "JAVA", "opaque": next(_opaque), "version": 477,
        "extFields": dict(fields or {}), "serializeTypeCurrentRPC": "JSON",
    }  # fmt: skip
    with ExitStack() as open_ones:
        connection = open_ones.enter_context(socket.create_connection((host, int(port)), timeout=seconds))
        if tls is not None:
            connection = open_ones.enter_context(tls.wrap_socket(connection, server_hostname=host))
        connection.sendall(frame(header, body))
        (size,) = struct.unpack(">I", _exactly(connection, 4))
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise OSError(f"{address} answered with a frame of {size} bytes")
        data = _exactly(connection, size)
    header_size = int.from_bytes(data[1:4], "big")
    answer = json.loads(data[4 : 4 + header_size])
    return Answer(
        answer["code"], answer.get("remark"), answer.get("extFields") or {}, data[4 + header_size :]
    )


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := connection.recv(size - len(data))):
            raise ConnectionError(f"the connection ended after {len(data)} of {size} bytes")
        data += more
    return data
