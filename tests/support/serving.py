"""A process that serves a directory: `mq DIR serve`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Serving", "serving"]

LIMIT = 60.0


class Serving:
    """A process that serves a directory."""

    def __init__(self, directory: Path, *options: str) -> None:
        command = [sys.executable, "-m", "mq", str(directory), "serve", "--json", *options]
        if "--port" not in options:
            command += ["--port", "0"]
        if "--name-server-port" not in options:
            command += ["--name-server-port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        said = self.process.stderr.readline()
        found = re.search(r"name server (\S+), broker (\S+)$", said.strip())
        assert found, said + self.process.stderr.read()
        self.name_server, self.address = found[1], found[2]

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        status = self.process.wait(LIMIT)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        return status


@contextmanager
def serving(directory: Path, *options: str) -> Iterator[Serving]:
    process = Serving(directory, *options)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.end(signal.SIGKILL)
