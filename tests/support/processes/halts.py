"""Processes of a chaos suite are stopped and go on, at random moments, beside all else that is done to them.

Only where it is asked for: MQ_HALTS=1. A halt is shorter than any time limit in the library, so nothing may
come of it: the same holds that holds without. Alarms cut those short that send, and the workers of Spark.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from tests.support.interrupting import interrupted_after

__all__ = ["WANTED", "cut_short", "halts", "until_done"]

WANTED = os.environ.get("MQ_HALTS") == "1"
INTERVAL, SHORTEST, LONGEST = 0.3, 0.01, 1.5  # seconds
ALARM = 0.001  # seconds, within which an alarm comes; a send takes a tenth of that


def cut_short(call: Callable[[], object], chance: random.Random) -> None:
    """Make a call, which an alarm may end at any moment where that is asked for."""
    if WANTED:
        interrupted_after(call, chance.uniform(1e-6, ALARM))
    else:
        call()


def until_done(call: Callable[[], object], chance: random.Random) -> None:
    """Make a call again and again until no alarm has ended it: one that may be made twice."""
    done: list[object] = []
    while not done:
        cut_short(lambda: done.append(call()), chance)


@contextmanager
def halts(pids: Callable[[], Sequence[int]], seed: int = 0) -> Iterator[None]:
    """As long as it lasts, one of these processes after the other is stopped for a while."""
    if not WANTED:
        yield
        return
    over, chance, counts = threading.Event(), random.Random(seed), [0]

    def halt_on() -> None:
        while not over.wait(chance.expovariate(1 / INTERVAL)):
            found = pids()
            if not found:
                continue
            with suppress(ProcessLookupError):
                fd = os.pidfd_open(chance.choice(found))
                try:
                    signal.pidfd_send_signal(fd, signal.SIGSTOP)
                    over.wait(chance.uniform(SHORTEST, LONGEST))
                    signal.pidfd_send_signal(fd, signal.SIGCONT)
                    counts[0] += 1
                finally:
                    os.close(fd)

    thread = threading.Thread(target=halt_on, name="halts")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        print(f"  {counts[0]} halts")
