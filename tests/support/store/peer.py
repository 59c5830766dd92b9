"""Another process with a broker on the same directory, which does what it is asked to.

    peer = Peer(path)               the broker is open when this returns
    peer.ask("broker.topics()")     the value of an expression over `broker`, `mq`, small_store and insides
    peer.do("x = 1")                statements
    peer.kill()                     SIGKILL, at once

An error in the other process is raised here.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from mq.broker.local import LocalBroker
from tests.support.processes.forked import Forked
from tests.support.store.small_store import SMALL

ROOT = Path(__file__).parents[3]
NAME = "tests.support.store.peer"
SIZE = struct.Struct(">I")


class Peer:
    def __init__(self, path: Path, *, environment: Mapping[str, str] | None = None, **options: Any) -> None:
        """With an environment an interpreter of its own: the loader reads some of it before all else."""
        self.process = Forked(NAME, "serve") if environment is None else _with(environment)
        self.pid = self.process.pid
        try:
            self._call("open", (str(path), {**SMALL, **options}))
        except BaseException:
            self.kill()
            raise

    def _call(self, kind: str, content: Any) -> Any:
        self.post(kind, content)
        return self.answer()

    def post(self, kind: str, content: Any) -> None:
        """Ask, and fetch the answer later."""
        assert self.process.stdin is not None
        _write(self.process.stdin, (kind, content))

    def answer(self) -> Any:
        assert self.process.stdout is not None
        try:
            good, value = _read(self.process.stdout)
        except EOFError:
            self.process.wait(timeout=60)  # Its pipes close before the fork server tells that it has ended.
            raise
        if good:
            return value
        error, text = value
        raise error from RuntimeError(f"in process {self.pid}:\n{text}")

    def ask(self, expression: str) -> Any:
        return self._call("ask", expression)

    def do(self, statements: str) -> None:
        self._call("do", statements)

    def send(self, topic: str, queue_id: int, body: bytes) -> int:
        """The queue offset it got."""
        offset = self.ask(f"send(broker, {topic!r}, {queue_id}, {body!r}).queue_offset")
        assert isinstance(offset, int)
        return offset

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self._end()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Close its broker and have it exit. Of one that is dead, only close the pipes to it."""
        if self.process.poll() is None:
            self._call("do", "broker.close()")
        self._end()

    def _end(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):  # of what it was told last
                stream.close()
        self.process.wait(timeout=60)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.process.poll() is None:
            self.kill()
        self.close()


def _with(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", NAME],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _write(stream: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(SIZE.pack(len(data)) + data)
    stream.flush()


def _read(stream: IO[bytes]) -> Any:
    head = stream.read(SIZE.size)
    if len(head) < SIZE.size:
        raise EOFError("the other process is gone")
    return pickle.loads(stream.read(SIZE.unpack(head)[0]))


def serve() -> None:
    # A shell's background job inherits that Ctrl-C is ignored; a process that is to be interrupted must not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What is printed must not get between the answers.
    scope: dict[str, Any] = {}
    exec(
        "import mq, os, time; from mq.store.native import lib;"
        "from tests.support.insides import *; from tests.support.store.small_store import *",
        scope,
    )
    while True:
        try:
            kind, content = _read(requests)
        except EOFError:
            return
        try:
            value = None
            if kind == "open":
                path, options = content
                scope["broker"] = LocalBroker(path, **options)
            elif kind == "ask":
                value = eval(content, scope)
            else:
                exec(content, scope)
            answer = True, value
        except BaseException as error:  # noqa: BLE001 - handed over, and raised on the other side
            answer = False, (error, traceback.format_exc())
        _write(answers, answer)


if __name__ == "__main__":
    serve()
