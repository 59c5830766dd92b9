"""How far the timer messages are, and when the leader looks next: mq/timer.

On disk: mq/timer, mapped by all processes that deliver or send timer messages; native byte order:

    offset  size  field
         0     8  stamp
         8     8  epoch        of the control file that it belongs to
        16     8  wake_ms      when the leader looks next; a sender of what is due before notifies
        24     8  enqueued     the next of the timer topic to be put into the wheel
        32     8  read_ms      all that is due before this slot was delivered
        40     8  log_end      of the timer log
        48     8  pending      how many messages wait in the wheel, less those that are recalled
        56     4  event        futex word: raised to wake the leader

What follows is for the leader alone: see native/timer/timer.h. Written by the leader; others
read, and notify.
"""

from __future__ import annotations

from pathlib import Path

from mq.store.directory.layouts import LAYOUTS
from mq.store.shared.due_event import AT_WAKE, DueEvent
from mq.store.shared.waiting import Futex

__all__ = ["STAMP", "TimerProgress"]

STAMP = int.from_bytes(b"mqtimer%d" % LAYOUTS["mq/timer"], "little")
AT_ENQUEUED, AT_READ, AT_LOG_END, AT_PENDING = 3, 4, 5, 6


class TimerProgress(DueEvent):
    """mq/timer, mapped: as that of the delay levels, with what it says of the wheel."""

    def __init__(self, root: Path, epoch: int) -> None:
        super().__init__(root / "mq" / "timer", STAMP, epoch)
        self._enqueued = Futex(self.mapped, AT_ENQUEUED * 8)

    def enqueued(self) -> int:
        """The next of the timer topic to be put into the wheel; 0 as long as nobody delivers in this life."""
        return self.words[AT_ENQUEUED] if self.is_ours() else 0

    def wait_enqueued(self, offset: int, seconds: float) -> None:
        """Sleep until what has this offset in the timer topic may be in the wheel. May return early."""
        seen = self._enqueued.value
        if self.enqueued() <= offset:
            self._enqueued.wait(seen, seconds)

    def wake_at(self, time_ms: int) -> None:
        """Say when the next look is, unless it is notified before."""
        self.words[AT_WAKE] = time_ms

    def read_ms(self) -> int | None:
        """All that is due before that is delivered; None as long as nobody delivers in this life."""
        return self.words[AT_READ] if self.is_ours() and self.words[AT_READ] > 0 else None

    def pending(self) -> int:
        """How many messages wait in the wheel."""
        return max(self.words[AT_PENDING], 0) if self.is_ours() else 0
