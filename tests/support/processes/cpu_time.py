"""What a process has had of the processors."""

from __future__ import annotations

import ctypes
import os
import time


def cpu_seconds(pid: int) -> float:
    """Of all its threads, those that ended too."""
    clock = ctypes.c_int()
    failed = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if failed:
        raise OSError(failed, os.strerror(failed), pid)
    return time.clock_gettime(clock.value)
