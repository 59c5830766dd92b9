"""The open brokers of a store: one place for each, held by a lock that dies with it.

On disk: mq/members, places of 32 bytes in native byte order:

    offset  size  field
         0     8  pid
         8     8  start_time    of the process, clock ticks since boot: tells a pid used again
        16     8  since_ms      wall clock
        24     8  pid_namespace

A place is taken while its byte is locked, by an open file description lock on the place's first byte; what is
written in a place nobody locks means nothing. No heartbeat: the kernel drops the lock when the process dies.
A copy of the descriptor in a forked child would keep it, so a member whose pid with its start time is gone
counts as dead as well, judged only within one pid namespace.
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mq.store.directory.file_locks import byte_owner, lock_byte, open_own_file

__all__ = ["Member", "Members", "living", "pid_namespace_here", "start_time_of"]

PLACE = struct.Struct("@qqqq")
assert PLACE.size == 32


@dataclass(frozen=True, slots=True)
class Member:
    """One open broker: its process and when it came."""

    place: int
    pid: int
    start_time: int
    since_ms: int
    pid_namespace: int


def start_time_of(pid: int) -> int | None:
    """Of a process in clock ticks since boot; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold anything; fields are counted from behind it.
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


@cache
def pid_namespace_here() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def living(path: Path) -> list[Member]:
    """Every open broker of the store with this file of members."""
    try:
        members = Members(path)
    except OSError:
        return []
    try:
        return members.alive()
    finally:
        members.close()


class Members:
    def __init__(self, path: Path) -> None:
        self._fd = open_own_file(path)
        self.place = -1

    def join(self) -> int:
        """Take the first free place; its number."""
        place = 0
        while not lock_byte(self._fd, place * PLACE.size):
            place += 1
        pid = os.getpid()
        fields = PLACE.pack(pid, start_time_of(pid) or 0, time.time_ns() // 1_000_000, pid_namespace_here())
        os.pwrite(self._fd, fields, place * PLACE.size)
        self.place = place
        return place

    def alive(self) -> list[Member]:
        """Every member that lives, this one included."""
        found = []
        namespace = pid_namespace_here()
        for place in range(os.fstat(self._fd).st_size // PLACE.size):
            # A lock of this very descriptor does not show: the own place is known.
            if place != self.place and byte_owner(self._fd, place * PLACE.size) is None:
                continue
            member = Member(place, *PLACE.unpack(os.pread(self._fd, PLACE.size, place * PLACE.size)))
            if member.pid_namespace == namespace and start_time_of(member.pid) != member.start_time:
                continue
            found.append(member)
        return found

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
