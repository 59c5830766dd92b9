"""persist-queue's file queue: flushed to the page cache, its info file replaced at every put and get."""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.speed.peers.queue import Peer


class PersistQueue:
    def __init__(self, directory: Path, body: bytes) -> None:
        persistqueue = importlib.import_module("persistqueue")
        self._body = body
        self._empty: type[Exception] = persistqueue.Empty
        # The info file is made beside the queue and renamed over the old one: both on one file system.
        self._queue = persistqueue.Queue(str(directory / "queue"), autosave=True, tempdir=str(directory))

    def send_each(self, count: int) -> int:
        put, body = self._queue.put, self._body
        for _ in range(count):
            put(body)
        return count

    def read_each(self, count: int) -> int:
        get = self._queue.get
        for done in range(count):
            try:
                get(block=False)
            except self._empty:
                return done
        return count

    def close(self) -> None:
        # It has no close of its own; its files are closed with the last reference.
        del self._queue


FILE = Peer("persist-queue, file", "persist-queue", "persistqueue", PersistQueue)
