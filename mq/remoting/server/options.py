"""What a server is told: where it listens, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mq.remoting.codec.frame import FRAME_SIZE_MAX

__all__ = ["CLUSTER", "Limits"]

CLUSTER: Final = "DefaultCluster"  # the name of the cluster that clients and operators see


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much a server takes from the other ends, all of them hostile.

    connections: at the same time. connections_per_address: of one IP address. frame_size: bytes of one frame.
    in_flight_size: bytes of requests of one connection that are being worked on; above, it is not read from.
    unsent_size: bytes of answers that one connection has not taken; above, it is not worked for.
    idle_seconds: without a whole frame in either direction, after which a connection is closed.
    held_pulls: pulls of one connection that wait for a message at the same time.
    """

    connections: int = 10_000
    connections_per_address: int = 10_000
    frame_size: int = FRAME_SIZE_MAX
    in_flight_size: int = 32 << 20
    unsent_size: int = 1 << 20
    idle_seconds: float = 120.0
    held_pulls: int = 4096

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}, must be over 0")
        if self.frame_size > FRAME_SIZE_MAX:
            raise ValueError(
                f"frame_size is {self.frame_size:,}, at most {FRAME_SIZE_MAX:,}, RocketMQ's limit"
            )
