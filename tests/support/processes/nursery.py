"""Processes that are cheap to start and die at once.

A nursery is one process that has imported mq and opened nothing. It forks a child for each request, which
takes a few milliseconds, and the child runs one function of a module of actors: opens the store itself, and
works until it is stopped (SIGTERM, seen by `stopping`) or killed. Children die with the nursery, the nursery
with the test.

    test  -> nursery   one JSON line: the actor's name, its arguments, its environment
    nursery -> test    one line: the child's pid

A child that fails writes its traceback to the nursery's report, which the tests look at.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import mq

__all__ = ["Nursery", "Process", "stopping"]

PR_SET_PDEATHSIG = 1


class Process:
    """A child of the nursery, held by a pidfd: a number used again cannot be hit."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def kill(self) -> int:
        """SIGKILL, and wait until it is gone. When it was told, in ns of the monotonic clock."""
        self._signal(signal.SIGKILL)
        told_ns = time.monotonic_ns()
        assert self.wait(120), "a killed process does not die"
        return told_ns

    def stop(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def halt(self) -> None:
        """SIGSTOP: it lives, and does nothing."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def wait(self, timeout: float) -> bool:
        """Whether it has ended."""
        poll = select.poll()  # select() takes no descriptor over 1023, and a test of many rounds has those.
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def _signal(self, number: int) -> None:
        if not self.wait(0):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, number)

    def close(self) -> None:
        os.close(self._fd)


class Nursery:
    """Starts actors, functions of the module of that name. `python_path` says whose mq they import;
    `environment` is that of every child."""

    def __init__(
        self,
        tree: Path,
        report: Path,
        python_path: Path,
        actors: str,
        **environment: str,
    ) -> None:
        self.report = report
        self._told = 0
        report.touch()
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes.nursery", str(report), actors],
            cwd=report.parent,
            env={**os.environ, **environment, "PYTHONPATH": f"{python_path}{os.pathsep}{tree}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._children: list[Process] = []

    def start(self, actor: str, *, environment: dict[str, str] | None = None, **arguments: Any) -> Process:
        """Fork a child that runs this function of the actors with these arguments."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([actor, environment or {}, arguments], default=str) + "\n")
        process = Process(int(self._server.stdout.readline()))
        self._children.append(process)
        return process

    def living(self) -> list[int]:
        """The pids of all children that have not ended."""
        return [child.pid for child in list(self._children) if not child.wait(0)]

    def forget(self, process: Process) -> None:
        """A dead child needs its descriptor no longer."""
        self._children.remove(process)
        process.close()

    def failures(self) -> str:
        """What children reported on their way down since the last call; "" if all went well."""
        text = self.report.read_text()
        fresh, self._told = text[self._told :], len(text)
        return fresh

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.kill()
            child.close()
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(120)
        assert self._server.stdout is not None
        self._server.stdout.close()


class _Stopping:
    """True once this child was asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def __bool__(self) -> bool:
        return self.asked


stopping = _Stopping()


def serve(report: str, name_of_actors: str) -> None:
    actors = importlib.import_module(name_of_actors)
    # Loaded before the fork: a child that is killed early is to die at work, and not while it loads modules.
    for public in mq.__all__:
        getattr(mq, public)
    # Nor is a child to look through all of this for garbage, and to copy the pages that this writes to.
    gc.collect()
    gc.freeze()
    parent = os.getpid()
    # A child that is stopped right after its start gets the signal once it handles it, instead of dying
    # silently.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for line in sys.stdin:
        name, environment, arguments = json.loads(line)
        _bury(report, os.WNOHANG)
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        _die_with(parent)
        status = 1
        try:
            os.environ.update(environment)
            signal.signal(signal.SIGTERM, lambda *_: setattr(stopping, "asked", True))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            getattr(actors, name)(**arguments)
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it was, the test is to see it
            with Path(report).open("a") as file:
                file.write(f"{name} {arguments} at {time.monotonic():.3f}:\n{traceback.format_exc()}\n")
        finally:
            os._exit(status)
    _bury(report, os.WNOHANG)


def _bury(report: str, flags: int) -> None:
    """Wait for children. Death by another signal than the one that tests kill with is worth a report."""
    while True:
        try:
            pid, status = os.waitpid(-1, flags)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
            with Path(report).open("a") as file:
                file.write(f"process {pid} died by signal {os.WTERMSIG(status)}\n")


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    # The actors import this module by its name: it is that one whose `stopping` counts.
    importlib.import_module("tests.support.processes.nursery").serve(*sys.argv[1:])
