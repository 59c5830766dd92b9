"""Sockets that listen."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

from mq.errors import AddressInUse
from mq.remoting.server.transport.connection import Connection

__all__ = ["BACKLOG", "TlsListener", "listening"]

log = logging.getLogger("mq.remoting")

BACKLOG = 1024
HANDSHAKE_SECONDS = 10.0
AFTER_ERROR_SECONDS = 1.0


def listening(host: str, port: int, shares_port: bool) -> socket.socket:
    """A socket that listens; port 0 picks a free one. shares_port: other processes may listen on the same
    port, and the kernel gives each new connection to one of them. Raises AddressInUse, OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        # At once: two sockets that do not listen yet may have one port, and the loop of the second keeps the
        # error for itself.
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"{host}:{port} is in use: give another port, 0 for a free one, or close what listens there",
                address=f"{host}:{port}",
            ) from None
        raise
    return sock


class TlsListener:
    """Accepts connections with TLS in the running loop, until close().

    asyncio's own server tells the protocol of a connection only after the handshake. Here a connection is
    counted, and may be refused, before it.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, made: Callable[[], Connection]) -> None:
        self._socket = sock
        self._context = context
        self._made = made
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawn(self._accept())

    def close(self) -> None:
        """Stop listening, and end the handshakes. Called by the loop."""
        for task in list(self._tasks):
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        with self._socket:
            while True:
                try:
                    sock, peer = await self._loop.sock_accept(self._socket)
                except OSError as error:
                    log.warning("a connection cannot be accepted: %s", error)
                    await asyncio.sleep(AFTER_ERROR_SECONDS)
                    continue
                connection = self._made()
                if connection.accepted(peer):
                    self._spawn(self._encrypt(connection, sock))
                else:
                    sock.close()

    async def _encrypt(self, connection: Connection, sock: socket.socket) -> None:
        is_encrypted = False
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, sock, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
            is_encrypted = True
        except OSError as error:
            log.info("%s: no TLS handshake: %s", connection.address, error)
        finally:
            if not is_encrypted:
                sock.close()
                connection.connection_lost(None)
