"""diskcache's Deque: over sqlite3 in WAL mode, synchronous NORMAL, without eviction."""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.speed.peers.queue import Peer


class DiskcacheDeque:
    def __init__(self, directory: Path, body: bytes) -> None:
        diskcache = importlib.import_module("diskcache")
        self._body = body
        self._cache = diskcache.Cache(
            str(directory), eviction_policy="none", size_limit=1 << 40, timeout=30, sqlite_synchronous=1
        )
        self._deque = diskcache.Deque.fromcache(self._cache)

    def send_each(self, count: int) -> int:
        append, body = self._deque.append, self._body
        for _ in range(count):
            append(body)
        return count

    def read_each(self, count: int) -> int:
        popleft = self._deque.popleft
        for done in range(count):
            try:
                popleft()
            except IndexError:
                return done
        return count

    def close(self) -> None:
        self._cache.close()


NORMAL = Peer("diskcache.Deque", "diskcache", "diskcache", DiskcacheDeque)
