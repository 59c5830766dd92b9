"""What wakes the leader for a delayed message: the head of mq/delay and of mq/timer, mapped by all.

    offset  size  field
         0     8  stamp
         8     8  epoch    of the control file that it belongs to
        16     8  wake_ms  when the leader looks next; a sender of what is due before notifies
        56     4  event    futex word: raised to wake the leader

What else a file says is for mq/broker/delay/level_progress.py and mq/store/timer/progress.py.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from mq.store.directory.owner import made_file
from mq.store.os_errors import named_errors
from mq.store.shared.waiting import Futex

__all__ = ["ALWAYS", "AT_EPOCH", "AT_STAMP", "AT_WAKE", "SIZE", "DueEvent"]

AT_STAMP, AT_EPOCH, AT_WAKE = 0, 1, 2
AT_EVENT = 56  # in bytes
SIZE = 4096
ALWAYS = 1 << 62  # As wake_ms: every message stored now wakes the leader.


class DueEvent:
    """Such a file. Mapped as long as it lives, since a send may be under way while its broker closes."""

    def __init__(self, path: Path, stamp: int, epoch: int) -> None:
        self.path = path
        with named_errors(path), made_file(path) as fd:
            # Allocated before it is touched: a full disk is an error here, and no signal later.
            os.posix_fallocate(fd, 0, SIZE)
            self.mapped = mmap.mmap(fd, SIZE)
        self.words = memoryview(self.mapped).cast("q")
        self.event = Futex(self.mapped, AT_EVENT)
        self.epoch = epoch
        self._stamp = stamp

    def is_ours(self) -> bool:
        """Whether what it says is of this life of the store."""
        return self.words[AT_STAMP] == self._stamp and self.words[AT_EPOCH] == self.epoch

    def stored(self, due_ms: int) -> None:
        """A message was stored that is due then: the leader is woken if it would sleep longer."""
        # In another life of the store nobody delivers yet, and a new leader looks at all that is there.
        if due_ms < self.words[AT_WAKE]:
            self.notify()

    def notify(self) -> None:
        """Have the leader look at once, whenever what was stored until now is due."""
        self.event.add()
        self.event.wake()
