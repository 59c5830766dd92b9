"""Server: the handle that serve() returns.

Its endpoint runs in its own threads. Only the program holds a reference to the Server: when it is garbage
collected, for example because an interrupt lost it, its endpoint is closed.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from mq.remoting.codec.language import version_name
from mq.remoting.server.endpoint import Endpoint
from mq.remoting.server.served import Served, Traffic
from mq.uninterrupted import handed_over, left_open

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Client", "Server"]


class Client(NamedTuple):
    """One connection, and the groups that its client consumes and produces for."""

    address: str
    language: str
    version: str
    consumer_groups: tuple[str, ...]
    producer_groups: tuple[str, ...]


class Server:
    """Serves until close(). Created by mq.remoting.serve. Closing it leaves the broker object open."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @property
    def host(self) -> str:
        """The host it listens on, as given to serve()."""
        return self._endpoint.host

    @property
    def address(self) -> str:
        """host:port of the broker."""
        return self._endpoint.shown(self._endpoint.port)

    @property
    def name_server(self) -> str:
        """host:port of the name server, for mq.open("rocketmq://...") and other clients."""
        return self._endpoint.shown(self._endpoint.namesrv_port)

    @property
    def ha_address(self) -> str | None:
        """host:port of the HA port for replicas; None without one."""
        return self.served.ha_address

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return len(self.served.connections)

    @property
    def traffic(self) -> Traffic:
        """Its counters since the start."""
        return self.served.traffic

    @property
    def served(self) -> Served:
        """The state that all handlers share."""
        return self._endpoint.served

    def clients(self) -> list[Client]:
        """The connected clients, by address."""
        members, served = self.served.members.all(), self.served
        producers = served.members.producer_table()
        return [
            Client(
                connection.address,
                connection.language.name,
                version_name(connection.version),
                tuple(sorted({member.group for member in members if member.connection is connection})),
                tuple(sorted(group for group, found in producers.items() if connection in found)),
            )
            for connection in sorted(served.connections, key=lambda each: each.address)
        ]

    @handed_over
    def close(self) -> None:
        """Stop listening, and end every connection. The remote members have left afterwards. Idempotent."""
        self._endpoint.close()

    def __enter__(self) -> Self:
        return self

    @handed_over
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._endpoint.close()

    def __repr__(self) -> str:
        return f"Server({self.address!r})"

    def __del__(self) -> None:
        endpoint = getattr(self, "_endpoint", None)
        if endpoint is not None and not endpoint.is_closed and sys is not None and not sys.is_finalizing():
            left_open(endpoint.close, self, endpoint.pid)
