"""One JVM as a process: started, stopped in good order, killed, paused, and looked at."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from tests.support.cluster.programs import QUICK_START, Archive, Program

START_SECONDS = 180.0  # Generous: a machine under load takes its time, and that proves nothing.
STOP_SECONDS = 120.0


class ProcessFailed(Exception):
    """A Java process ended or did not get ready; the text is the end of what it said."""


class JavaProcess:
    """A main class that runs until it is ended, and that ends with this process at the latest.

    What it says goes to the file `log` in its directory, which is its working directory and its home.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.log = directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._archive = Archive()
        self._log_start = 0

    def launch(
        self,
        program: Program,
        kind: str,
        main: str,
        arguments: Iterable[str],
        options: Iterable[str] = (),
        *,
        tuning: Iterable[str] = QUICK_START,
        answers: bool = False,
    ) -> None:
        """Start the process; returns at once. `kind` names the class archive that it uses.

        One that `answers` reads requests from standard input and answers on standard output, both pipes; any
        other is ended by a thread of its own when standard input ends.
        """
        assert self._process is None, f"{self.name} runs already"
        self.directory.mkdir(parents=True, exist_ok=True)
        self._archive = program.archive(kind)
        at_home = [f"-Duser.home={self.directory}", f"-Drocketmq.home.dir={self.directory}"]
        if not answers:
            main, arguments = "mq.watched.Watched", [main, *arguments]
        command = program.command(main, arguments, [*at_home, *options], self._archive, tuning=tuning)
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if answers else log,
                stderr=log,
                cwd=self.directory,
            )

    @property
    def running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Standard input and output of one that answers."""
        assert self._process is not None, f"{self.name} does not run"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    @property
    def rss_bytes(self) -> int:
        """The memory that the process holds now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def cpu_seconds(self) -> float:
        """The processor time that the process has used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def said(self, size: int | None = 4000) -> str:
        """The end of what it said since its last start, or all of it."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            end = self.log.stat().st_size
            log.seek(self._log_start if size is None else max(self._log_start, end - size))
            return log.read().decode("utf-8", "replace")

    def wait_until(self, ready: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait until it is so; raises ProcessFailed if the process ends before, or the time is up."""
        until = time.monotonic() + seconds
        while not ready():
            if not self.running:
                raise ProcessFailed(f"{self.name} ended by itself:\n{self.said()}")
            if time.monotonic() > until:
                raise ProcessFailed(f"{self.name} is not ready after {seconds:g} s:\n{self.said()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it in good order, as an operator does (SIGTERM), and wait."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it at once (SIGKILL), whether it is paused or not."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._archive.ended()

    def close(self) -> None:
        """End it as fast as may be: in good order only where the class archive is still to be written."""
        if self._archive.is_being_made and self.running:
            self.resume()
            self.stop()
        else:
            self.kill()

    def pause(self) -> None:
        """Stop it from running (SIGSTOP); its connections stay."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused one go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)
