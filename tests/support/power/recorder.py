"""Loads recorder.c into the processes of a test, and switches it on where a store is to be watched."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

__all__ = ["build", "record"]

SOURCE = Path(__file__).with_suffix(".c")


def build(directory: Path) -> Path:
    """The library for LD_PRELOAD."""
    library = directory / "recorder.so"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]
    result = subprocess.run(
        [os.environ.get("CC", "cc"), *flags, "-o", str(library), str(SOURCE), "-ldl"],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"the recorder does not compile:\n{result.stderr}")
    return library


def record(
    root: str, state: str, *, delay_max_us: int, syncs_lie: bool, clock_begin_ns: int, clock_factor: int
) -> None:
    """Note from now on what this process does below `root`; called once, before it opens anything.

    Syncs take up to delay_max_us, and do nothing at all if they lie. The wall clock runs clock_factor times
    as fast since clock_begin_ns.
    """
    start = ctypes.CDLL(None).mq_record
    start.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    start.argtypes += [ctypes.c_int64, ctypes.c_int64]
    result = start(root.encode(), state.encode(), delay_max_us, syncs_lie, clock_begin_ns, clock_factor)
    assert result >= 0, f"{state} holds no journal"
