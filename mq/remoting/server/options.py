"""The options of a server: the limits for its clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mq.remoting.codec.frame import FRAME_SIZE_MAX

__all__ = ["CLUSTER", "REPLY_TOPIC", "Limits"]

CLUSTER: Final = "DefaultCluster"  # the name of the cluster that clients and operators see
REPLY_TOPIC: Final = CLUSTER + "_REPLY_TOPIC"  # whose name clients make of the cluster's


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits that protect a server from its clients.

    connections: concurrent connections. connections_per_address: those of one IP address. frame_size: bytes
    of one frame. in_flight_size: bytes of requests of one connection being handled; above it, reading pauses.
    received_total: bytes of requests of all connections that are received, in part or as a whole, and not
    answered; above it, the connection with the most of them is closed.
    unsent_size: bytes of answers that one connection has not read; above it, its requests pause.
    idle_seconds: a connection without a complete frame in either direction for so long is closed. held_pulls:
    held pulls of one connection. held_pulls_total: those of all connections.
    """

    connections: int = 10_000
    connections_per_address: int = 10_000
    frame_size: int = FRAME_SIZE_MAX
    in_flight_size: int = 32 << 20
    received_total: int = 256 << 20
    unsent_size: int = 1 << 20
    idle_seconds: float = 120.0
    held_pulls: int = 4096
    held_pulls_total: int = 100_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}, must be over 0")
        if self.frame_size > FRAME_SIZE_MAX:
            raise ValueError(
                f"frame_size is {self.frame_size:,}, at most {FRAME_SIZE_MAX:,}, RocketMQ's limit"
            )
