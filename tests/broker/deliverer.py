"""A process that has the duties of a store, and dies where it is told to.

    python -m tests.broker.deliverer STORE [STEP]

It opens the store, says so on its standard output once it has the duties, and lives until its standard input
closes. With STEP it kills itself before that store into the shared words of the delivery, counted from the
first that states a delivery.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

from mq.broker import delay_offsets
from mq.broker.local import LocalBroker

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


def main(path: str, step: str = "") -> None:
    if step:
        die_at(int(step))
    ended = threading.Event()

    def hear_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=hear_the_end, daemon=True).start()
    with LocalBroker(path, message_delay_level=LEVELS, **SIZES) as broker:
        # Its turn may never come.
        while broker._schedule._offsets is None and not ended.wait(0.001):
            continue
        if not ended.is_set():
            print("in", flush=True)
        ended.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
