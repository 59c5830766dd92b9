"""Requests to any address of a cluster, over one connection per address, opened on first use.

The next request reopens a lost connection. After a failure the address backs off, from 50 ms up to 2 s:
meanwhile requests fail at once with the same error, so that callers can try another broker. A connection
without traffic for 110 s is closed, before the server closes it during a request. After GO_AWAY, requests use
a new connection, and those that were answered with GO_AWAY are sent again.

One thread runs all of it. In a forked child every call raises ForkedBroker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any
from weakref import WeakSet

from mq.errors import BrokerClosed, ForkedBroker, MQError, RemotingError, RequestTimeout
from mq.remoting.client.connections.connection import (
    Answered,
    Connection,
    Handler,
    PendingAnswer,
    copied,
)
from mq.remoting.client.connections.dial import dial
from mq.remoting.client.connections.options import RemotingOptions
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.codec.signature import signed
from mq.remoting.event_loop import EventLoop

__all__ = ["Remoting", "waited"]

log = logging.getLogger("mq.remoting")

IDLE_SECONDS = 110.0  # RocketMQ's servers close after 120
BACK_OFF_SECONDS = (0.05, 2.0)  # after the first failure, and at most
TICK_SECONDS = 0.1
LATE_SECONDS = 5.0  # for the event loop to report that the time of a request is over
CLOSE_SECONDS = 1.0  # for unwritten frames at close
Opened = Callable[[Connection], object]


class _Failed:
    """The back-off of an unreachable address: the number of failures, and the time of the next attempt."""

    def __init__(self, error: MQError, attempts: int) -> None:
        first, most = BACK_OFF_SECONDS
        self.error = error
        self.attempts = attempts
        self.again_at = monotonic() + min(first * 2 ** min(attempts - 1, 10), most)


class Remoting:
    """The connection pool of one broker object. Thread-safe. `name` appears in errors and in the thread's
    name.

    events: the event loop of another Remoting, which outlives this one; by default it starts its own.
    """

    def __init__(
        self, name: str, options: RemotingOptions | None = None, events: EventLoop | None = None
    ) -> None:
        self.name = name
        self.options = options or RemotingOptions()
        self.handlers: dict[int, Handler] = {}
        self.opened: list[Opened] = []
        self._refusal: MQError | None = None
        self._connections: dict[str, Connection] = {}
        self._every: set[Connection] = set()  # retired ones too
        self._tasks: set[asyncio.Future[None]] = set()
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._failed: dict[str, _Failed] = {}
        self._has_own_loop = events is None
        self.events = EventLoop(f"mq remoting {name}") if events is None else events
        self.events.post(self._tick)
        _all.add(self)

    def handle(self, code: int, handler: Handler) -> None:
        """Set the handler for requests from brokers with this code; see Connection."""
        self.handlers[code] = handler

    def call(self, address: str, request: Frame, timeout: float | None = None) -> Frame:
        """The answer, whatever its code. Raises RemotingError, RequestTimeout, BrokerClosed, ForkedBroker."""
        if timeout is None:
            timeout = self.options.timeout
        connection = self._connections.get(address)
        if connection is not None and connection.is_usable:
            self._prepare(request, connection)
            started = monotonic()
            answer = connection.call(request, timeout)
            if answer.code != ResponseCode.GO_AWAY:
                return answer
            timeout -= monotonic() - started
        return self._call_anew(address, request, timeout)

    def call_async(
        self, address: str, request: Frame, answered: Answered, timeout: float | None = None
    ) -> None:
        """Send a request; the loop calls `answered` once, with the answer or an MQError. It must be fast."""
        if timeout is None:
            timeout = self.options.timeout
        connection = self._connections.get(address)
        if connection is None or not connection.is_usable:
            self._call_later(address, request, answered, timeout)
            return
        deadline = monotonic() + timeout

        def resent(answer: Frame | MQError) -> None:
            if isinstance(answer, Frame) and answer.code == ResponseCode.GO_AWAY:
                self._call_later(address, request, answered, deadline - monotonic())
            else:
                answered(answer)

        self._prepare(request, connection)
        try:
            connection.call_async(request, timeout, resent)
        except MQError as error:
            self.events.post(answered, error)

    def submit(self, address: str, request: Frame, timeout: float | None = None) -> PendingAnswer:
        """Send a request whose answer one thread may wait for: see waited()."""
        pending = PendingAnswer()
        self.call_async(address, request, pending.answered, timeout)
        return pending

    async def request(self, address: str, request: Frame, timeout: float | None = None) -> Frame:
        """call() for coroutines of the loop."""
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()

        def answered(answer: Frame | MQError) -> None:
            if future.done():
                return
            if isinstance(answer, MQError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self.call_async(address, request, answered, timeout)
        return await future

    def send_oneway(self, address: str, request: Frame, timeout: float | None = None) -> None:
        """Send a oneway request, after connecting if there is no connection. Raises RemotingError,
        RequestTimeout if it cannot be sent, BrokerClosed, ForkedBroker."""
        if timeout is None:
            timeout = self.options.timeout
        connection = self._connections.get(address)
        if connection is None or not connection.is_usable:
            self.check_open()
            connection = self._connect(address, timeout)
        self._prepare(request, connection)
        connection.oneway(request)

    def oneway(self, address: str, request: Frame) -> None:
        """The same without waiting: a request that cannot be sent is dropped. Raises BrokerClosed,
        ForkedBroker."""
        connection = self._connections.get(address)
        if connection is not None and connection.is_usable:
            self._prepare(request, connection)
            try:
                connection.oneway(request)
            except RemotingError as error:
                log.debug("a oneway request %d was not sent: %s", request.code, error)
            return
        self.check_open()
        self.events.post(self._spawn_oneway, address, request)

    def disconnect(self, address: str, reason: str) -> None:
        """Close the connection if there is one; its pending requests fail."""
        connection = self._connections.get(address)
        if connection is not None:
            connection.close(RemotingError(f"{address}: {reason}", address=address))

    @property
    def addresses(self) -> tuple[str, ...]:
        """The connected addresses."""
        return tuple(self._connections)

    def close(self) -> None:
        """Close every connection and end the thread; pending requests fail with BrokerClosed."""
        if self._refusal is not None:
            return
        self._refusal = BrokerClosed(f"the broker of {self.name} is closed: call mq.open() again")
        if not self.events.is_current:
            try:
                self.events.wait_for(self._end(), CLOSE_SECONDS * 5, f"closing {self.name}")
            except RequestTimeout:
                log.warning("%s did not close in time", self.name)
        if self._has_own_loop:
            self.events.close()

    def check_open(self) -> None:
        """Raises BrokerClosed once this is closed, and ForkedBroker in a forked child."""
        if self._refusal is not None:
            raise type(self._refusal)(*self._refusal.args)

    def _prepare(self, request: Frame, connection: Connection) -> None:
        request.encoding = self.options.encoding
        if self.options.credentials is not None:
            request.fields = signed(
                request.fields, request.body, self.options.credentials, connection.peer_version
            )

    def _call_anew(self, address: str, request: Frame, timeout: float) -> Frame:
        self.check_open()
        deadline = monotonic() + timeout
        for _ in range(2):
            connection = self._connect(address, max(deadline - monotonic(), 0))
            self._prepare(request, connection)
            answer = connection.call(request, deadline - monotonic())
            if answer.code != ResponseCode.GO_AWAY:
                break
        return answer

    def _connect(self, address: str, timeout: float) -> Connection:
        """The connection to an address. Raises RemotingError, RequestTimeout."""
        return self.events.wait_for(self._connected(address), timeout, f"connecting to {address}", address)

    def _call_later(self, address: str, request: Frame, answered: Answered, timeout: float) -> None:
        self.check_open()
        self.events.post(self._spawn_call, address, request, answered, timeout)

    def _spawn_call(self, address: str, request: Frame, answered: Answered, timeout: float) -> None:
        self._spawn(self._open_and_call(address, request, answered, timeout))

    def _spawn_oneway(self, address: str, request: Frame) -> None:
        self._spawn(self._open_and_tell(address, request))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open_and_call(self, address: str, request: Frame, answered: Answered, timeout: float) -> None:
        deadline = monotonic() + timeout
        try:
            connection = await asyncio.wait_for(self._connected(address), max(timeout, 0))
            self._prepare(request, connection)
            connection.call_async(request, deadline - monotonic(), answered)
        except asyncio.TimeoutError:
            text = f"{address} was not connected within {timeout:.1f} s"
            answered(RequestTimeout(text, address=address))
        except MQError as error:
            answered(error)
        except Exception as error:  # The caller waits for `answered`, whatever happens here.
            log.exception("request %d was not sent to %s", request.code, address)
            answered(_failed(address, error))
        except asyncio.CancelledError:
            answered(self._refusal or BrokerClosed(f"{self.name} is closed"))
            raise

    async def _open_and_tell(self, address: str, request: Frame) -> None:
        try:
            connection = await self._connected(address)
            self._prepare(request, connection)
            connection.oneway(request)
        except MQError as error:
            log.debug("a oneway request %d was not sent: %s", request.code, error)
        except Exception:
            log.exception("a oneway request %d was not sent to %s", request.code, address)

    async def _connected(self, address: str) -> Connection:
        """The connection to an address; waits for one that is being opened."""
        self.check_open()
        connection = self._connections.get(address)
        if connection is not None and connection.is_usable:
            return connection
        opening = self._opening.get(address)
        if opening is None:
            failed = self._failed.get(address)
            if failed is not None and monotonic() < failed.again_at:
                raise copied(failed.error)
            opening = self._opening[address] = asyncio.ensure_future(self._open(address))
            opening.add_done_callback(lambda _: self._opening.pop(address, None))
        try:
            return await asyncio.shield(opening)
        except MQError as error:
            raise copied(error) from None

    async def _open(self, address: str) -> Connection:
        try:
            sock = await self._dialled(address)
        except RemotingError as error:
            before = self._failed.get(address)
            self._failed[address] = _Failed(error, before.attempts + 1 if before else 1)
            if before is None:
                log.info("%s", error)
            raise
        if self._refusal is not None:
            sock.close()
            self.check_open()
        if self._failed.pop(address, None) is not None:
            log.info("%s is connected again", address)
        try:
            connection = Connection(address, sock, self.events, self.handlers, self._lost)
        except BaseException:
            sock.close()
            raise
        self._connections[address] = connection
        self._every.add(connection)
        for opened in self.opened:
            opened(connection)
        return connection

    async def _dialled(self, address: str) -> socket.socket:
        try:
            return await dial(address, self.options.tls, self.options.connect_timeout)
        except MQError:
            raise
        except Exception as error:
            log.exception("connecting to %s", address)
            raise _failed(address, error) from error

    def _lost(self, connection: Connection, reason: MQError) -> None:
        self._every.discard(connection)
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        if self._refusal is None:
            log.info("%s is disconnected: %s", connection.address, reason)

    def _tick(self) -> None:
        now = monotonic()
        for connection in list(self._every):
            connection.expire(now)
            if connection.is_retired:
                connection.retire()
            elif now - connection.used_at > IDLE_SECONDS and not connection.is_busy:
                connection.close(
                    RemotingError(f"{connection.address} was not used", address=connection.address)
                )
        if self._refusal is None:
            self.events.loop.call_later(TICK_SECONDS, self._tick)

    async def _end(self) -> None:
        assert self._refusal is not None
        for _ in range(int(CLOSE_SECONDS / 0.01)):
            if not any(connection.is_writing for connection in self._every):
                break
            await asyncio.sleep(0.01)
        for connection in list(self._every):
            connection.close(self._refusal)

    def _forked(self) -> None:
        """In a forked child: close the inherited descriptors; every later call raises ForkedBroker."""
        if not isinstance(self._refusal, BrokerClosed):
            self._refusal = ForkedBroker(
                f"{self.name} was opened by the parent process: call mq.open() again in the forked child"
            )
        for connection in list(self._every):
            connection.abandon()
        self._connections.clear()
        _loops_of_parents.append(self.events.loop)


_all: WeakSet[Remoting] = WeakSet()
# In a forked child these loops must not be closed: they share the parent's epoll descriptors.
_loops_of_parents: list[asyncio.AbstractEventLoop] = []


def _after_fork() -> None:
    for remoting in list(_all):
        remoting._forked()


os.register_at_fork(after_in_child=_after_fork)


def _failed(address: str, error: Exception) -> RemotingError:
    return RemotingError(f"{address} cannot be reached: {type(error).__name__}: {error}", address=address)


def waited(pending: PendingAnswer, address: str, seconds: float) -> Frame:
    """The answer that submit() promised within `seconds`. Raises RemotingError, RequestTimeout."""
    if pending.wait(seconds + LATE_SECONDS):
        return pending.result()
    raise RequestTimeout(f"{address} did not answer within {seconds:.1f} s", address=address)
