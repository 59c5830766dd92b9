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

import mmap
import os
from pathlib import Path

from mq.store.directory.layouts import LAYOUTS
from mq.store.directory.owner import made_file
from mq.store.os_errors import named_errors
from mq.store.shared.waiting import Futex

__all__ = ["ALWAYS", "TimerProgress"]

ALWAYS = 1 << 62  # As wake_ms: whatever is stored now is to be told.
STAMP = int.from_bytes(b"mqtimer%d" % LAYOUTS["mq/timer"], "little")
AT_STAMP, AT_EPOCH, AT_WAKE, AT_ENQUEUED, AT_READ, AT_LOG_END, AT_PENDING = 0, 1, 2, 3, 4, 5, 6
AT_EVENT = 56  # in bytes
SIZE = 4096


class TimerProgress:
    """mq/timer, mapped: as that of the delay levels, with what it says of the wheel.

    Mapped as long as it lives, since a send may be under way while its broker closes.
    """

    def __init__(self, root: Path, epoch: int) -> None:
        self.path = path = root / "mq" / "timer"
        with named_errors(path), made_file(path) as fd:
            # Allocated before it is touched: a full disk is an error here, and no signal later.
            os.posix_fallocate(fd, 0, SIZE)
            self.mapped = mmap.mmap(fd, SIZE)
        self.words = memoryview(self.mapped).cast("q")
        self.event = Futex(self.mapped, AT_EVENT)
        self._enqueued = Futex(self.mapped, AT_ENQUEUED * 8)
        self.epoch = epoch

    def is_ours(self) -> bool:
        """Whether what it says is of this life of the store."""
        return self.words[AT_STAMP] == STAMP and self.words[AT_EPOCH] == self.epoch

    def stored(self, due_ms: int) -> None:
        """A message was put aside that is due then: the leader is woken if it would sleep longer."""
        # In another life of the store nobody delivers yet, and a new leader looks at all that is there.
        if due_ms < self.words[AT_WAKE]:
            self.notify()

    def notify(self) -> None:
        """Have the leader look at once: what was put aside until now is enqueued then, whenever it is
        due."""
        self.event.add()
        self.event.wake()

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
