"""Drivers of Spark in processes of their own, with all that they start: JVMs, executors, workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tests.spark.session import ROOT, environment

SECONDS_MAX = 600.0  # for anything that is waited for, on a machine with other work
CLUSTER = "local-cluster[2,1,1024]"
DEADLY = {"jvm", "driver"}
GAVE_UP = 75  # what a driver exits with that is of no more use, though nothing of ours is lost


class Ended(AssertionError):
    """A driver has ended: with which code."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code = code


class Process:
    """A driver and what comes of it: the processes of one session of the system."""

    def __init__(
        self, module: str, place: Path, *arguments: object, env: Mapping[str, str] | None = None
    ) -> None:
        place.mkdir(exist_ok=True)
        self.output = place / "output"
        with self.output.open("a") as output:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                env=env or environment(place),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                cwd=ROOT,
                start_new_session=True,
            )

    def line(self) -> str:
        """The next one that the driver prints."""
        assert self.driver.stdout is not None
        line = self.driver.stdout.readline()
        assert line, self.said()
        return line

    def all(self) -> dict[int, str]:
        """What lives of it: how each was started."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                state, _, _, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.driver.pid and state != "Z":
                    found[int(path.name)] = (path / "cmdline").read_text()
        return found

    def said(self) -> str:
        return self.output.read_text()[-4000:]

    def wait(self, condition: Callable[[], bool]) -> None:
        """As long as the driver lives."""
        until = time.monotonic() + SECONDS_MAX
        while not condition():
            assert time.monotonic() < until, self.said()
            if self.driver.poll() is not None:
                raise Ended(self.driver.returncode, self.said())
            time.sleep(0.05)

    def end(self) -> None:
        """Let it end by itself: it sees the end of its input."""
        assert self.driver.stdin is not None
        self.driver.stdin.close()
        assert self.driver.wait(SECONDS_MAX) == 0, self.said()

    def close(self) -> None:
        """Kill what there still is."""
        until = time.monotonic() + SECONDS_MAX
        while left := self.all():
            assert time.monotonic() < until, left
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self.driver.wait(0.05)
        self.driver.wait()
        for stream in (self.driver.stdin, self.driver.stdout):
            if stream is not None:
                stream.close()


def victims_of(process: Process, kind: str, jvm: int) -> list[int]:
    """The processes of a driver that are of this kind: jvm and driver, executor, worker."""
    if kind in DEADLY:
        return [{"jvm": jvm, "driver": process.driver.pid}[kind]]
    words = {"executor": "CoarseGrainedExecutorBackend", "worker": "pyspark"}
    return [
        pid
        for pid, command in process.all().items()
        if pid not in {jvm, process.driver.pid}
        and words[kind] in command
        and ("java" in command.split("\0")[0]) == (kind == "executor")
    ]
