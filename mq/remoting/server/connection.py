"""One server connection: requests in, answers and the server's own requests out.

The loop dispatches requests one after the other, with back-pressure: while more than unsent_size bytes wait
to be sent, or in_flight_size bytes of requests are being handled, it neither reads nor dispatches. So the
memory of a connection is bounded, however slow or fast the client is.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import count
from time import monotonic
from typing import Final, Protocol, cast

from mq.errors import MQError, RemotingError
from mq.remoting.codec.fields import Request, encode_fields
from mq.remoting.codec.frame import ONEWAY, Frame, FrameReader, encode
from mq.remoting.codec.json_body import JsonBody, to_json
from mq.remoting.codec.language import Language, version_name
from mq.remoting.event_loop import EventLoop
from mq.remoting.server.options import Limits

__all__ = ["Connection", "Owner"]

log = logging.getLogger("mq.remoting")

AT_WORK_MAX = 64  # unordered requests of one connection in the pool
REQUEST_SIZE = 512  # bytes that a request counts besides its body


class Owner(Protocol):
    """The owner of a connection; called by the loop."""

    def opened(self, connection: Connection) -> bool:
        """False if there are too many connections."""
        ...

    def received(self, connection: Connection, frame: Frame) -> None: ...
    def closed(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """`address`: the client's; `local_host`: the local address that it connected to."""

    def __init__(self, owner: Owner, events: EventLoop, limits: Limits) -> None:
        self.address = ""
        self.host = ""
        self.local_host = ""
        self.language = Language.OTHER
        self.version = 0
        self.used_at = monotonic()
        self.is_closed = False
        self.holds: Final[set[object]] = set()  # its held pulls
        self.drained: Final[list[Callable[[], object]]] = []  # called once the client reads again
        self._owner = owner
        self._events = events
        self._limits = limits
        self._reader = FrameReader(limits.frame_size)
        self._frames: deque[Frame] = deque()
        self._in_flight = self._at_work = 0
        self._is_choked = self._is_paused = self._is_handing_on = False
        self._transport: asyncio.Transport | None = None
        self._in_order: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()  # guards whether _in_order is being run
        self._is_running = False
        self._opaques = count(1)
        self._asked: dict[int, Callable[[Frame | MQError], object]] = {}

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer, own = (transport.get_extra_info(name) for name in ("peername", "sockname"))
        self.host = str(peer[0]) if peer else ""
        self.local_host = str(own[0]) if own else ""
        self.address = f"[{self.host}]:{peer[1]}" if peer and ":" in self.host else f"{self.host}:{peer[1]}"
        self._transport.set_write_buffer_limits(high=self._limits.unsent_size - 1)
        if not self._owner.opened(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._reader.feed(data)
        except RemotingError as error:
            self.close(str(error))
            return
        if frames:
            self.used_at = monotonic()
            self._frames.extend(frames)
            self._hand_on()

    def pause_writing(self) -> None:
        self._is_choked = True
        self._heed_limits()

    def resume_writing(self) -> None:
        self._is_choked = False
        self.used_at = monotonic()
        waiting, self.drained[:] = list(self.drained), []
        for call in waiting:
            call()
        self._hand_on()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not isinstance(exc, ConnectionError | ssl.SSLError | OSError):
            log.error("%s: %r", self.address, exc, exc_info=exc)
        self.is_closed = True
        self._frames.clear()
        asked, self._asked = self._asked, {}
        for answered in asked.values():
            answered(RemotingError(f"{self.address} closed the connection", address=self.address))
        self._owner.closed(self)

    # Requests of the client.

    @property
    def is_choked(self) -> bool:
        """Whether the client does not read its answers."""
        return self._is_choked

    @property
    def described(self) -> str:
        """Address, language and version of the client."""
        return f"{self.address} ({self.language.name}, {version_name(self.version)})"

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def in_order(self, pool: Executor, work: Callable[[], object]) -> None:
        """Run this in the pool after the earlier ordered work of this connection."""
        with self._lock:
            self._in_order.append(work)
            if self._is_running:
                return
            self._is_running = True
        pool.submit(self._run_in_order)

    def beside(self, pool: Executor, work: Callable[[], object]) -> None:
        """Run this in the pool concurrently with this connection's other work. Called by the loop."""
        self._at_work += 1
        pool.submit(self._work, work)

    def _work(self, work: Callable[[], object]) -> None:
        try:
            work()
        finally:
            self._events.post(self._worked)

    def _worked(self) -> None:
        self._at_work -= 1
        if self._frames or self._is_paused:
            self._hand_on()

    def answered(self, request: Frame, code: int, data: bytes) -> None:
        """A request is done. data: the bytes of its answer, empty for oneway. Thread-safe."""
        if self._events.is_current:
            self._done(request, data)
        else:
            self._events.post(self._done, request, data)

    # The server's own requests.

    def tell(self, request: Request, body: bytes | JsonBody = b"") -> None:
        """Send a oneway request. Thread-safe."""
        frame = self._framed(request, body)
        frame.flags |= ONEWAY
        self._events.post(self.write, encode(frame))

    def ask(
        self, request: Request, answered: Callable[[Frame | MQError], object], body: bytes | JsonBody = b""
    ) -> None:
        """Send a request; the loop calls `answered` with the answer, or with an error once the connection is
        lost. Thread-safe; there is no time limit."""
        frame = self._framed(request, body)
        self._events.post(self._ask, frame, answered)

    def write(self, data: bytes) -> None:
        """Only called by the loop."""
        if self._transport is not None and not self.is_closed:
            self._transport.write(data)

    def close(self, reason: str, *, at_once: bool = True) -> None:
        """Only called by the loop."""
        if self._transport is None or self.is_closed:
            return
        log.info("%s is disconnected: %s", self.address, reason)
        if at_once:
            self._transport.abort()
        else:
            self._transport.close()

    def _framed(self, request: Request, body: bytes | JsonBody) -> Frame:
        content = to_json(body) if isinstance(body, JsonBody) else body
        return Frame(request.CODE, encode_fields(request), content, opaque=next(self._opaques))

    def _ask(self, frame: Frame, answered: Callable[[Frame | MQError], object]) -> None:
        if self.is_closed:
            answered(RemotingError(f"{self.address} is not connected any more", address=self.address))
            return
        self._asked[frame.opaque] = answered
        self.write(encode(frame))

    def _run_in_order(self) -> None:
        while True:
            with self._lock:
                if not self._in_order:
                    self._is_running = False
                    return
                work = self._in_order.popleft()
            work()

    def _hand_on(self) -> None:
        if self._is_handing_on:
            return  # A handler has answered synchronously: the outer call of this method continues.
        self._is_handing_on = True
        try:
            while self._frames and not self._has_enough() and not self.is_closed:
                frame = self._frames.popleft()
                if frame.is_response:
                    answered = self._asked.pop(frame.opaque, None)
                    if answered is not None:
                        answered(frame)
                    continue
                self.language, self.version = frame.language, frame.version
                self._in_flight += REQUEST_SIZE + len(frame.body)
                self._owner.received(self, frame)
        finally:
            self._is_handing_on = False
        if self._frames and not self._is_choked and self.unsent >= self._limits.unsent_size:
            # In its next iteration the loop has sent the data, or has called pause_writing.
            self._events.loop.call_soon(self._hand_on)
        self._heed_limits()

    def _has_enough(self) -> bool:
        return (
            self._is_choked
            or self.unsent >= self._limits.unsent_size  # Not every event loop calls pause_writing at once.
            or self._in_flight >= self._limits.in_flight_size
            or self._at_work >= AT_WORK_MAX
        )

    def _heed_limits(self) -> None:
        """Pause or resume reading, by the limits."""
        is_paused = bool(self._frames) or self._has_enough()
        if self._transport is None or self.is_closed or is_paused == self._is_paused:
            return
        self._is_paused = is_paused
        if is_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _done(self, request: Frame, data: bytes) -> None:
        self._in_flight -= REQUEST_SIZE + len(request.body)
        if data:
            self.used_at = monotonic()
            self.write(data)
        if self._frames or self._is_paused:
            self._hand_on()

    def __repr__(self) -> str:
        return f"Connection({self.address})"
