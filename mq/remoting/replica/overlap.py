"""Where a follower begins to compare its log with its master's, and where the two part.

A record bears its own log offset, store time and unique id: where one whole record is the same in both logs,
all before it is, since the replica took it from this master, or both took it from the same one. So a follower
asks for its own last bytes once more. Where these are other ones, it goes back until a whole record is the
same. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Overlap", "first_byte"]

FIRST_SIZE = 64 << 10
GROWTH = 16
BLANK_MAGIC = 0xCBD43194
SIZES_SIZE = 112  # up to the size of the body, with IPv6 hosts
RECORD_SPARE = 3  # the sizes of topic and properties


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
        """The log offset to report first. 0 would stand for a replica that has nothing."""
        return max(self.start, 1) if self.end else 0

    @property
    def is_whole_log(self) -> bool:
        return self.start == self.begin

    def grown(self, master_end: int | None = None) -> Overlap:
        """The next one to try; it begins before master_end where that is known."""
        size = self.size * GROWTH
        if master_end is not None:
            size = max(size, self.end - master_end + FIRST_SIZE)
        return replace(self, size=size)


def first_byte(rest: bytes | bytearray, file_size: int) -> int | None:
    """The byte before `rest`, with which the log at offset 0 begins; None: there is too little of it.

    A replica without anything cannot ask a RocketMQ master for offset 0: that stands for its last file. So it
    asks for offset 1, and the size that the record begins with follows from the sizes of its parts.
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
