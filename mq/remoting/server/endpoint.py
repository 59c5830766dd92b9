"""The endpoint of serve(): it listens as a name server and a broker, and passes requests to a broker object.

It listens on two ports, and on a third for slaves; each accepts every request. Replicas connect to the HA
port. The threads hold a reference to the endpoint, so close() must end them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from typing import Final

from mq.api.broker import Broker
from mq.api.local import Directory
from mq.broker.replication import replicated
from mq.errors import AddressInUse, BrokerClosed, ForkedBroker, MQError
from mq.remoting.codec.frame import Frame
from mq.remoting.event_loop import EventLoop
from mq.remoting.replica.listener import HaListener
from mq.remoting.server.access import Access
from mq.remoting.server.dispatch import dispatch
from mq.remoting.server.handlers import ALL
from mq.remoting.server.options import Limits
from mq.remoting.server.served import Served
from mq.remoting.server.transport.connection import Connection, Memory
from mq.remoting.server.transport.large_frames import LargeFrames
from mq.remoting.server.transport.listener import BACKLOG, TlsListener, listening
from mq.remoting.server.transport.workers import Workers

__all__ = ["Endpoint"]

log = logging.getLogger("mq.remoting")

POOL_SIZE = 32  # threads for sends and pulls that block; sends of one group commit wait in them
# Threads for all other requests, so that slow sends do not delay these. Over a directory they need the
# interpreter more than the disk, and each one at work delays the loop; over a cluster they wait for it.
CONTROL_SIZE, CLUSTER_CONTROL_SIZE = 4, 16
BODY_SIZE_MAX = 4 << 20  # of a request, where a message may not be larger
TICK_SECONDS = 1.0
CLOSE_SECONDS = 1.0  # for unsent answers at close
START_SECONDS = 10.0


class Endpoint:
    """Listens from its creation until close()."""

    def __init__(
        self,
        broker: Broker,
        host: str,
        port: int,
        namesrv_port: int,
        *,
        limits: Limits,
        tls: ssl.SSLContext | None,
        access: Access | None,
        shares_ports: bool,
        ha_port: int | None = None,
    ) -> None:
        self.pid: Final = os.getpid()
        self.is_closed = False
        self._is_expired = True  # whether the last round of _expire is over
        self._limits = limits
        self._tls = tls
        self._memory = Memory(limits.received_total)
        self._body_size_max = max(broker.message_size_max, BODY_SIZE_MAX)
        self._pool = Workers(POOL_SIZE, "mq serve")
        control_size = CONTROL_SIZE if isinstance(broker, Directory) else CLUSTER_CONTROL_SIZE
        self._control = Workers(control_size, "mq serve control")
        self._per_address: dict[str, int] = {}
        self._left: set[Connection] = set()  # lost ones whose oneway requests are not done yet
        sockets = _listening(host, (port, namesrv_port), shares_ports)
        self.port, self.namesrv_port = (each.getsockname()[1] for each in sockets)
        if ha_port is not None:
            sockets += _for_slaves(host, self.port, shares_ports)
        self.host: Final = host
        try:
            self._events = EventLoop(f"mq serve {host}:{self.port}")
            self._large_frames = LargeFrames(self._events)
            self._ha = _accepting(broker, host, ha_port) if ha_port is not None else None
            self.served: Final = Served(
                broker, self._events, limits, access, pool=self._pool, control=self._control
            )
            self.served.host, self.served.port = host, self.port
            self.served.holding.changed.append(self._look)
            self.served.holding.start()
            self.served.ha_address = self._ha.address if self._ha is not None else None
            self._listeners = self._events.wait_for(self._listen(sockets), START_SECONDS, "listening")
        except BaseException:
            if ha := getattr(self, "_ha", None):
                ha.close()
            if served := getattr(self, "served", None):
                served.holding.close()
            for each in sockets:
                each.close()
            if events := getattr(self, "_events", None):
                events.close()
            raise
        log.info("serving %r at %s, name server %s", broker, *map(self.shown, (self.port, self.namesrv_port)))

    def close(self) -> None:
        """Stop listening, and end every connection. The remote members have left afterwards. Idempotent."""
        if self.is_closed or os.getpid() != self.pid:
            return
        self.is_closed = True
        with contextlib.ExitStack() as closing:  # All of it, whichever fails; from the last line up.
            closing.callback(self._events.close)
            closing.enter_context(contextlib.suppress(BrokerClosed, ForkedBroker))
            closing.callback(self.served.members.close)
            closing.callback(self.served.checks.close)
            closing.callback(self.served.relay.close)
            closing.callback(self._control.close)
            closing.callback(self._pool.close)
            closing.callback(self.served.holding.close)
            closing.callback(lambda: self._events.wait_for(self._end(), START_SECONDS, "closing the server"))
            if self._ha is not None:
                closing.callback(self._ha.close)

    def shown(self, port: int) -> str:
        """host:port of a port here."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    # Called by connections, in the loop: see connection.Owner.

    def opened(self, connection: Connection) -> bool:
        """See Owner."""
        count = self._per_address.get(connection.host, 0)
        limits = self._limits
        if self.is_closed:
            return False
        if len(self.served.connections) >= limits.connections or count >= limits.connections_per_address:
            log.warning(
                "%s is refused: there are %d connections, %d of its address",
                *(connection.address, len(self.served.connections), count),
            )
            return False
        self._per_address[connection.host] = count + 1
        self.served.connections.add(connection)
        return True

    def received(self, connection: Connection, frame: Frame) -> None:
        """See Owner."""
        dispatch(ALL, self.served, connection, frame)

    def closed(self, connection: Connection) -> None:
        """See Owner."""
        if connection not in self.served.connections:
            return
        self.served.connections.discard(connection)
        self.served.holding.drop_all(connection.holds)
        left = self._per_address.get(connection.host, 1) - 1
        if left:
            self._per_address[connection.host] = left
        else:
            self._per_address.pop(connection.host, None)
        self._pool.drop(connection)
        if connection.received_size:
            self._left.add(connection)
        self._leave(connection)

    def _leave(self, connection: Connection) -> None:
        """Have its members leave, after what it has sent before."""
        if not self.is_closed:
            connection.in_order(self._control, lambda: self._lost(connection), is_kept=True)

    def crowded(self) -> None:
        """See Owner. The connection with the most bytes is closed: if it were paused instead, it could keep
        its part of a frame, and the room of all others, until it is closed as idle. What it has sent is
        dropped even where it is lost already: else others would be closed for it."""
        connections = (*self.served.connections, *self._left)
        largest = max(connections, key=lambda each: each.received_size, default=None)
        if largest is None:
            return
        log.warning(
            "%s is closed: it has %d bytes of unanswered requests, all connections together over the limit"
            " of %d (received_total of serve())",
            *(largest.address, largest.received_size, self._memory.limit),
        )
        largest.forget(self._pool)
        largest.close("requests of all connections are over the limit")
        if largest in self._left:
            self._left.discard(largest)
            self._leave(largest)  # That was dropped as well.

    def _lost(self, connection: Connection) -> None:
        try:
            self.served.members.lost(connection)
        except MQError as error:
            log.warning("%s is lost, and its members could not leave: %s", connection.address, error)

    # The loop's own.

    async def _listen(self, sockets: list[socket.socket]) -> list[asyncio.Server | TlsListener]:
        loop = asyncio.get_running_loop()
        found: list[asyncio.Server | TlsListener] = []
        for each in sockets:
            if self._tls is None:
                found.append(await loop.create_server(self._made, sock=each, backlog=BACKLOG))
            else:
                found.append(TlsListener(each, self._tls, self._made))
        loop.call_later(TICK_SECONDS, self._tick)
        return found

    def _made(self) -> Connection:
        return Connection(
            self, self._events, self._limits, self._memory, self._large_frames, self._body_size_max
        )

    async def _end(self) -> None:
        for each in self._listeners:
            each.close()
        for connection in list(self.served.connections):
            connection.close("the server is closed", at_once=False)
        for _ in range(int(CLOSE_SECONDS / 0.01)):
            if not self.served.connections:
                return
            await asyncio.sleep(0.01)
        for connection in list(self.served.connections):
            connection.close("it does not read its last answers")
        await asyncio.sleep(0.01)

    def _tick(self) -> None:
        if self.is_closed:
            return
        now = asyncio.get_running_loop().time()
        for connection in list(self.served.connections):
            if now - connection.used_at > self._limits.idle_seconds:
                connection.close(f"it was silent for {self._limits.idle_seconds:g} s")
        self._left = {each for each in self._left if each.received_size}
        if self._is_expired:
            self._is_expired = False
            self._control.submit(self, self._expire)
        asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _expire(self) -> None:
        try:
            self.served.figures.tick(self.served.traffic.pulled)
            self.served.members.expire()
            self.served.checks.look()
        except Exception:
            log.exception("expiring the queues of remote members failed")
        finally:
            self._is_expired = True

    def _look(self) -> None:
        changed = self.served.members.look()
        if changed:
            self.served.holding.wake_blind()


def _accepting(broker: Broker, host: str, port: int) -> HaListener:
    """The listener for replicas. Raises NotSupported if the broker object is not a directory's."""
    return HaListener(replicated(broker, "ha_port, at which replicas follow a log,"), host, port)


def _listening(host: str, ports: tuple[int, ...], shares_ports: bool) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for port in ports:
            sockets.append(listening(host, port, shares_ports))  # noqa: PERF401 - closed below if one fails
    except BaseException:
        for each in sockets:
            each.close()
        raise
    return sockets


def _for_slaves(host: str, port: int, shares_port: bool) -> list[socket.socket]:
    """The port at which RocketMQ's slaves ask for topics: the broker's minus two (the "VIP channel")."""
    try:
        return [listening(host, port - 2, shares_port)]
    except (AddressInUse, OSError) as error:
        log.warning(
            "RocketMQ's slaves get no topics from here, since they ask at port %d: %s", port - 2, error
        )
        return []
