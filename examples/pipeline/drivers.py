"""Starts the query, kills it, and starts it again."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from examples.pipeline.plan import Plan

__all__ = ["VICTIMS", "Driver"]

ROOT = Path(__file__).resolve().parents[2]
VICTIMS = ("the Python of the driver", "the JVM of the driver")
ORPHANED_SECONDS = 10.0  # after which who is left of a killed driver is killed too
FINISH_SECONDS = 180.0


class Driver:
    """One life of the query: a Python process, the JVM that it starts, executors, and their workers."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        arguments = [plan.store, plan.checkpoint, plan.master, plan.events_per_trigger, plan.batch_result]
        with plan.log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.pipeline.query", *map(str, arguments)],
                env={
                    **os.environ,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_WORKER_DIR": str(plan.directory / "executors"),
                },
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )

    def check(self) -> None:
        """Ends the program if the query ended by itself."""
        if self._process.poll() is not None:
            sys.exit(f"pipeline: the query ended with status {self._process.returncode}:\n{self._said()}")

    def kill(self, victim: str) -> None:
        """Kill one of the two halves of the driver with kill -9; back when nothing is left of it."""
        family = descendants(self._process.pid)
        jvm = family[:1]  # What the Python process starts is the JVM, and nothing else.
        for pid in jvm if victim == VICTIMS[1] else [self._process.pid]:
            os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + ORPHANED_SECONDS
        while time.monotonic() < until and (self._process.poll() is None or any(map(is_alive, family))):
            time.sleep(0.05)
        self._end(family)

    def finish(self) -> None:
        """Have it stop, and do the batch job."""
        try:
            self._process.communicate("finish\n", FINISH_SECONDS)
        except subprocess.TimeoutExpired:
            sys.exit(f"pipeline: the batch job takes too long:\n{self._said()}")
        if self._process.returncode:
            sys.exit(f"pipeline: the batch job ended with status {self._process.returncode}:\n{self._said()}")

    def close(self) -> None:
        if self._process.poll() is None:
            self._end(descendants(self._process.pid))

    def _end(self, family: list[int]) -> None:
        self._process.kill()
        for pid in filter(is_alive, family):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def _said(self) -> str:
        return self._plan.log.read_text(errors="replace")[-4000:]


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
