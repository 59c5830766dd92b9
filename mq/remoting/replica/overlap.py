"""Find where a replica's log and its master's diverge.

A record contains its own log offset, store time and unique id. So if one whole record is equal in both logs,
all earlier bytes are equal: the replica copied them from this master, or both copied them from the same one.
A replica therefore asks for its own last bytes again. If they differ, it goes back until a whole record is
equal. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Overlap", "first_byte"]

FIRST_SIZE = 64 << 10
GROWTH = 16
BLANK_MAGIC = 0xCBD43194
SIZES_SIZE = 112  # bytes of a record up to the size of the body, with IPv6 hosts
RECORD_SPARE = 3  # bytes for the sizes of topic and properties


@dataclass(frozen=True, slots=True)
class Overlap:
    """The part [start, end) of a replica's log that is compared; the log begins at `begin`."""

    begin: int
    end: int
    size: int = FIRST_SIZE

    @property
    def start(self) -> int:
        return max(self.begin, self.end - self.size)

    @property
    def asked(self) -> int:
        """The log offset to report first; never 0, which stands for an empty replica."""
        return max(self.start, 1) if self.end else 0

    @property
    def is_whole_log(self) -> bool:
        return self.start == self.begin

    def grown(self, master_end: int | None = None) -> Overlap:
        """The next larger overlap to try; it begins before master_end if that is known."""
        size = self.size * GROWTH
        if master_end is not None:
            size = max(size, self.end - master_end + FIRST_SIZE)
        return replace(self, size=size)


def first_byte(rest: bytes | bytearray, file_size: int) -> int | None:
    """The first byte of the log, computed from `rest`, the bytes after it; None if `rest` is too short.

    An empty replica cannot ask a RocketMQ master for offset 0, which stands for its last file. So it asks for
    offset 1. The missing byte belongs to the record's size, which follows from the sizes of its parts.
    """
    if len(rest) < SIZES_SIZE:
        return None
    if int.from_bytes(rest[3:7], "big") == BLANK_MAGIC:
        return file_size >> 24
    sys_flag = int.from_bytes(rest[35:39], "big")
    body_at = 88 + 12 * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
    least = body_at + int.from_bytes(rest[body_at - 5 : body_at - 1], "big") + RECORD_SPARE
    high = least >> 24
    if high << 24 | int.from_bytes(rest[:3], "big") < least:
        high += 1
    return high & 0xFF
