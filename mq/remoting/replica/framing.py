"""The messages of the HA protocol. It has no Remoting frames and no handshake.

    follower to master   8 bytes        int64 log offset up to which it has everything; the first one is
                                        the offset at which it wants to continue
    master to follower   12 bytes + n   int64 log offset, int32 n, then n bytes of the log; n = 0: a heartbeat

Pure: bytes in, values out. Neither end trusts the other: every length is checked before anything is stored.
RocketMQ: store/ha/DefaultHAConnection.java, DefaultHAClient.java.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from mq.errors import RemotingError

__all__ = ["BLOCK_SIZE_MAX", "Blocks", "Piece", "Reports", "encode_header", "encode_report"]

REPORT, HEADER = struct.Struct(">q"), struct.Struct(">qi")
BLOCK_SIZE_MAX = 64 << 20  # RocketMQ sends 32 KiB at a time unless told otherwise
OFFSET_MAX = 1 << 62


def encode_report(log_offset: int) -> bytes:
    return REPORT.pack(log_offset)


def encode_header(log_offset: int, size: int) -> bytes:
    return HEADER.pack(log_offset, size)


class Piece(NamedTuple):
    """A part of a block as it was received; without bytes, a heartbeat."""

    log_offset: int
    data: memoryview


class Reports:
    """Decodes a follower's stream into log offsets."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """The log offsets that are complete. Raises RemotingError for an impossible one."""
        data = self._rest + data
        whole = len(data) // REPORT.size * REPORT.size
        self._rest = data[whole:]
        offsets = [found for (found,) in REPORT.iter_unpack(data[:whole])]
        for offset in offsets:
            if not 0 <= offset < OFFSET_MAX:
                raise RemotingError(f"a follower reports log offset {offset}, which no log has")
        return offsets


class Blocks:
    """Decodes a master's stream into pieces of blocks."""

    def __init__(self) -> None:
        self._head = b""
        self._at = 0
        self._left = 0  # bytes of the current block that have not arrived

    def feed(self, data: memoryview) -> Iterator[Piece]:
        """The pieces in `data`, in order. Raises RemotingError for an impossible header."""
        while data:
            if self._left:
                piece, data = data[: self._left], data[self._left :]
                yield Piece(self._at, piece)
                self._at += len(piece)
                self._left -= len(piece)
                continue
            wanted = HEADER.size - len(self._head)
            self._head, data = self._head + bytes(data[:wanted]), data[wanted:]
            if len(self._head) < HEADER.size:
                return
            self._at, self._left = HEADER.unpack(self._head)
            self._head = b""
            if not 0 <= self._at < OFFSET_MAX or not 0 <= self._left <= BLOCK_SIZE_MAX:
                raise RemotingError(
                    f"the master announces {self._left} bytes at log offset {self._at}: is this its HA port,"
                    f" with the default HA service? A block has at most {BLOCK_SIZE_MAX:,} bytes"
                )
            if self._left == 0:
                yield Piece(self._at, memoryview(b""))
