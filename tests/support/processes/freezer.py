"""Freezes a process by the freezer of a cgroup, v1 or v2.

Where this machine lets nobody make a cgroup, the process is stopped instead, and the files that tell of its
state are others: there it runs, in a cgroup that is frozen.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from mq.store.shared import process_state as states
from tests.support.eventually import eventually

__all__ = ["HIERARCHIES", "frozen"]

CGROUPS = Path("sys/fs/cgroup")


@dataclass(frozen=True)
class Hierarchy:
    """mounts: where it may be, below CGROUPS. change: what is written to which file, to freeze and to go on.
    state: what a file says while it is frozen."""

    mounts: tuple[str, ...]
    change: tuple[str, str, str]
    state: tuple[str, str]
    line: str  # of /proc/<pid>/cgroup, up to the path


HIERARCHIES = {
    "v1": Hierarchy(
        ("freezer",), ("freezer.state", "FROZEN", "THAWED"), ("freezer.state", "FROZEN"), "4:freezer:"
    ),
    "v2": Hierarchy(("unified", "."), ("cgroup.freeze", "1", "0"), ("cgroup.events", "frozen 1"), "0::"),
}


@contextmanager
def frozen(
    pid: int, hierarchy: Hierarchy, directory: Path, patch: pytest.MonkeyPatch, *, fake: bool = False
) -> Iterator[bool]:
    """Inside, the process is frozen; whether by a real freezer. directory: where a fake one has its files."""
    cgroup = None if fake else _made(pid, hierarchy)
    if cgroup is None:
        with _faked(pid, hierarchy, directory, patch):
            yield False
        return
    file, freeze, thaw = hierarchy.change
    state, said = hierarchy.state
    try:
        (cgroup / file).write_text(freeze)
        eventually(lambda: said in (cgroup / state).read_text().splitlines(), lambda: cgroup)
        yield True
    finally:
        (cgroup / file).write_text(thaw)
        with suppress(ProcessLookupError):
            (cgroup.parent / "cgroup.procs").write_text(str(pid))
        eventually(lambda: _removed(cgroup), lambda: f"{cgroup} is in use")


def _made(pid: int, hierarchy: Hierarchy) -> Path | None:
    """A cgroup with the process in it; None where it cannot be made."""
    for mount in hierarchy.mounts:
        parent = Path("/") / CGROUPS / mount
        if not (parent / "cgroup.procs").exists():
            continue
        cgroup = parent / f"mq-test-{pid}"
        try:
            cgroup.mkdir()
        except OSError:
            continue
        with suppress(OSError):
            if (cgroup / hierarchy.change[0]).exists():
                (cgroup / "cgroup.procs").write_text(str(pid))
                return cgroup
        cgroup.rmdir()
    return None


def _removed(cgroup: Path) -> bool:
    with suppress(OSError):  # The process is on its way out of it.
        cgroup.rmdir()
    return not cgroup.exists()


class _Root:
    """The root directory, of which one process and the cgroups are faked."""

    def __init__(self, fake: Path, pid: int) -> None:
        self._fake = fake
        self._places = f"proc/{pid}/", str(CGROUPS)

    def __truediv__(self, path: str) -> Path:
        return (self._fake if path.startswith(self._places) else Path("/")) / path


@contextmanager
def _faked(pid: int, hierarchy: Hierarchy, directory: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    process, cgroup = directory / f"proc/{pid}", directory / CGROUPS / hierarchy.mounts[0] / "app"
    for each in (process, cgroup):
        each.mkdir(parents=True, exist_ok=True)
    stat = Path(f"/proc/{pid}/stat")
    (process / "stat").write_text(stat.read_text())  # As of a process that runs, or sleeps.
    (process / "cgroup").write_text(f"{hierarchy.line}/app\n")
    state, said = hierarchy.state
    (cgroup / state).write_text(said + "\n")
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: ") T " in stat.read_text(), stat.read_text)
    with patch.context() as patched:
        root = _Root(directory, pid)
        told: tuple[Callable[..., object], ...] = (states.process_state, states.describe)
        for function in told:
            patched.setattr(function, "__defaults__", (root,))
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
