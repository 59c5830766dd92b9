"""One server connection: requests in, answers and the server's own requests out.

The loop dispatches requests one after the other, with back-pressure: while more than unsent_size bytes wait
to be sent, in_flight_size bytes of requests are being handled, or AT_WORK_MAX requests are in a thread pool,
it neither reads nor dispatches. So the memory of a connection is bounded, however slow or fast the client is.
Memory bounds that of all connections.

After TURN_SECONDS the loop turns to the other connections. What is received and not dispatched yet is kept as
bytes.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from functools import partial
from itertools import count
from time import monotonic
from typing import Any, Final, Protocol, cast

from mq.errors import InsufficientResources, MQError, RemotingError, RequestTimeout
from mq.remoting.codec.fields import Request, encode_fields
from mq.remoting.codec.frame import ONEWAY, Frame, FrameReader, encode
from mq.remoting.codec.json_body import JsonBody, to_json
from mq.remoting.codec.language import Language, version_name
from mq.remoting.event_loop import EventLoop
from mq.remoting.server.options import Limits
from mq.remoting.server.transport.large_frames import LargeFrames
from mq.remoting.server.transport.workers import OrderedWork, Work, Workers

__all__ = ["Connection", "Memory", "Owner"]

log = logging.getLogger("mq.remoting")

AT_WORK_MAX = 64  # requests of one connection in a thread pool
# For requests of one connection, one at least, until the loop turns to the next. A request of another client
# waits for a turn of each, and a turn costs the loop some 20 µs more.
TURN_SECONDS = 0.0005
CONTROL_TURN_COUNT = 8  # the same in a thread
SENDS_TURN_COUNT = 32  # the same of oneway sends; those of one turn wait for the disk together
ASKED_MAX = 64  # requests of the server that a client has not answered
# Unsent bytes of a connection, from which on it gets no requests of the server. Answers of its own pulls may
# be as many for a moment, though the client reads.
UNREAD_SIZE_MAX = 16 << 20
LARGE_SIZE = 128 << 10  # of a part of a frame, from which on its connection waits for its turn to be read
REQUEST_SIZE = 512  # bytes that a request counts besides those on the wire

Answered = Callable[["Frame | MQError"], object]


class Memory:
    """The bytes of received requests that are not answered, of all connections. Only the loop uses it."""

    def __init__(self, limit: int) -> None:
        self.limit: Final = limit
        self.used = 0


class Owner(Protocol):
    """The owner of a connection; called by the loop."""

    def opened(self, connection: Connection) -> bool:
        """False if there are too many connections."""
        ...

    def received(self, connection: Connection, frame: Frame) -> None: ...
    def closed(self, connection: Connection) -> None: ...
    def crowded(self) -> None:
        """Memory is used beyond its limit."""
        ...


class Connection(asyncio.Protocol):
    """`address`: the client's; `local_host`: the local address that it connected to."""

    def __init__(
        self,
        owner: Owner,
        events: EventLoop,
        limits: Limits,
        memory: Memory,
        large_frames: LargeFrames,
        body_size_max: int,
    ) -> None:
        self.address = ""
        self.host = ""
        self.local_host = ""
        self.language = Language.OTHER
        self.version = 0
        self.access_key = ""  # that signed its last request, where the server has keys
        self.used_at = monotonic()
        self.is_closed = False
        self.holds: Final[set[object]] = set()  # its held pulls
        self.drained: Final[list[Callable[[], object]]] = []  # called once the client reads again
        self._owner = owner
        self._events = events
        self._limits = limits
        self._reader = FrameReader(limits.frame_size, body_size_max)
        self._memory = memory
        self._large_frames = large_frames
        self._in_flight = self._in_flight_oneway = self._at_work = self._counted = 0
        self._is_choked = self._is_paused = self._is_handing_on = self._has_next_turn = False
        self._is_aborted = self._is_over = self._is_forgotten = False
        self._has_read_enough = False  # of a large frame, until its next turn
        self._transport: asyncio.Transport | None = None
        self._control = OrderedWork(self, CONTROL_TURN_COUNT, self._has_worked)
        self._sends = OrderedWork(self, SENDS_TURN_COUNT, self._has_worked)
        self._opaques = count(1)
        self._asked: dict[int, tuple[Answered, asyncio.TimerHandle]] = {}

    def accepted(self, peer: tuple[Any, ...]) -> bool:
        """The connection of this client is accepted; False if there are too many. connection_made() calls
        it, unless something waits for a TLS handshake before that."""
        self.host = str(peer[0])
        self.address = f"[{self.host}]:{peer[1]}" if ":" in self.host else f"{self.host}:{peer[1]}"
        return self._owner.opened(self)

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer, own = (transport.get_extra_info(name) for name in ("peername", "sockname"))
        self.local_host = str(own[0]) if own else ""
        # Without a peer: the client has reset the connection already.
        if not self.host and not (peer and self.accepted(peer)):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._limits.unsent_size - 1)

    def data_received(self, data: bytes) -> None:
        self._reader.add(data)
        if self._reader.partial_size >= LARGE_SIZE and not self._has_read_enough:
            self._has_read_enough = True
            self._large_frames.append(self.read_on)
        self._hand_on()

    def read_on(self) -> None:
        """Its turn has come: see LargeFrames."""
        self._has_read_enough = False
        if self._transport is not None and not self._transport.is_closing():
            self._heed_limits()

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
        if self.is_closed:
            return
        if exc is not None and not isinstance(exc, ConnectionError | ssl.SSLError | OSError):
            log.error("%s: %r", self.address, exc, exc_info=exc)
        self.is_closed = True
        self._transport = None
        self._is_choked = False
        for opaque in list(self._asked):
            self._answer(opaque, RemotingError(f"{self.address} closed the connection", address=self.address))
        # With TLS the end of the stream comes together with what is before it, even while reading is paused.
        self._hand_on()

    def _end(self) -> None:
        """The connection is lost, and what it has sent before is dispatched, or dropped."""
        if not self._is_over:
            self._is_over = True
            self._drop()
            self._owner.closed(self)

    # Requests of the client.

    @property
    def is_choked(self) -> bool:
        """Whether the client does not read its answers."""
        return self._is_choked

    @property
    def has_room(self) -> bool:
        """Whether the client reads what it is sent."""
        return not self._is_choked and self.unsent < self._limits.unsent_size

    @property
    def described(self) -> str:
        """Address, language and version of the client."""
        return f"{self.address} ({self.language.name}, {version_name(self.version)})"

    @property
    def received_size(self) -> int:
        """Bytes of requests that are received and not answered."""
        return self._counted

    @property
    def asked_count(self) -> int:
        """Requests of the server that the client has not answered."""
        return len(self._asked)

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        transport = self._transport  # once: a thread may ask when the connection is lost
        return transport.get_write_buffer_size() if transport is not None else 0

    def in_order(self, workers: Workers, work: Work, *, is_kept: bool) -> None:
        """Run this in a thread after the earlier ordered work of this connection. is_kept: even if the
        connection is lost before it begins. Called by the loop."""
        self._at_work += 1
        self._control.add(workers, work, is_kept=is_kept)

    def in_order_of_sends(self, workers: Workers, work: Work, *, is_kept: bool) -> None:
        """The same for oneway sends: an order of their own."""
        self._at_work += 1
        self._sends.add(workers, work, is_kept=is_kept)

    @property
    def is_send_followed(self) -> bool:
        """Whether the oneway send that runs in order now is followed by another at once."""
        return self._sends.is_followed

    def beside(self, workers: Workers, work: Work, *, is_kept: bool) -> None:
        """Run this in a thread concurrently with this connection's other work. is_kept: see in_order().
        Called by the loop."""
        self._at_work += 1
        workers.submit(self, partial(self._work, work), is_kept=is_kept)

    def _work(self, work: Work) -> None:
        try:
            work()
        finally:
            self._has_worked(1)

    def _has_worked(self, count: int) -> None:
        """Pieces of work are done. Thread-safe."""
        self._events.post(self._worked, count)

    def _worked(self, count: int) -> None:
        self._at_work -= count
        if self._is_paused or self.is_closed:
            self._hand_on()

    def answered(self, request: Frame, code: int, data: bytes) -> None:
        """A request is done. data: the bytes of its answer, empty for oneway. Thread-safe."""
        if self._events.is_current:
            self._done(request, data)
        else:
            self._events.post(self._done, request, data)

    # The server's own requests.

    def tell(self, request: Request, body: bytes | JsonBody = b"") -> None:
        """Send a oneway request, unless the client leaves too much unread. Thread-safe."""
        frame = self._framed(request, body)
        frame.flags |= ONEWAY
        self._events.post(self._tell, encode(frame))

    def ask(self, request: Request, answered: Answered, timeout: float, body: bytes | JsonBody = b"") -> None:
        """Send a request; the loop calls `answered` with the answer, or with an error: RequestTimeout after
        `timeout` seconds, InsufficientResources if too many requests are not answered, or too much is not
        read, RemotingError once the connection is lost. Thread-safe."""
        frame = self._framed(request, body)
        self._events.post(self._ask, frame, request.NAME, answered, timeout)

    def write(self, data: bytes) -> None:
        """Only called by the loop."""
        if self._transport is not None and not self.is_closed:
            self._transport.write(data)

    def close(self, reason: str, *, at_once: bool = True) -> None:
        """Only called by the loop."""
        if self.is_closed and at_once:
            self._end()
        if self._transport is None:
            return
        log.info("%s is disconnected: %s", self.address, reason)
        if at_once:
            self._drop()
            self._transport.abort()
        else:
            self._transport.close()

    def forget(self, workers: Workers) -> None:
        """Dispatch no more requests, and drop all that have not begun: ordered ones, and those beside each
        other in these threads. Only called by the loop."""
        self._is_forgotten = True
        self._drop()
        workers.drop(self, is_all=True)

    def _framed(self, request: Request, body: bytes | JsonBody) -> Frame:
        content = to_json(body) if isinstance(body, JsonBody) else body
        return Frame(request.CODE, encode_fields(request), content, opaque=next(self._opaques))

    def _tell(self, data: bytes) -> None:
        if self.unsent < UNREAD_SIZE_MAX:
            self.write(data)

    def _ask(self, frame: Frame, name: str, answered: Answered, timeout: float) -> None:
        if self.is_closed:
            answered(RemotingError(f"{self.address} is not connected any more", address=self.address))
        elif len(self._asked) >= ASKED_MAX or self.unsent >= UNREAD_SIZE_MAX:
            answered(
                InsufficientResources(
                    f"{self.described} has {len(self._asked)} requests that it has not answered, and"
                    f" {self.unsent:,} bytes that it has not read: ask again later",
                    resource="memory",
                )
            )
        else:
            late = RequestTimeout(
                f"{self.described} did not answer {name} within {timeout:g} s", address=self.address
            )
            timer = self._events.loop.call_later(timeout, self._answer, frame.opaque, late)
            self._asked[frame.opaque] = answered, timer
            self.write(encode(frame))

    def _answer(self, opaque: int, answer: Frame | MQError) -> None:
        """The answer to a request of the server, or an error instead; ignored if it had one."""
        asked = self._asked.pop(opaque, None)
        if asked is not None:
            answered, timer = asked
            timer.cancel()
            answered(answer)

    def _drop(self) -> None:
        """Dispatch no more requests, and drop those that have not begun, except oneway ones."""
        self._is_aborted = True
        self._reader.clear()
        self._control.drop(is_all=self._is_forgotten)
        self._sends.drop(is_all=self._is_forgotten)
        self._count()

    def _count(self) -> None:
        """Count the bytes of this connection among those of all. Of a lost one oneway requests are left."""
        size = self._reader.size + self._in_flight
        if self._is_aborted:
            size = 0 if self._is_forgotten else self._in_flight_oneway
        grown, self._counted = size - self._counted, size
        self._memory.used += grown
        if grown > 0 and not self._is_aborted and self._memory.used > self._memory.limit:
            self._owner.crowded()

    def _hand_on(self) -> None:
        if self._is_handing_on:
            return  # A handler has answered synchronously: the outer call of this method continues.
        self._is_handing_on = True
        try:
            now = monotonic()
            end = now + TURN_SECONDS
            while now < end and not self._is_aborted and not self._has_enough():
                frame = self._reader.next()
                if frame is None:
                    break
                self.used_at = now
                self._hand_over(frame)
                now = monotonic()
        except RemotingError as error:
            self.close(str(error))
        finally:
            self._is_handing_on = False
        self._count()
        is_more = self._reader.is_ready or (self._has_enough() and not self.is_closed)
        is_more = is_more and not self._is_aborted
        if is_more and not self._has_next_turn and not self._is_waiting():
            self._has_next_turn = True
            self._events.loop.call_soon(self._next_turn)
        if self.is_closed and not is_more:
            self._end()
        self._heed_limits()

    def _next_turn(self) -> None:
        self._has_next_turn = False
        self._hand_on()

    def _hand_over(self, frame: Frame) -> None:
        if frame.is_response:
            if frame.dropped_size:
                error = RemotingError(f"{self.described} gave an answer of {frame.dropped_size:,} bytes")
                self._answer(frame.opaque, error)
            else:
                self._answer(frame.opaque, frame)
            return
        if self.is_closed and not frame.is_oneway:
            return
        self.language, self.version = frame.language, frame.version
        self._fly(frame, 1)
        self._owner.received(self, frame)

    def _fly(self, request: Frame, count: int) -> None:
        """A request is in flight; -1: it is answered."""
        size = count * (REQUEST_SIZE + request.size)
        self._in_flight += size
        if request.is_oneway:
            self._in_flight_oneway += size

    def _is_waiting(self) -> bool:
        """Whether something else will call _hand_on: an answer, or the end of a thread's work.

        Not if there are only unsent bytes: in its next iteration the loop has sent them, or has called
        pause_writing."""
        return self._is_choked or self._is_at_limit()

    def _has_enough(self) -> bool:
        return (
            self._is_choked
            or self.unsent >= self._limits.unsent_size  # Not every event loop calls pause_writing at once.
            or self._is_at_limit()
        )

    def _is_at_limit(self) -> bool:
        # Held pulls are in flight: those of a lost connection are not waited for.
        is_full = self._in_flight >= self._limits.in_flight_size and not self.is_closed
        return is_full or self._at_work >= AT_WORK_MAX

    def _heed_limits(self) -> None:
        """Pause or resume reading, by the limits."""
        is_paused = self._reader.is_ready or self._has_enough() or self._has_read_enough
        if self._transport is None or self._is_aborted or is_paused == self._is_paused:
            return
        self._is_paused = is_paused
        if is_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _done(self, request: Frame, data: bytes) -> None:
        self._fly(request, -1)
        if data:
            self.used_at = monotonic()
            self.write(data)
        if self._is_paused or self.is_closed:
            self._hand_on()
        elif not self._is_handing_on:
            self._count()

    def __repr__(self) -> str:
        return f"Connection({self.address})"
