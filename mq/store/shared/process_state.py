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
    """RUNNING is what can go on by itself, STOPPED what goes on after SIGCONT, TRACED is in a debugger,
    FROZEN is held by the freezer of its cgroup."""

    RUNNING = "running"
    STOPPED = "stopped"
    TRACED = "traced"
    FROZEN = "frozen"
    GONE = "gone"
    UNKNOWN = "unknown"


ROOT = Path("/")
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
        return self.kind in (ProcessKind.STOPPED, ProcessKind.TRACED, ProcessKind.FROZEN)


def process_state(pid: int, root: Path = ROOT) -> ProcessState:
    """Of a process of this machine and pid namespace, by root/proc and root/sys. Never raises."""
    if pid <= 0:
        return ProcessState(pid, ProcessKind.UNKNOWN)
    try:
        stat = (root / f"proc/{pid}/stat").read_bytes()
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
    if kind is ProcessKind.RUNNING and _is_frozen(pid, root):
        kind = ProcessKind.FROZEN
    since_s = _boot_time_s() + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return ProcessState(pid, kind, since_s, stat[begin:end].decode("utf-8", "replace"))


def _is_frozen(pid: int, root: Path) -> bool:
    """Whether the freezer of its cgroup holds it, which /proc/<pid>/stat does not show. False where that
    cannot be read, as for a process of another cgroup namespace."""
    cgroups = root / "sys/fs/cgroup"
    for line in _lines(root / f"proc/{pid}/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        path = path.lstrip("/")
        is_frozen = False
        if "freezer" in controllers.split(","):
            is_frozen = "FROZEN" in _lines(cgroups / "freezer" / path / "freezer.state")
        elif number == "0":  # v2, alone or beside v1
            events = (mount / path / "cgroup.events" for mount in (cgroups, cgroups / "unified"))
            is_frozen = any("frozen 1" in _lines(each) for each in events)
        if is_frozen:
            return True
    return False


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


def describe(pid: int | None, root: Path = ROOT) -> str:
    """A clause that names a process, what it is, and the way out, for the text of an error.

    None, and what is no pid: the process is not known.
    """
    if pid is None or pid <= 0:
        return "a process that is not known (of another container, perhaps)"
    state = process_state(pid, root)
    named = f"process {pid}" + (f" ({state.name})" if state.name else "")
    if state.kind is ProcessKind.STOPPED:
        return f"{named}, which is stopped: `kill -CONT {pid}` lets it go on, `kill -KILL {pid}` ends it"
    if state.kind is ProcessKind.TRACED:
        return f"{named}, which is stopped by a debugger: let it go on there, or end it"
    if state.kind is ProcessKind.FROZEN:
        return f"{named}, which is stopped by the freezer of its cgroup: thaw its container, or end it"
    if state.kind is ProcessKind.GONE:
        return f"process {pid}, which is gone by now: try again"
    if state.since_s is None:
        return named
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.since_s))
    return f"{named}, running since {when}: see what it waits for, or end it"


@cache
def _boot_time_s() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
