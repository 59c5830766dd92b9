"""What Python imports at its start: with this folder on PYTHONPATH, alarms cut each worker of Spark short.

A worker is forked from a daemon, and a timer does not outlive a fork, so each sets its own. An alarm raises
in whatever the worker does: it reads, writes, commits, or waits for its next task. Each is one line of the
file that MQ_ALARMS names.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

INTERVAL = 20.0  # seconds, on average, between the alarms of one process


class Alarm(BaseException):
    """Raised as KeyboardInterrupt is, and never for another reason."""


def set_timer() -> None:
    signal.setitimer(signal.ITIMER_REAL, random.SystemRandom().expovariate(1 / INTERVAL) + 0.001)


def cut_short(_signum: int, _frame: object) -> None:
    with Path(os.environ["MQ_ALARMS"]).open("ab", buffering=0) as alarms:
        alarms.write(b"%d\n" % os.getpid())
    set_timer()
    raise Alarm


if "pyspark.daemon" in sys.orig_argv:  # A timer outlives an exec, and would kill a JVM that a driver starts.
    signal.signal(signal.SIGALRM, cut_short)
    os.register_at_fork(after_in_child=set_timer)
