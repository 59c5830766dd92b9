"""How long a live process was held up, without what the machine itself is to blame for.

A Stopwatch runs around each call and notes the long ones, less the time that the thread was ready to run and
had no processor (the kernel counts it). A pulse, in a process that never touches the store, sleeps a moment,
touches a file, and notes when that took long: then the processors or the disk were busy, and every process
waited. A beat, a thread of a process that does, notes when this one stood still: a process that waits for a
live one that gets no processor waits for the machine. So each process that may hold a lock has one, next to
the file of the Stopwatch of whoever may wait for it: see beat_of.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from tests.support.processes.nursery import stopping

__all__ = ["PROMISE", "Stopwatch", "beat", "beat_of", "longest", "pulse", "stalls", "unexplained"]

PROMISE = 0.25  # s: a dead process never holds up a live one for longer.
NOTED = 0.02
RECORD = struct.Struct("=dd")  # begin and end on the monotonic clock

Span = tuple[float, float]


class Stopwatch:
    """`with watch:` around a call. The process has a beat from then on."""

    def __init__(self, path: Path | str) -> None:
        beat(beat_of(path))
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._schedule = -1  # Then there is the pulse alone.

    def _unserved(self) -> float:
        """Seconds that this thread has waited for a processor so far."""
        return int(os.pread(self._schedule, 100, 0).split()[1]) / 1e9 if self._schedule >= 0 else 0.0

    def __enter__(self) -> None:
        self._before = self._unserved()
        self._began = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = time.monotonic()
        if ended - self._began > NOTED:
            began = self._began + self._unserved() - self._before
            if ended > began:
                os.write(self._fd, RECORD.pack(began, ended))


def pulse(path: str) -> None:
    """The actor that notes when the machine stood still."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    touched = os.open(f"{path}.touched", os.O_WRONLY | os.O_CREAT, 0o600)
    last = time.monotonic()
    round_ = 0
    while not stopping:
        time.sleep(0.002)
        round_ += 1
        if round_ % 20 == 0:
            os.pwrite(touched, b"x" * 4096, round_ % 64 * 4096)
            os.fsync(touched)  # Not fdatasync: its time of change goes through the journal, as new pages do.
        now = time.monotonic()
        if now - last > NOTED:
            os.write(fd, RECORD.pack(last, now))
        last = now


def beat(path: Path | str, noted: float = NOTED) -> None:
    """Have a thread of this process note when it stood still for so many seconds or more, until it ends."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note() -> None:
        last = time.monotonic()
        while True:
            time.sleep(noted / 10)
            now = time.monotonic()
            if now - last > noted:
                os.write(fd, RECORD.pack(last, now))
            last = now

    threading.Thread(target=note, name="beat", daemon=True).start()


def beat_of(watched: Path | str) -> Path:
    return Path(f"{watched}.beat")


def _spans(path: Path) -> list[Span]:
    data = path.read_bytes() if path.exists() else b""
    return [(begin, end) for begin, end in RECORD.iter_unpack(data[: len(data) - len(data) % RECORD.size])]


def stalls(*paths: Path) -> list[Span]:
    """When the machine stood still, as a pulse has it, or one of these beats."""
    merged: list[Span] = []
    for since, until in sorted(span for path in paths for span in _spans(path)):
        if merged and since <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], until)
        else:
            merged.append((since, until))
    return merged


def unexplained(begin: float, end: float, stalled: Iterable[Span]) -> float:
    """How many of these seconds the machine does not explain; the spans do not overlap."""
    return end - begin - sum(max(0.0, min(end, until) - max(begin, since)) for since, until in stalled)


def longest(watched: list[Path], pulse_path: Path) -> float:
    """Seconds of the longest pause that the machine does not explain."""
    stalled = stalls(pulse_path, *map(beat_of, watched))
    return max(
        (unexplained(begin, end, stalled) for path in watched for begin, end in _spans(path)), default=0.0
    )
