"""One client of another language: programs that send and consume, and what they said."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.eventually import eventually
from tests.support.foreign import environments

__all__ = ["CLIENTS", "Client", "Heard"]

SECONDS = 120.0
Line = dict[str, Any]


@dataclass(frozen=True)
class Client:
    """What it `knows` beside sending one by one and consuming in a group, by tag."""

    name: str
    command: Callable[[], list[str]]
    knows: frozenset[str]

    def run(self, *words: object) -> list[Line]:
        """Run to its end; all that it said. Raises RuntimeError if it failed."""
        with _home() as home:
            done = subprocess.run(
                [*self.command(), *map(str, words)], cwd=home, env=_environment(home), capture_output=True,
                text=True, timeout=SECONDS, check=False,
            )  # fmt: skip
        if done.returncode:
            raise RuntimeError(
                f"{self.name} {words} ended with {done.returncode}: {done.stdout}{done.stderr}"
            )
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    @contextmanager
    def running(self, *words: object) -> Iterator[Heard]:
        """Run in the background, until the block is left."""
        with _home() as home, subprocess.Popen(
            [*self.command(), *map(str, words)], cwd=home, env=_environment(home), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        ) as process:  # fmt: skip
            heard = Heard(process)
            try:
                yield heard
                assert process.stdin is not None
                process.stdin.close()
                process.wait(SECONDS)
            finally:
                process.kill()
                heard.thread.join()


class Heard:
    """What a program says, in the order in which it does."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[Line] = []
        self._process = process
        self.thread = threading.Thread(target=self._listen, name="foreign client", daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.lines.append(json.loads(line))

    def all(self, key: str) -> list[Line]:
        return [line for line in list(self.lines) if key in line]

    def wait(self, key: str, count: int) -> list[Line]:
        """The lines that have a key, once there are so many."""
        eventually(lambda: len(self.all(key)) >= count, lambda: self.lines, seconds=SECONDS)
        return self.all(key)


@contextmanager
def _home() -> Iterator[Path]:
    """Some clients keep logs and offsets in the user's home."""
    with tempfile.TemporaryDirectory() as home:
        yield Path(home)


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(home)}


CLIENTS = (
    Client(
        "go",
        environments.go_client,
        frozenset(
            {
                "async",
                "oneway",
                "batch",
                "delayed",
                "sql",
                "orderly",
                "broadcasting",
                "retry",
                "transactions",
                "ids",
            }
        ),
    ),
    Client("js", environments.js_client, frozenset({"sql", "broadcasting", "retry"})),
    Client(
        "cpp",
        environments.cpp_client,
        frozenset({"async", "oneway", "batch", "delayed", "orderly", "broadcasting", "retry", "pull", "ids"}),
    ),
)
