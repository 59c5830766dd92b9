"""Addresses in RocketMQ's notation: host:port, several separated by ;."""

from __future__ import annotations

from mq.errors import RemotingError

__all__ = ["parse_address", "parse_addresses"]

NAME_SERVER_PORT = 9876


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of host:port or [IPv6]:port. Raises RemotingError."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 65536:
        raise RemotingError(
            f"{address[:200]!r} is no address: give host:port, as in 10.0.0.5:9876", address=address
        )
    return host, int(port)


def parse_addresses(text: str) -> tuple[str, ...]:
    """The addresses of name servers, separated by ; or a comma; the default port is 9876. Raises
    ValueError."""
    found = []
    for part in text.replace(",", ";").split(";"):
        address = part.strip()
        if not address:
            continue
        if ":" not in address or address.endswith("]"):
            address = f"{address}:{NAME_SERVER_PORT}"
        try:
            parse_address(address)
        except RemotingError as error:
            raise ValueError(str(error)) from None
        found.append(address)
    if not found:
        raise ValueError(f"{text!r} names no name server: give host:port, or several separated by ;")
    return tuple(dict.fromkeys(found))
