"""Sockets that listen."""

from __future__ import annotations

import errno
import socket

from mq.errors import AddressInUse

__all__ = ["listening"]


def listening(host: str, port: int, shares_port: bool) -> socket.socket:
    """A bound socket; port 0 picks a free one. shares_port: other processes may listen on the same port, and
    the kernel gives each new connection to one of them. Raises AddressInUse, OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
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
