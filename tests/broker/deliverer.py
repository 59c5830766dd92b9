"""A process that has the duties of a store as soon as it is its turn, and dies where it is told to.

With `step` it kills itself before that store into the shared words of the delivery, counted from the first
that states a delivery. See tests/crash/processes.py for how it comes to life.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from mq.broker import delay_offsets
from mq.broker.local import LocalBroker
from tests.crash.processes import stopping

LEVELS = "50ms 150ms"
SIZES: dict[str, Any] = {
    "commitlog_file_size": 1 << 20,
    "queue_file_units": 64,
    "index_slot_count": 16,
    "index_unit_count": 64,
}


class MortalWords:
    """The words, and the end at one of them."""

    def __init__(self, words: Any, dies_at: int) -> None:
        self._words, self._dies_at = words, dies_at
        self._step: int | None = None

    def __getitem__(self, place: int) -> int:
        return int(self._words[place])

    def __setitem__(self, place: int, value: int) -> None:
        if self._step is None and place == delay_offsets.AT_OFFSET:
            self._step = 0
        if self._step is not None:
            if self._step == self._dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
            self._step += 1
        self._words[place] = value


def die_at(step: int) -> None:
    made = delay_offsets.DelayOffsets.__init__

    def make(self: Any, *arguments: Any) -> None:
        made(self, *arguments)
        self._words = MortalWords(self._words, step)

    made_mortal: Any = make
    delay_offsets.DelayOffsets.__init__ = made_mortal  # type: ignore[method-assign]  # for this process alone


def deliverer(root: str, step: int | None = None) -> None:
    if step is not None:
        die_at(step)
    with LocalBroker(root, message_delay_level=LEVELS, **SIZES):
        while not stopping:
            time.sleep(0.005)
