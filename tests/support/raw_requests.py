"""Requests to a server as they are on the wire, without a client."""

from __future__ import annotations

import socket
from typing import TypeVar

from mq.remoting.codec.fields import Request, encode_fields
from mq.remoting.codec.frame import Frame, FrameReader, encode
from mq.remoting.codec.json_body import JsonBody, from_json
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.server import Server

__all__ = ["ask", "body"]

LIMIT = 60.0
Body = TypeVar("Body", bound=JsonBody)


def ask(server: Server, *requests: Request, content: bytes = b"") -> Frame:
    """The answer to the last of these requests, made on one connection; the first one has the content."""
    host, port = server.address.rsplit(":", 1)
    reader, found = FrameReader(), list[Frame]()
    with socket.create_connection((host, int(port)), LIMIT) as sock:
        for request in requests:
            sock.sendall(encode(Frame(request.CODE, encode_fields(request), content)))
            content, found = b"", []
            while not found:
                data = sock.recv(65536)
                assert data, "the connection was closed"
                found = list(reader.feed(data))
    return found[-1]


def body(kind: type[Body], answer: Frame) -> Body:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return from_json(kind, answer.body)
