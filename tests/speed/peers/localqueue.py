"""localqueue: Rust over SQLite, at its relaxed durability (WAL, synchronous NORMAL), without a serializer."""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.speed.peers.queue import Peer


class AsItIs:
    def dumps(self, value: bytes) -> bytes:
        return value

    def loads(self, data: bytes) -> bytes:
        return bytes(data)


class LocalQueue:
    def __init__(self, directory: Path, body: bytes) -> None:
        localqueue = importlib.import_module("localqueue")
        durability = importlib.import_module("localqueue.policies").DurabilityMode.RELAXED
        self._body = body
        self._empty: type[Exception] = localqueue.Empty
        self._queue = localqueue.SimpleQueue(str(directory), serializer=AsItIs(), durability=durability)

    def send_each(self, count: int) -> int:
        put, body = self._queue.put, self._body
        for _ in range(count):
            put(body)
        return count

    def read_each(self, count: int) -> int:
        get, ack = self._queue.get_nowait, self._queue.ack
        for done in range(count):
            try:
                ack(get())
            except self._empty:
                return done
        return count

    def close(self) -> None:
        self._queue.close()


RELAXED = Peer("localqueue", "localqueue", "localqueue", LocalQueue)
