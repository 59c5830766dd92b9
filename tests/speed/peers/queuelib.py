"""queuelib's FifoDiskQueue: one write(2) a message; only close() saves its index: kill -9 loses it."""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.speed.peers.queue import Peer


class QueuelibQueue:
    def __init__(self, directory: Path, body: bytes) -> None:
        self._body = body
        self._queue = importlib.import_module("queuelib").FifoDiskQueue(str(directory / "queue"))

    def send_each(self, count: int) -> int:
        push, body = self._queue.push, self._body
        for _ in range(count):
            push(body)
        return count

    def read_each(self, count: int) -> int:
        pop = self._queue.pop
        for done in range(count):
            if pop() is None:
                return done
        return count

    def close(self) -> None:
        self._queue.close()


FIFO = Peer("queuelib FifoDiskQueue (less durable)", "queuelib", "queuelib", QueuelibQueue)
