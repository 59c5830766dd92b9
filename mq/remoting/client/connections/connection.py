"""One client connection: its requests and their answers, and requests from the other end.

Any thread writes directly to the socket; if the socket is full, the event loop writes the rest later. Only
the loop reads. So a call costs one thread switch, from the loop to the thread that waits for the answer.

The opaque matches an answer to its request; a late answer is dropped. When the connection is lost, every
pending request fails at once. With TLS, reads and writes share the lock: OpenSSL allows one at a time.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from itertools import count
from time import monotonic
from typing import NamedTuple

from mq.errors import MQError, ProtocolMismatch, RemotingError, RequestTimeout
from mq.remoting.codec.fields import Request
from mq.remoting.codec.frame import Frame, FrameReader, answer_to, encode
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.event_loop import EventLoop

__all__ = ["Answered", "Connection", "Handler", "PendingAnswer", "copied"]

log = logging.getLogger("mq.remoting")

RECEIVE_SIZE = 64 << 10  # for a larger buffer, malloc would call the kernel at every read
UNSENT_SIZE_MAX = 64 << 20
UNDER_WAY_MAX = 65_535  # RocketMQ's limit of asynchronous requests
DECRYPTED_SIZE_MAX = 1 << 20  # per read
ONEWAY = 2
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

Answered = Callable[[Frame | MQError], object]
Handler = Callable[["Connection", Frame], Frame | None]


SUSPECT_SECONDS = 0.9  # A caller may have little time left for a broker that is well.


class _UnderWay(NamedTuple):
    answered: Answered
    sent_at: float
    deadline: float | None  # None if the caller watches the time limit itself
    code: int


class Connection:
    """A connected socket. The loop calls `handlers` with requests from the other end, so they must be fast. A
    handler returns the answer, or None for no answer or a later one.

    `peer_version` is the other end's version, 0 until its first frame. `lost` is called once.
    """

    def __init__(
        self,
        address: str,
        sock: socket.socket,
        events: EventLoop,
        handlers: dict[int, Handler],
        lost: Callable[[Connection, MQError], object],
    ) -> None:
        self.address = address
        self.peer_version = 0
        self.used_at = self.received_at = monotonic()
        self.is_retired = False
        self._sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._events = events
        self._handlers = handlers
        self._lost = lost
        self._lock = threading.Lock()
        self._failure: MQError | None = None
        self._unsent = bytearray()
        self._under_way: dict[int, _UnderWay] = {}
        self._opaques = count(1)
        self._reader = FrameReader()
        events.loop.add_reader(sock.fileno(), self._readable)

    @property
    def is_usable(self) -> bool:
        """Whether it accepts new requests."""
        return self._failure is None and not self.is_retired

    @property
    def is_busy(self) -> bool:
        return bool(self._under_way) or bool(self._unsent)

    @property
    def is_writing(self) -> bool:
        return bool(self._unsent)

    def call(self, request: Frame, timeout: float) -> Frame:
        """Send a request and wait for its answer. Raises RemotingError, RequestTimeout. Must not be called by
        the loop's own thread."""
        assert not self._events.is_current
        waiter = PendingAnswer()
        opaque = self._begin(request, waiter.answered, None)
        try:
            if waiter.wait(timeout):
                return waiter.result()
        finally:
            gone = self._under_way.pop(opaque, None)
        if gone is None and waiter.wait(1):  # The answer came in the last moment.
            return waiter.result()
        error = self._expired(request.code, timeout)
        if gone is not None:
            self._suspect(gone, error)
        raise error

    def call_async(self, request: Frame, timeout: float, answered: Answered) -> None:
        """Send a request; the loop calls `answered` with the answer or the error. An immediate error is
        raised."""
        self._begin(request, answered, monotonic() + timeout)

    def oneway(self, request: Frame) -> None:
        """Send a oneway request. Raises RemotingError if it cannot be sent."""
        request.flags |= ONEWAY
        request.opaque = self._next_opaque()
        self.send(request)

    def send(self, frame: Frame) -> None:
        """Write a frame as it is: a oneway request, or an answer to the other end."""
        self._write(self._encoded(frame))

    def _encoded(self, frame: Frame) -> bytes:
        try:
            return encode(frame)
        except RemotingError as error:
            raise RemotingError(
                f"nothing was sent to {self.address}: {error}", address=self.address
            ) from None

    def expire(self, now: float) -> None:
        """Fail the requests whose deadline has passed. Called regularly by the loop."""
        if self._failure is None:
            # uvloop reports a reset only once and stops watching; that event may have brought the last data.
            self._readable()
        for opaque, one in list(self._under_way.items()):
            if one.deadline is not None and one.deadline <= now and self._taken(opaque):
                error = self._expired(one.code, one.deadline - one.sent_at)
                self._tell(one.answered, error)
                self._suspect(one, error)

    def retire(self) -> None:
        """Accept no new requests, and close after the pending ones."""
        self.is_retired = True
        if not self.is_busy:
            self.close(RemotingError(f"{self.address} said that it shuts down", address=self.address))

    def close(self, reason: MQError) -> None:
        """Close; every pending request fails with the reason. Thread-safe."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = reason
        if self._events.is_current:
            self._closed()
        else:
            self._events.post(self._closed)

    def abandon(self) -> None:
        """In a forked child: close the descriptor; the parent keeps the connection."""
        with contextlib.suppress(OSError):
            socket.close(self._sock.detach())

    def _closed(self) -> None:
        assert self._failure is not None
        with self._lock:  # No write is running from here on.
            with contextlib.suppress(OSError, ValueError):
                self._events.loop.remove_reader(self._sock.fileno())
                self._events.loop.remove_writer(self._sock.fileno())
            with contextlib.suppress(OSError):
                self._sock.close()
        for opaque in list(self._under_way):
            one = self._under_way.pop(opaque, None)
            if one is not None:
                self._tell(one.answered, self._failure)
        self._lost(self, self._failure)

    def _begin(self, request: Frame, answered: Answered, deadline: float | None) -> int:
        if len(self._under_way) >= UNDER_WAY_MAX:
            raise RemotingError(
                f"{self.address} has {UNDER_WAY_MAX:,} requests to answer and takes no more: send less at"
                " once",
                address=self.address,
            )
        opaque = request.opaque = self._next_opaque()
        data = self._encoded(request)
        self._under_way[opaque] = _UnderWay(answered, monotonic(), deadline, request.code)
        try:
            self._write(data)
        except BaseException:
            if self._taken(opaque) or deadline is None:
                raise
            # The connection was lost meanwhile, and `answered` was called with the error.
        return opaque

    def _taken(self, opaque: int) -> bool:
        """Take a request off the pending ones; False if another thread has already completed it."""
        return self._under_way.pop(opaque, None) is not None

    def _next_opaque(self) -> int:
        return next(self._opaques) & 0x7FFFFFFF

    def _write(self, data: bytes) -> None:
        try:
            with self._lock:
                failure = self._write_locked(data)
        except MQError:
            raise
        except BaseException:  # After an interrupt it is unknown how much of the frame was sent.
            text = f"{self.address}: interrupted in the middle of a frame"
            self.close(RemotingError(text, address=self.address))
            raise
        if failure is not None:
            self.close(failure)
            raise copied(failure)

    def _write_locked(self, data: bytes) -> RemotingError | None:
        if self._failure is not None:
            raise copied(self._failure)
        self.used_at = monotonic()
        if len(self._unsent) > UNSENT_SIZE_MAX:
            raise RemotingError(
                f"{self.address} takes no more: {len(self._unsent):,} bytes wait; send less at once",
                address=self.address,
            )
        if self._unsent:
            self._unsent += data
            return None
        try:
            sent = self._sock.send(data)
        except _LATER:
            sent = 0
        except OSError as error:
            return self._broken(error)
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]
            self._events.post(self._watch_writes)
        return None

    def _watch_writes(self) -> None:
        if self._failure is None:
            self._events.loop.add_writer(self._sock.fileno(), self._writable)

    def _writable(self) -> None:
        failure = None
        with self._lock:
            if self._failure is not None:
                return
            try:
                sent = self._sock.send(self._unsent)
                del self._unsent[:sent]
            except _LATER:
                pass
            except OSError as error:
                failure = self._broken(error)
            if not self._unsent:
                self._events.loop.remove_writer(self._sock.fileno())
        if failure is not None:
            self.close(failure)

    def _readable(self) -> None:
        try:
            data = self._received()
            if data:
                self.received_at = self.used_at = monotonic()
                for frame in self._reader.feed(data):
                    self._take(frame)
        except OSError as error:
            self.close(self._broken(error))
        except RemotingError as error:
            self.close(
                ProtocolMismatch(
                    f"{self.address} sent {error}; is it a broker or a name server of RocketMQ?",
                    address=self.address,
                )
            )
        else:
            if data == b"":
                middle = "" if self._reader.is_between_frames else " in the middle of a frame"
                self.close(
                    RemotingError(f"{self.address} closed the connection{middle}", address=self.address)
                )
        if self.is_retired:
            self.retire()

    def _received(self) -> bytes | None:
        """The received bytes; b"" at the end of the stream, None if there is nothing to read."""
        try:
            return self._decrypted() if self._tls else self._sock.recv(RECEIVE_SIZE)
        except _LATER:
            return None

    def _decrypted(self) -> bytes | None:
        """Read everything: the event loop cannot see data that is buffered inside OpenSSL."""
        data = b""
        with self._lock:
            while self._failure is None:
                try:
                    piece = self._sock.recv(RECEIVE_SIZE)
                except _LATER:
                    return data or None
                data += piece
                if not piece:
                    return data
                if len(data) > DECRYPTED_SIZE_MAX:
                    self._events.loop.call_soon(self._readable)
                    return data
        return None

    def _take(self, frame: Frame) -> None:
        if not frame.is_response:
            self._serve(frame)
            return
        self.peer_version = frame.version
        frame.address = self.address
        if frame.code == ResponseCode.GO_AWAY:
            self.is_retired = True
        one = self._under_way.pop(frame.opaque, None)
        if one is None:
            log.debug("%s answered request %d, which is no longer pending", self.address, frame.opaque)
        else:
            self._tell(one.answered, frame)

    def _tell(self, answered: Answered, answer: Frame | MQError) -> None:
        try:
            answered(answer)
        except Exception:
            log.exception("the callback for an answer of %s failed", self.address)

    def _serve(self, request: Frame) -> None:
        handler = self._handlers.get(request.code)
        try:
            if handler is None:
                answer: Frame | None = answer_to(
                    request,
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    remark=f"request type {request.code} not supported",
                )
            else:
                answer = handler(self, request)
        except Exception as error:  # The other end gets an error answer, and the log an entry.
            log.error(
                "request %d of %s failed: %s",
                *(request.code, self.address, error),
                exc_info=None if isinstance(error, MQError) else error,
            )
            answer = answer_to(request, ResponseCode.SYSTEM_ERROR, remark=str(error)[:1000])
        if answer is not None and not request.is_oneway:
            with contextlib.suppress(RemotingError):  # The connection is lost, which `lost` reports.
                self.send(answer)

    def _expired(self, code: int, timeout: float) -> RequestTimeout:
        kind = Request.TABLE.get(code)
        shown = f"request {code}" if kind is None else f"{kind.NAME} ({code})"
        return RequestTimeout(
            f"{self.address} did not answer {shown} within {max(0.0, timeout):.1f} s; it may have been"
            " carried out all the same",
            address=self.address,
        )

    def _suspect(self, one: _UnderWay, error: RequestTimeout) -> None:
        """Close a connection that has been silent since the request was sent, for long enough: it may be
        dead."""
        if self.received_at < one.sent_at <= monotonic() - SUSPECT_SECONDS:
            self.close(RemotingError(f"{error}; nothing else came either", address=self.address))

    def _broken(self, error: OSError) -> RemotingError:
        return RemotingError(
            f"the connection to {self.address} broke: {error.strerror or error}", address=self.address
        )


class PendingAnswer:
    """An answer that one thread may wait for. No Future: an interrupt in one of its methods leaves its lock
    taken, and the event loop would wait for that lock for ever."""

    __slots__ = ("_answer", "_arrived")

    def __init__(self) -> None:
        self._arrived = threading.Lock()
        self._arrived.acquire()
        self._answer: Frame | MQError | None = None

    def answered(self, answer: Frame | MQError) -> None:
        self._answer = answer
        self._arrived.release()

    def wait(self, seconds: float) -> bool:
        """Whether it comes within so many seconds."""
        return self._answer is not None or self._arrived.acquire(timeout=max(seconds, 0))

    def result(self, seconds: float = 0.0) -> Frame:
        """The answer. Raises the MQError that came instead, TimeoutError if neither comes in time."""
        if not self.wait(seconds):
            raise TimeoutError
        if isinstance(self._answer, MQError):
            raise copied(self._answer)
        assert self._answer is not None
        return self._answer


def copied(error: MQError) -> MQError:
    """A copy of an error for another caller, since each thread adds its own traceback."""
    again = type(error).__new__(type(error), *error.args)
    again.args = error.args
    again.__dict__.update(error.__dict__)
    return again
