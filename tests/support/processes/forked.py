"""Processes that begin where the interpreter and the library are loaded already.

    process = Forked("tests.damage.using", "main")    stdin, stdout, poll(), wait() and kill() as of Popen

A server without threads imports once what they need, and forks each of them. That is a tenth of what a new
interpreter costs, and beside the sanitizers most of what such a process costs at all. What is to start under
another user, or with libraries loaded before all others, is no fork of it.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[3]
_CONTEXT = multiprocessing.get_context("forkserver")
# pytest, since every process that multiprocessing starts imports again what its parent was started with.
_loaded = ["pytest", "tests.support.store.peer"]


def load_before(*modules: str) -> None:
    """Have the server load these too, if it has not started yet: a suite says so when it is collected."""
    _loaded.extend(modules)
    _CONTEXT.set_forkserver_preload(_loaded)


load_before()


class Forked:
    """A function of a module, called with pipes as standard streams, and in the environment of the caller."""

    def __init__(self, module: str, function: str, *, errors: bool = False) -> None:
        """With `errors` its standard error is a pipe too, else that of the caller."""
        stdin, to_child = _CONTEXT.Pipe(duplex=False)
        from_child, stdout = _CONTEXT.Pipe(duplex=False)
        ends: list[Connection] = [stdin, stdout]
        self.stderr: IO[bytes] | None = None
        if errors:
            from_stderr, stderr = _CONTEXT.Pipe(duplex=False)
            ends.append(stderr)
            self.stderr = _stream(from_stderr, "rb")
        self.stdin = _stream(to_child, "wb")
        self.stdout = _stream(from_child, "rb")
        self._process = _CONTEXT.Process(
            target=_begin, args=(module, function, ends, dict(os.environ)), daemon=True
        )
        self._process.start()
        for end in ends:
            end.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        status = self._process.exitcode
        if status is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # Reaped by the server since the look.
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _stream(end: Connection, mode: str) -> IO[bytes]:
    stream: IO[bytes] = os.fdopen(os.dup(end.fileno()), mode)
    end.close()
    return stream


def _begin(module: str, function: str, ends: list[Connection], environment: dict[str, str]) -> None:
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin = os.fdopen(0, closefd=False)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    getattr(importlib.import_module(module), function)()
