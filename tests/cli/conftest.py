"""The command line as a user meets it: a process of its own, a directory that is verified at the end."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.forking import Server

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "TZ": "UTC"}
# Programs believe these more than their terminal. xdist's processes have them.
for name in ("COLUMNS", "LINES"):
    ENVIRONMENT.pop(name, None)


class Answer:
    """What one run of the command said."""

    def __init__(self, completed: "subprocess.CompletedProcess[bytes]") -> None:
        self.status = completed.returncode
        self.out = completed.stdout.decode()
        self.err = completed.stderr.decode()
        assert "Traceback" not in self.err, self.err

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Answer]
Start = Callable[..., "subprocess.Popen[bytes]"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mq", *arguments]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    made = Server(ENVIRONMENT)
    yield made
    made.close()


@pytest.fixture
def bare(server: Server) -> Run:
    """Run `mq` with just these arguments."""

    def run(*arguments: str, stdin: bytes = b"") -> Answer:
        return Answer(server.run(arguments, stdin))

    return run


@pytest.fixture
def run(bare: Run, directory: Path) -> Run:
    """Run a verb on the directory of this test."""

    def run(*arguments: str, stdin: bytes = b"") -> Answer:
        return bare(str(directory), *arguments, stdin=stdin)

    return run


@pytest.fixture
def start(directory: Path) -> Iterator[Start]:
    """Start a verb on the directory of this test and leave it running, as a user does: by `python -m mq`."""
    started = []

    def start(*arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
        options = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **options,
        }
        process = subprocess.Popen(command(str(directory), *arguments), env=ENVIRONMENT, **options)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        with process:  # Closes its pipes and waits for it.
            pass
