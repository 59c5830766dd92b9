"""A process that has the duties of a store as soon as it is its turn, and dies where it is told to.

With `step` it kills itself before that store into the shared words of the delivery, counted from the first
that states a delivery. See tests/support/processes/nursery.py for how it comes to life.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from mq.broker import leader
from mq.broker.delay import level_progress, schedule
from mq.broker.delay.level_progress import DelayOffsets, LevelProgress
from mq.broker.local import LocalBroker
from tests.support.processes.nursery import stopping

LEVELS = "50ms 150ms"
SIZES: dict[str, Any] = {
    "commitlog_file_size": 1 << 20,
    "queue_file_units": 64,
    "index_slot_count": 16,
    "index_unit_count": 64,
}


Put = Callable[[Mapping[int, int]], None]  # stores words of mq/delay


def put_by(through: Callable[[LevelProgress, Put], Put]) -> None:
    """Have the delivery of this process store its words by through(progress, put), not by put."""

    class Through(DelayOffsets):
        def __init__(
            self,
            root: Path,
            progress: LevelProgress,
            levels: int,
            last_store_ms: int = 0,
            *,
            put: Put,
            **options: Any,
        ) -> None:
            super().__init__(root, progress, levels, last_store_ms, put=through(progress, put), **options)

    vars(schedule)["DelayOffsets"] = Through


def die_at(step: int) -> None:
    def mortal(progress: LevelProgress, _put: Put) -> Put:
        steps = count()
        is_counted = False

        def put_until_then(values: Mapping[int, int]) -> None:
            nonlocal is_counted
            for place, value in values.items():
                is_counted = is_counted or place == level_progress.AT_OFFSET
                if is_counted and next(steps) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                    time.sleep(60)
                progress.words[place] = value

        return put_until_then

    put_by(mortal)


def stop_before(step: int) -> None:
    """Stop this process before that change of the shared words, counted from the first that states a
    delivery."""
    left: list[int] = []

    def stopping_once(_progress: LevelProgress, put: Put) -> Put:
        def stop_and_put(values: Mapping[int, int]) -> None:
            if level_progress.AT_OFFSET in values and not left:
                left.extend(range(step + 1))
            if left and left.pop() == 0:
                left.append(-1)
                signal.raise_signal(signal.SIGSTOP)  # Of this thread: it stops here, and not a little later.
            put(values)

        return stop_and_put

    put_by(stopping_once)


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
