"""Requests to a server as they are on the wire, without a client."""

from __future__ import annotations

import socket
from collections import deque
from types import TracebackType
from typing import TypeVar

from mq.remoting.codec.fields import Request, encode_fields
from mq.remoting.codec.frame import Frame, FrameReader, encode
from mq.remoting.codec.json_body import JsonBody, from_json
from mq.remoting.codec.language import VERSION
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.codec.signature import Credentials, signed
from mq.remoting.server.server import Server
from tests.support.serving import Serving

__all__ = ["RawClient", "ask", "body"]

LIMIT = 60.0
Body = TypeVar("Body", bound=JsonBody)


class RawClient:
    """One connection to a server."""

    def __init__(self, server: Server | Serving) -> None:
        host, port = server.address.rsplit(":", 1)
        self._reader = FrameReader()
        self._frames: deque[Frame] = deque()
        self._sock = socket.create_connection((host, int(port)), LIMIT)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._sock.close()

    def send(self, frame: Frame) -> None:
        self._sock.sendall(encode(frame))

    def receive(self) -> Frame:
        """The next answer, or request of the server."""
        while not self._frames:
            data = self._sock.recv(65536)
            assert data, "the connection was closed"
            self._frames.extend(self._reader.feed(data))
        return self._frames.popleft()

    def ask(self, request: Request, content: bytes = b"", signer: Credentials | None = None) -> Frame:
        """The answer. What the server asks meanwhile is left out."""
        fields = encode_fields(request)
        if signer is not None:
            fields = signed(fields, content, signer, VERSION)
        self.send(Frame(request.CODE, fields, content))
        while True:
            found = self.receive()
            if found.is_response:
                return found

    def asked(self, kind: type[Request]) -> Frame:
        """The next request of this kind; others are left out."""
        while True:
            found = self.receive()
            if found.code == kind.CODE and not found.is_response:
                return found


def ask(server: Server, *requests: Request, content: bytes = b"", signer: Credentials | None = None) -> Frame:
    """The answer to the last of these requests, made on one connection; the first one has the content."""
    with RawClient(server) as client:
        for request in requests:
            found = client.ask(request, content, signer)
            content = b""
    return found


def body(kind: type[Body], answer: Frame) -> Body:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return from_json(kind, answer.body)
