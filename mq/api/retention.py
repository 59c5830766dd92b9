"""How long the messages of a directory are kept: what goes next, and which groups have not read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["DELAYED", "HALF", "Expiring", "Range", "Retention", "Unread", "Waiting"]

DELAYED, HALF = "delayed", "half"


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one queue, from queue offset `first` to `last`."""

    topic: str
    queue_id: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Unread:
    """Messages of one queue that a group has not read."""

    group: str
    topic: str
    queue_id: int
    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Waiting:
    """Messages that no group can read yet: `delayed` ones, which are not due, and `half` messages, whose
    transactions have not ended."""

    kind: str
    topic: str  # that they are meant for
    lies_in: Range  # from the first to the last of them, in one of RocketMQ's own topics
    count: int


@dataclass(frozen=True, slots=True)
class Expiring:
    """What retention deletes: whole files of the commit log, the oldest ones, with the messages in them."""

    file_count: int
    byte_count: int
    ranges: tuple[Range, ...]  # of each queue that loses messages
    unread: tuple[Unread, ...]  # what of them a group has not read
    waiting: tuple[Waiting, ...] = ()  # what of them no group can read yet, and has no copy that stays


class Retention(Protocol):
    """Directory.retention."""

    @property
    def hours(self) -> float:
        """How long messages are kept, at the least."""
        ...

    @property
    def disk_ratio_max(self) -> float:
        """How full the disk may be (0 to 1) before messages go early; 1: they never do."""
        ...

    @property
    def held(self) -> str:
        """Why nothing is deleted before confirm() is called; "" where it is not so."""
        ...

    @property
    def away(self) -> tuple[int, int] | None:
        """The latest time, from and to (ms), in which no process had the store open. What was there before
        does not age in it, nor in the seven before that one."""
        ...

    @property
    def warned_hours(self) -> float:
        """How long before a message is deleted `mq DIR groups` warns those that have not read it: a day, or a
        third of the retention if that is less."""
        ...

    def change(self, *, hours: float | None = None, disk_ratio_max: float | None = None) -> None:
        """Change how long messages are kept, for all processes, within 10 s and for good. Raises ValueError,
        NotPermitted."""
        ...

    def confirm(self) -> None:
        """Have messages deleted again where retention is held, and all that is too old now. Raises
        NotPermitted."""
        ...

    def expiring(self, *, hours: float | None = None, within_hours: float = 0.0) -> Expiring:
        """What would be deleted now, or within so many hours with the disk as full as it is now; held or not.
        hours: by another retention than the store's, and whatever disk_ratio_max is."""
        ...

    def warned(self) -> Expiring:
        """What goes within warned_hours, as far as it is known by now."""
        ...

    def expire(self, hours: float | None = None) -> int:
        """Delete what is too old now; how many files of the log went. With hours, by these alone, held or
        not; without, by the store's settings."""
        ...
