"""What a process is doing, by its pid: for errors that name the process that is waited for.

A process that is stopped (SIGSTOP, a debugger, a frozen container) keeps every lock that it holds, since it
is alive; an error that only says "a lock is held" leaves the reader with nothing to do. This tells which
process, what it is, and what lets it go on.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

__all__ = ["ProcessKind", "ProcessState", "describe", "process_state"]


class ProcessKind(Enum):
    """RUNNING is what can go on by itself, STOPPED what goes on after SIGCONT, TRACED is in a debugger."""

    RUNNING = "running"
    STOPPED = "stopped"
    TRACED = "traced"
    GONE = "gone"
    UNKNOWN = "unknown"


# The letter of /proc/<pid>/stat. A zombie has dropped every lock: it is as good as gone.
KINDS = {"T": ProcessKind.STOPPED, "t": ProcessKind.TRACED, "Z": ProcessKind.GONE, "X": ProcessKind.GONE}


@dataclass(frozen=True, slots=True)
class ProcessState:
    """since_s: when it started, seconds of the wall clock, and name: of its program; None where not known."""

    pid: int
    kind: ProcessKind
    since_s: float | None = None
    name: str | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether nothing but somebody else lets it go on."""
        return self.kind in (ProcessKind.STOPPED, ProcessKind.TRACED)


def process_state(pid: int) -> ProcessState:
    """Of a process of this machine and pid namespace. Never raises."""
    if pid <= 0:
        return ProcessState(pid, ProcessKind.UNKNOWN)
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ProcessState(pid, ProcessKind.GONE)
    except OSError:
        return ProcessState(pid, ProcessKind.UNKNOWN)
    # The name stands in parentheses and may hold anything; fields are counted from behind it.
    begin, end = stat.find(b"(") + 1, stat.rfind(b")")
    fields = stat[end + 2 :].split()
    if len(fields) < 20:
        return ProcessState(pid, ProcessKind.UNKNOWN)
    kind = KINDS.get(fields[0].decode("ascii", "replace"), ProcessKind.RUNNING)
    since_s = _boot_time_s() + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return ProcessState(pid, kind, since_s, stat[begin:end].decode("utf-8", "replace"))


def describe(pid: int | None) -> str:
    """A clause that names a process, what it is, and the way out, for the text of an error.

    None, and what is no pid: the process is not known.
    """
    if pid is None or pid <= 0:
        return "a process that is not known (of another container, perhaps)"
    state = process_state(pid)
    named = f"process {pid}" + (f" ({state.name})" if state.name else "")
    if state.kind is ProcessKind.STOPPED:
        return f"{named}, which is stopped: `kill -CONT {pid}` lets it go on, `kill -KILL {pid}` ends it"
    if state.kind is ProcessKind.TRACED:
        return f"{named}, which is stopped by a debugger: let it go on there, or end it"
    if state.kind is ProcessKind.GONE:
        return f"process {pid}, which is gone by now: try again"
    if state.since_s is None:
        return named
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.since_s))
    return f"{named}, running since {when}: see what it waits for, or end it"


@cache
def _boot_time_s() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
