"""Connect a non-blocking socket, with TLS if configured."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable

from mq.errors import RemotingError
from mq.remoting.client.connections.addresses import parse_address

__all__ = ["dial"]

_Add = Callable[[int, Callable[[], object]], object]
_Remove = Callable[[int], object]


async def dial(address: str, tls: ssl.SSLContext | None, timeout: float) -> socket.socket:
    """The connected socket. Raises RemotingError, which says what failed and what to check."""
    host, port = parse_address(address)
    opened: list[socket.socket] = []
    try:
        return await asyncio.wait_for(_connected(host, port, tls, opened), timeout)
    except asyncio.TimeoutError:
        why = f"no connection within {timeout:g} s: is a firewall between?"
    except ssl.SSLCertVerificationError as error:
        why = (
            f"its certificate is not trusted ({error.verify_message}): give"
            " tls=ssl.create_default_context(cafile=...) with the certificate of its authority"
        )
    except ssl.SSLError as error:
        why = f"no TLS ({error.reason or error}): does it speak TLS on this port?"
    except socket.gaierror as error:
        why = f"the host has no address ({error.strerror})"
    except ConnectionResetError:
        why = "it closed the connection during the handshake" if tls else "it closed the connection"
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
    except UnicodeError as error:
        why = f"{host[:200]!r} is no name of a host ({error})"
    except BaseException:
        _close(opened)
        raise
    _close(opened)
    raise RemotingError(f"{address} cannot be reached: {why}", address=address)


def _close(opened: list[socket.socket]) -> None:
    for sock in opened:
        with contextlib.suppress(OSError):
            sock.close()


async def _connected(
    host: str, port: int, tls: ssl.SSLContext | None, opened: list[socket.socket]
) -> socket.socket:
    loop = asyncio.get_running_loop()
    error: OSError | None = None
    for family, target in await _targets(loop, host, port):
        sock = socket.socket(family, socket.SOCK_STREAM)
        opened.append(sock)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, target)
        except OSError as failed:
            sock.close()
            error = failed
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return sock
        wrapped = tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        opened.append(wrapped)
        await _shake_hands(loop, wrapped)
        return wrapped
    raise error or OSError("no address")


async def _targets(
    loop: asyncio.AbstractEventLoop, host: str, port: int
) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    """The addresses of a host. A numeric address needs no look-up, and so no thread."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return [(family, (host, port))]
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, (str(target[0]), port)) for family, _, _, _, target in found]


async def _shake_hands(loop: asyncio.AbstractEventLoop, sock: ssl.SSLSocket) -> None:
    while True:
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            await _ready(loop.add_reader, loop.remove_reader, sock)
        except ssl.SSLWantWriteError:
            await _ready(loop.add_writer, loop.remove_writer, sock)
        else:
            return


async def _ready(add: _Add, remove: _Remove, sock: ssl.SSLSocket) -> None:
    future = asyncio.get_running_loop().create_future()
    fd = sock.fileno()

    def ready() -> None:
        if not future.done():
            future.set_result(None)

    add(fd, ready)
    try:
        await future
    finally:
        remove(fd)
