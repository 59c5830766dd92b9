"""litequeue: a queue over sqlite3 in WAL mode, synchronous NORMAL; a message is popped, then marked done."""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.speed.peers.queue import Peer


class LiteQueue:
    def __init__(self, directory: Path, body: bytes) -> None:
        self._body = body
        self._queue = importlib.import_module("litequeue").LiteQueue(str(directory / "queue.db"), timeout=30)

    def send_each(self, count: int) -> int:
        put, body = self._queue.put, self._body
        for _ in range(count):
            put(body)
        return count

    def read_each(self, count: int) -> int:
        pop, done_with = self._queue.pop, self._queue.done
        for done in range(count):
            message = pop()
            if message is None:
                return done
            done_with(message.message_id)
        return count

    def close(self) -> None:
        self._queue.close()


WAL_NORMAL = Peer("litequeue", "litequeue", "litequeue", LiteQueue)
