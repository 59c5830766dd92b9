"""LevelDB through plyvel, a queue made by hand: the key is a number counted up; taking reads and deletes.

No compression, since bodies are random, and a write buffer of 64 MiB. One process only.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.speed.peers.queue import Peer

WRITE_BUFFER_SIZE = 64 << 20


class LevelDbQueue:
    def __init__(self, directory: Path, body: bytes, *, sync: bool) -> None:
        plyvel = importlib.import_module("plyvel")
        self._body, self._sync = body, sync
        self._database = plyvel.DB(
            str(directory), create_if_missing=True, compression=None, write_buffer_size=WRITE_BUFFER_SIZE
        )
        self._first, self._last = 1, 0

    def send_each(self, count: int) -> int:
        put, body, sync, last = self._database.put, self._body, self._sync, self._last
        for number in range(last + 1, last + count + 1):
            put(number.to_bytes(8, "big"), body, sync=sync)
        self._last = last + count
        return count

    def send_batch(self, count: int) -> int:
        with self._database.write_batch(sync=self._sync) as batch:
            for number in range(self._last + 1, self._last + count + 1):
                batch.put(number.to_bytes(8, "big"), self._body)
        self._last += count
        return count

    def read_each(self, count: int) -> int:
        count = min(count, self._last - self._first + 1)
        get, delete, sync = self._database.get, self._database.delete, self._sync
        for number in range(self._first, self._first + count):
            key = number.to_bytes(8, "big")
            get(key)
            delete(key, sync=sync)
        self._first += count
        return count

    def read_batch(self, count: int) -> int:
        count = min(count, self._last - self._first + 1)
        with self._database.write_batch(sync=self._sync) as batch:
            for number in range(self._first, self._first + count):
                key = number.to_bytes(8, "big")
                self._database.get(key)
                batch.delete(key)
        self._first += count
        return count

    def close(self) -> None:
        self._database.close()


ASYNC = Peer(
    "LevelDB put (plyvel)",
    "plyvel",
    "plyvel",
    lambda directory, body: LevelDbQueue(directory, body, sync=False),
)
SYNC = Peer(
    "LevelDB put with sync",
    "plyvel",
    "plyvel",
    lambda directory, body: LevelDbQueue(directory, body, sync=True),
)
