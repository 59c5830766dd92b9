"""The other end of a Remoting connection, on asyncio: it does what a test scripts, answers or misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from mq.remoting.codec.frame import Frame, FrameReader, answer_to, encode
from tests.support.eventually import eventually

Reply = Callable[["Link", Frame], Awaitable[None]]
LIMIT = 30.0
HANDSHAKE_LIMIT = 5.0  # of a client that is in the middle of it when the peer ends


class Link:
    """One connection that a client has opened."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._sock = writer.get_extra_info("socket")
        self.requests: list[Frame] = []
        self.answers: list[Frame] = []  # to requests of the peer
        self.is_open = True

    def send(self, frame: Frame) -> None:
        self.send_bytes(encode(frame))

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    def answer(self, request: Frame, code: int = 0, **members: Any) -> None:
        self.send(answer_to(request, code, **members))

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """The client's next read but that of data it has yet is an error."""
        with contextlib.suppress(OSError):  # It is closed already.
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


class Peer:
    """Listens on 127.0.0.1 from start() to stop(), on the same port again after that.

    What `replies` has no code of is not answered.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.replies: dict[int, Reply] = {}
        self.links: list[Link] = []
        self._kept = socket.socket()  # Keeps the port from others while nobody listens.
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.bind(("127.0.0.1", 0))
        self.port: int = self._kept.getsockname()[1]
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._is_stopped = True
        self._answering: set[asyncio.Future[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Peer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.run(self._settle())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT)
        self._loop.close()
        self._kept.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[Frame]:
        return [request for link in self.links for request in link.requests]

    @property
    def open_count(self) -> int:
        """How many connections there are by now."""
        return sum(link.is_open for link in self.links)

    def on(self, code: int, reply: Reply) -> None:
        self.replies[code] = reply

    def start(self) -> None:
        self._is_stopped = False
        self._server = self.listen("127.0.0.1")

    def listen(self, host: str) -> asyncio.Server:
        """Be there under another address too, until close_server."""
        server: asyncio.Server = self.run(
            asyncio.start_server(self._serve, host, self.port, ssl=self._tls, limit=1 << 20)
        )
        return server

    def close_server(self, server: asyncio.Server) -> None:
        self._loop.call_soon_threadsafe(server.close)

    def stop(self) -> None:
        """Stop listening, and cut every connection."""
        self.run(self._stop())

    def run(self, work: Any) -> Any:
        """Have the peer's loop run a coroutine; what it returns."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(LIMIT)

    def push(self, frame: Frame, link: int = -1) -> None:
        """Sends a request of the peer's own, or whatever else, to a client."""
        self.run(self._push(self.links[link], frame))

    async def _push(self, link: Link, frame: Frame) -> None:
        link.send(frame)

    async def _stop(self) -> None:
        self._is_stopped = True
        if self._server is not None:
            # A connection that is accepted, and has no transport yet, would be left open by the close.
            for sock in self._server.sockets:
                self._loop.remove_reader(sock.fileno())
            for _ in range(2):
                await asyncio.sleep(0)
            self._server.close()
            self._server = None
        for link in self.links:
            link.reset()

    async def _settle(self) -> None:
        """Once it is stopped: no connection is left, also of those that are about to be accepted."""
        for each in list(self._answering):
            each.cancel()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            _, late = await asyncio.wait(tasks, timeout=HANDSHAKE_LIMIT)
            for each in late:
                each.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(writer)
        self.links.append(link)
        if self._is_stopped:  # It was accepted before, and not served yet.
            link.reset()
        frames = FrameReader()
        try:
            while data := await reader.read(1 << 16):
                for frame in frames.feed(data):
                    if frame.is_response:
                        link.answers.append(frame)
                        continue
                    link.requests.append(frame)
                    reply = self.replies.get(frame.code)
                    if reply is not None:
                        answering = asyncio.ensure_future(reply(link, frame))
                        self._answering.add(answering)
                        answering.add_done_callback(self._answering.discard)
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()
            link.is_open = False


async def echo(link: Link, request: Frame) -> None:
    """Answers with the fields and the body of the request."""
    link.answer(request, fields=request.fields, body=request.body)


async def silence(link: Link, request: Frame) -> None:
    """Never answers."""


def after(seconds: float, reply: Reply = echo) -> Reply:
    """The same later."""

    async def later(link: Link, request: Frame) -> None:
        await asyncio.sleep(seconds)
        await reply(link, request)

    return later


def with_code(code: int, remark: str = "") -> Reply:
    async def reply(link: Link, request: Frame) -> None:
        link.answer(request, code, remark=remark)

    return reply


def arrived(peer: Peer, count: int = 1) -> list[Frame]:
    """The requests that came, once there are so many."""
    eventually(lambda: len(peer.requests) >= count, lambda: peer.requests, LIMIT)
    return peer.requests
