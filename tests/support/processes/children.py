"""Functions run in processes of their own: a signal or a hang is then a result, not the end of the tests.

    value = call(look_at_all, root)          raises Died, Hung, or Failed with the child's traceback
    with Child(keep_reading, root) as child: child.say("stop"); child.result()

A function that is run this way lives in an importable module, and takes and returns what can be pickled. It
may talk through `say` and `hear`, which carry one line of text each.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tests.support.processes.forked import Forked

ROOT = Path(__file__).resolve().parents[3]
NAME = "tests.support.processes.children"
TIMEOUT = 240.0  # A hang is told by it, and nothing else: a slow machine takes its time.
_to_parent: IO[bytes] | None = None


class Died(AssertionError):
    """The child was ended by a signal."""


class Hung(AssertionError):
    """The child did not come to an end in time."""


class Failed(AssertionError):
    """The function raised."""


class Child:
    """One function in one process. Leaving the `with` ends it."""

    def __init__(
        self, function: Callable[..., Any], *arguments: Any, timeout: float = TIMEOUT, uid: int = 0
    ) -> None:
        self._timeout = timeout
        self.name = function.__name__
        self.process = Forked(NAME, "main", errors=True) if uid == 0 else _as_user(uid)
        self.errors = b""
        # What it writes there must not fill the pipe: a report of a sanitizer is long.
        self._reading = threading.Thread(target=self._read_errors, name="errors-of-child")
        self._reading.start()
        job = pickle.dumps((function.__module__, function.__name__, arguments, timeout))
        self._write(len(job).to_bytes(4, "big") + job)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def _write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except BrokenPipeError:
            self._judge()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, line: str) -> None:
        self._write(line.encode() + b"\n")

    def hear(self) -> str:
        """The next line that the child says."""
        kind, data = self._receive()
        assert kind == b"L", (kind, data)
        return data.decode()

    def result(self) -> Any:
        kind, data = self._receive()
        assert kind == b"R", (kind, data)
        self.process.wait(self._timeout)
        return pickle.loads(data)

    def _receive(self) -> tuple[bytes, bytes]:
        assert self.process.stdout is not None
        head = self.process.stdout.read(5)
        if len(head) < 5:
            self._judge()
            raise AssertionError("the child ended without a result")
        data = self.process.stdout.read(int.from_bytes(head[1:], "big"))
        if head[:1] == b"X":
            raise Failed(f"{self.name} raised\n{data.decode()}")
        return head[:1], data

    def _judge(self) -> None:
        status = self.process.wait(self._timeout)
        self._reading.join()
        said = self.errors.decode(errors="replace")[-6000:]
        if "Timeout (" in said:
            raise Hung(f"{self.name} did not end within {self._timeout:g} s\n{said}")
        if status < 0:
            raise Died(f"{self.name} was ended by {signal.Signals(-status).name}\n{said}")
        raise Failed(f"{self.name} ended with status {status}\n{said}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            if kind is None:
                assert self.process.stdin is not None
                self.process.stdin.close()
                try:
                    self.process.wait(self._timeout)
                except subprocess.TimeoutExpired:
                    self.kill()
            else:
                self.kill()
        self._reading.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()


def _as_user(uid: int) -> subprocess.Popen[bytes]:
    """A separate interpreter: a process that only changes its user may see less of itself than a real one."""
    return subprocess.Popen(
        ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups",
         sys.executable, "-m", NAME],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


def call(function: Callable[..., Any], *arguments: Any, timeout: float = TIMEOUT, uid: int = 0) -> Any:
    """The function's result, from a process of its own."""
    with Child(function, *arguments, timeout=timeout, uid=uid) as child:
        return child.result()


def say(line: str) -> None:
    _send(b"L", line.encode())


def hear() -> str:
    """The parent's next line; "" once it has gone."""
    return sys.stdin.buffer.readline().decode().strip()


def _send(kind: bytes, data: bytes) -> None:
    assert _to_parent is not None
    _to_parent.write(kind + len(data).to_bytes(4, "big") + data)
    _to_parent.flush()


def main() -> None:
    global _to_parent  # noqa: PLW0603 - one pipe a process
    faulthandler.enable()
    _to_parent = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    size = int.from_bytes(sys.stdin.buffer.read(4), "big")
    module, name, arguments, timeout = pickle.loads(sys.stdin.buffer.read(size))
    faulthandler.dump_traceback_later(timeout, exit=True)
    try:
        value = getattr(importlib.import_module(module), name)(*arguments)
    except BaseException:  # noqa: BLE001 - told to the parent, who raises it
        _send(b"X", traceback.format_exc().encode())
        os._exit(1)
    _send(b"R", pickle.dumps(value))
    os._exit(0)


if __name__ == "__main__":
    # Under its import name too, so that `say` and `hear` are those of this very module.
    sys.modules[NAME] = sys.modules["__main__"]
    main()
