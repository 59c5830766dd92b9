"""A process that has the duties of a store as soon as it is its turn, and dies where it is told to.

With `step` it kills itself before that store into the shared words of the delivery, counted from the first
that states a delivery. See tests/support/processes/nursery.py for how it comes to life.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from mq.broker import leader
from mq.broker.delay import level_progress
from mq.broker.local import LocalBroker
from tests.support.processes.nursery import stopping

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
        if self._step is None and place == level_progress.AT_OFFSET:
            self._step = 0
        if self._step is not None:
            if self._step == self._dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
            self._step += 1
        self._words[place] = value


def die_at(step: int) -> None:
    made = level_progress.DelayOffsets.__init__

    def make(self: Any, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        self._words = MortalWords(self._words, step)
        self._put = self._put_here

    made_mortal: Any = make
    level_progress.DelayOffsets.__init__ = made_mortal  # type: ignore[method-assign]  # for this process alone


def stop_before(step: int) -> None:
    """Stop this process before that change of the shared words, counted from the first that states a
    delivery."""
    made = level_progress.DelayOffsets.__init__
    left: list[int] = []

    def make(self: Any, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        put = self._put

        def stop_and_put(values: Mapping[int, int]) -> None:
            if level_progress.AT_OFFSET in values and not left:
                left.extend(range(step + 1))
            if left and left.pop() == 0:
                left.append(-1)
                signal.raise_signal(signal.SIGSTOP)  # Of this thread: it stops here, and not a little later.
            put(values)

        self._put = stop_and_put

    made_to_stop: Any = make
    level_progress.DelayOffsets.__init__ = made_to_stop  # type: ignore[method-assign]  # for this process alone


def deliverer(
    root: str,
    step: int | None = None,
    stops_before: int | None = None,
    lease: float = 10.0,
    retention_hours: float | None = None,
) -> None:
    leader.RETENTION_INTERVAL = 0.1
    if step is not None:
        die_at(step)
    if stops_before is not None:
        stop_before(stops_before)
    options = {"duties_lease": lease, "retention_hours": retention_hours, **SIZES}
    with LocalBroker(root, message_delay_level=LEVELS, **options):
        while not stopping:
            time.sleep(0.005)
