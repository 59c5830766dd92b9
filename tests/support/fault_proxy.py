"""A TCP proxy between a client and a server of RocketMQ's remoting protocol, which does damage on order.

    with FaultProxy("127.0.0.1:10911") as proxy:
        proxy.delay_answers(0.5)            what comes back waits
        proxy.swallow(SEND)                 requests of this code are never answered nor passed on
        proxy.answer_busy(SEND, number=2)   the second such request from now on is answered SYSTEM_BUSY
        proxy.cut_answer(PULL, after=40)    40 bytes of the next such answer, then the end of the connection
        proxy.heal()

A client that asks a name server learns the brokers' own addresses; a proxy of the name server tells others:

    FaultProxy(name_server, readdress={broker.address: proxy.address})

It runs on a thread of its own. Frames are told apart by their lengths; of a header no more is read than code
and opaque, in either encoding. A frame that is passed on is passed on as it came.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

FRAME_BYTES_MAX = 1 << 24
SYSTEM_BUSY = 2
RESPONSE_FLAG = 1
START_SECONDS = 30.0

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class FrameHead:
    """What the proxy reads of a frame."""

    code: int
    opaque: int
    is_response: bool
    encoding: int  # 0 JSON, 1 ROCKETMQ

    @classmethod
    def of(cls, frame: bytes) -> FrameHead:
        """Of a frame with its length prefix; raises ValueError."""
        encoding, size = frame[4], int.from_bytes(frame[5:8], "big")
        header = frame[8 : 8 + size]
        if encoding == 0:
            values = json.loads(header)
            return cls(values["code"], values["opaque"], bool(values["flag"] & RESPONSE_FLAG), 0)
        if encoding == 1 and size >= 13:
            code, _language, _version, opaque, flag = struct.unpack_from(">hBhii", header)
            return cls(code, opaque, bool(flag & RESPONSE_FLAG), 1)
        raise ValueError(f"a frame with header encoding {encoding} and a header of {size} bytes")


@dataclass(slots=True)
class Rule:
    """What happens to requests of one code, or of any (None), and to their answers."""

    code: int | None
    what: str  # swallow, swallow_answer, refuse, cut_request, cut_answer
    number: int = 1  # the first request from now on that it is about
    count: int | None = 1  # of how many; None: of all from then on
    after: int = 0  # bytes that pass before a cut
    response_code: int = SYSTEM_BUSY
    remark: str = ""
    seen: int = 0

    def applies(self, code: int) -> bool:
        """Count a request; whether the rule is about it."""
        if self.code is not None and code != self.code:
            return False
        self.seen += 1
        return self.seen >= self.number and (self.count is None or self.seen < self.number + self.count)


class FaultProxy:
    """Listens on a port of its own; thread-safe. Without orders it passes everything on."""

    def __init__(self, server: str, readdress: Mapping[str, str] | None = None) -> None:
        """`readdress` is for a name server's proxy: the brokers' addresses, each with its proxy's."""
        host, _, port = server.rpartition(":")
        self.readdress = dict(readdress or {})
        self._server = (host, int(port))
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._request_delay = self._answer_delay = 0.0
        self._bytes_per_second: float | None = None
        self._refuses = False
        self._links: set[_Link] = set()
        self.requests: list[int] = []  # the codes of all requests that have come so far
        self.connection_count = 0  # of connections that were accepted so far
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")
        self.address = ""

    # Orders

    def delay_requests(self, seconds: float) -> None:
        """Every request reaches the server this much later."""
        self._request_delay = seconds

    def delay_answers(self, seconds: float) -> None:
        """Everything that the server sends comes this much later."""
        self._answer_delay = seconds

    def throttle(self, bytes_per_second: float) -> None:
        """Pass on no more than this, in each direction of each connection."""
        self._bytes_per_second = bytes_per_second

    def swallow(self, code: int | None = None, *, number: int = 1, count: int | None = None) -> None:
        """Requests of this code, or of any, are never answered: they do not reach the server."""
        self._add(Rule(code, "swallow", number, count))

    def swallow_answers(self, code: int | None = None, *, number: int = 1, count: int | None = None) -> None:
        """Requests reach the server, and their answers are lost: what was stored is not known to be."""
        self._add(Rule(code, "swallow_answer", number, count))

    def answer_busy(self, code: int | None = None, *, number: int = 1, count: int | None = 1) -> None:
        """SYSTEM_BUSY to the number-th request of this code from now on, and to `count` in all."""
        self.answer(code, SYSTEM_BUSY, "[PROXY]system busy", number=number, count=count)

    def answer(
        self,
        code: int | None,
        response_code: int,
        remark: str = "",
        *,
        number: int = 1,
        count: int | None = 1,
    ) -> None:
        """Answer requests of this code in the server's place."""
        self._add(Rule(code, "refuse", number, count, 0, response_code, remark))

    def cut_request(self, code: int | None = None, *, number: int = 1, after: int = 20) -> None:
        """The connection ends once so many bytes of the request have reached the server."""
        self._add(Rule(code, "cut_request", number, 1, after))

    def cut_answer(self, code: int | None = None, *, number: int = 1, after: int = 20) -> None:
        """The connection ends once so many bytes of the answer have reached the client."""
        self._add(Rule(code, "cut_answer", number, 1, after))

    def refuse_connections(self) -> None:
        """New connections are reset as soon as they stand."""
        self._refuses = True

    def reset_connections(self) -> None:
        """All connections that stand now end with a reset."""
        self._loop.call_soon_threadsafe(self._reset)

    def _reset(self) -> None:
        for link in list(self._links):
            link.reset()

    def heal(self) -> None:
        """Forget all orders; what was swallowed stays so."""
        with self._lock:
            self._rules.clear()
        self._request_delay = self._answer_delay = 0.0
        self._bytes_per_second = None
        self._refuses = False

    def _add(self, rule: Rule) -> None:
        with self._lock:
            self._rules.append(rule)

    def rule_for(self, code: int) -> Rule | None:
        """The first rule that is about a request of this code that has just come."""
        with self._lock:
            self.requests.append(code)
            # Each rule counts each request.
            about = [rule for rule in self._rules if rule.applies(code)]
            return about[0] if about else None

    # Running

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._acceptor = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._acceptor.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._acceptor.close()
        self._reset()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        link = _Link(self, reader, writer)
        if self._refuses:
            link.reset()
            return
        self._links.add(link)
        try:
            await link.run(self._server)
        finally:
            self._links.discard(link)

    async def paced(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Write, no faster than the throttle allows."""
        rate = self._bytes_per_second
        if rate is None:
            writer.write(data)
            await writer.drain()
            return
        step = max(1, int(rate / 20))
        for begin in range(0, len(data), step):
            writer.write(data[begin : begin + step])
            await writer.drain()
            await asyncio.sleep(step / rate)

    @property
    def request_delay(self) -> float:
        """Seconds that a request waits now."""
        return self._request_delay

    @property
    def answer_delay(self) -> float:
        """Seconds that an answer waits now."""
        return self._answer_delay


class _Link:
    """One connection of a client and the one to the server that belongs to it."""

    def __init__(self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = (reader, writer)
        self._writers = [writer]
        self._pending: dict[int, Rule] = {}  # by opaque: what happens to the answer

    async def run(self, server: tuple[str, int]) -> None:
        """Pass frames on until either end is closed, then close the other."""
        try:
            upstream = await asyncio.open_connection(*server)
        except OSError:
            self.reset()
            return
        self._writers.append(upstream[1])
        directions = [
            asyncio.ensure_future(self._pass(self._client[0], upstream[1], self._request)),
            asyncio.ensure_future(self._pass(upstream[0], self._client[1], self._answer)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
            for writer in self._writers:
                writer.close()

    def reset(self) -> None:
        """End both connections by a reset: what has not been read is lost."""
        for writer in self._writers:
            connection = writer.get_extra_info("socket")
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handle: Callable[[FrameHead, bytes, asyncio.StreamWriter], Coroutine[Any, Any, bool]],
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                length = await reader.readexactly(4)
                size = int.from_bytes(length, "big")
                if not 4 <= size <= FRAME_BYTES_MAX:
                    # No frame of this protocol (TLS, for one): from here on the bytes pass as they come.
                    await self._proxy.paced(writer, length)
                    while data := await reader.read(1 << 16):
                        await self._proxy.paced(writer, data)
                    return
                frame = length + await reader.readexactly(size)
                if not await handle(FrameHead.of(frame), frame, writer):
                    return

    async def _request(self, head: FrameHead, frame: bytes, server: asyncio.StreamWriter) -> bool:
        """Treat what the client sent; False once the connection has to end."""
        if head.is_response:
            await self._proxy.paced(server, frame)
            return True
        rule = self._proxy.rule_for(head.code)
        if self._proxy.request_delay:
            await asyncio.sleep(self._proxy.request_delay)
        match rule.what if rule is not None else "":
            case "swallow":
                return True
            case "refuse":
                assert rule is not None
                await self._proxy.paced(self._client[1], response(head, rule.response_code, rule.remark))
                return True
            case "cut_request":
                assert rule is not None
                await self._proxy.paced(server, frame[: rule.after])
                return False
            case "swallow_answer" | "cut_answer":
                assert rule is not None
                self._pending[head.opaque] = rule
        await self._proxy.paced(server, frame)
        return True

    async def _answer(self, head: FrameHead, frame: bytes, client: asyncio.StreamWriter) -> bool:
        """Treat what the server sent; False once the connection has to end."""
        if self._proxy.answer_delay:
            await asyncio.sleep(self._proxy.answer_delay)
        if self._proxy.readdress:
            frame = readdressed(frame, self._proxy.readdress)
        rule = self._pending.pop(head.opaque, None) if head.is_response else None
        if rule is not None and rule.what == "swallow_answer":
            return True
        await self._proxy.paced(client, frame if rule is None else frame[: rule.after])
        return rule is None


def response(head: FrameHead, code: int, remark: str) -> bytes:
    """An answer to a request, in the request's own header encoding."""
    if head.encoding == 0:
        header = json.dumps(
            {"code": code, "flag": RESPONSE_FLAG, "language": "JAVA", "opaque": head.opaque,
             "remark": remark, "serializeTypeCurrentRPC": "JSON", "version": 477}
        ).encode()  # fmt: skip
    else:
        text = remark.encode()
        header = struct.pack(">hBhiii", code, 0, 477, head.opaque, RESPONSE_FLAG, len(text)) + text
        header += struct.pack(">i", 0)
    return (
        struct.pack(">IBBH", 4 + len(header), head.encoding, len(header) >> 16, len(header) & 0xFFFF) + header
    )


def readdressed(frame: bytes, addresses: Mapping[str, str]) -> bytes:
    """A frame in whose body other addresses stand: so a name server leads a client to a proxy of a broker."""
    begin = 8 + int.from_bytes(frame[5:8], "big")
    body = frame[begin:]
    for real, other in addresses.items():
        body = body.replace(f'"{real}"'.encode(), f'"{other}"'.encode())
    return struct.pack(">I", begin - 4 + len(body)) + frame[4:begin] + body
