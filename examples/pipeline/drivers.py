"""Starts, kills and restarts the query."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from examples.pipeline.plan import Plan

__all__ = ["VICTIMS", "Driver", "essence"]

ROOT = Path(__file__).resolve().parents[2]
VICTIMS = ("the Python of the driver", "the JVM of the driver")
ORPHANED_SECONDS = 10.0  # after this time the remaining processes of a killed driver are killed too
FINISH_SECONDS = 240.0
LINES_MAX = 20


class Driver:
    """One run of the query: a Python process, the JVM that it starts, executors, and their workers.

    They form a session of their own, apart from the terminal's: an interrupt goes only to the process that
    started them, and remaining processes can be found.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._is_closed = False
        self._log_begin = plan.log.stat().st_size if plan.log.exists() else 0
        plan.scratch.mkdir(exist_ok=True)
        arguments = [plan.store, plan.checkpoint, plan.master, plan.events_per_trigger, plan.batch_result]
        with plan.log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.pipeline.query", *map(str, arguments)],
                env={
                    **os.environ,
                    "SPARK_LOCAL_DIRS": str(plan.scratch),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_WORKER_DIR": str(plan.scratch / "executors"),
                    "TMPDIR": str(plan.scratch),
                },
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def check(self) -> None:
        """Exit if the query ended by itself."""
        if (status := self._process.poll()) is not None:
            sys.exit(f"pipeline: the query ended by itself, with status {status}.\n{self.said()}")

    def kill(self, victim: str) -> None:
        """Kill the Python process or the JVM with kill -9; returns when no process of the driver is left."""
        for pid in self._jvm() if victim == VICTIMS[1] else [self._process.pid]:
            os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + ORPHANED_SECONDS
        while time.monotonic() < until and (self._process.poll() is None or self._family()):
            time.sleep(0.05)
        self.close()

    def finish(self) -> None:
        """Stop the query, and run the batch job."""
        try:
            self._process.communicate("finish\n", FINISH_SECONDS)
        except subprocess.TimeoutExpired:
            sys.exit(f"pipeline: no batch job within {FINISH_SECONDS:.0f} s.\n{self.said()}")
        if status := self._process.returncode:
            sys.exit(f"pipeline: the batch job ended with status {status}.\n{self.said()}")

    def close(self) -> None:
        """End all its processes. Idempotent, also after an interrupt."""
        if self._is_closed:
            return
        while family := self._family():
            for member in family:
                with suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
            time.sleep(0.01)
        self._process.wait()
        self._is_closed = True
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def said(self) -> str:
        """The end of its log."""
        with self._plan.log.open(errors="replace") as log:
            log.seek(self._log_begin)
            return essence(log.read()) or "It said nothing."

    def _jvm(self) -> list[int]:
        """The only child process of the Python process is the JVM."""
        return [member.pid for member in self._family() if member.parent == self._process.pid]

    def _family(self) -> list["Member"]:
        return [member for member in members() if member.session == self._process.pid]


class Member(NamedTuple):
    """A live process."""

    pid: int
    parent: int
    session: int


def members() -> list[Member]:
    found: list[Member] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, _, session, *_ = path.read_text().rpartition(")")[2].split()
            if state not in {"Z", "X"}:
                found.append(Member(int(path.parent.name), int(parent), int(session)))
    return found


def essence(text: str) -> str:
    """The last lines of a log, without the stack trace of the JVM."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("\tat ", "\t... "))]
    return "\n".join(lines[-LINES_MAX:])
