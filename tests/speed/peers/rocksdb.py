"""RocksDB through rocksdict, a queue made by hand: the key is a number counted up; taking reads and deletes.

One process only.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.speed.peers.queue import Peer


class RocksDbQueue:
    def __init__(self, directory: Path, body: bytes) -> None:
        self._rocksdict = importlib.import_module("rocksdict")
        self._body = body
        options = self._rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        self._database = self._rocksdict.Rdict(str(directory), options)
        self._first, self._last = 1, 0

    def send_each(self, count: int) -> int:
        database, body, last = self._database, self._body, self._last
        for number in range(last + 1, last + count + 1):
            database[number.to_bytes(8, "big")] = body
        self._last = last + count
        return count

    def send_batch(self, count: int) -> int:
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for number in range(self._last + 1, self._last + count + 1):
            batch.put(number.to_bytes(8, "big"), self._body)
        self._database.write(batch)
        self._last += count
        return count

    def read_each(self, count: int) -> int:
        count = min(count, self._last - self._first + 1)
        database = self._database
        for number in range(self._first, self._first + count):
            key = number.to_bytes(8, "big")
            database[key]
            del database[key]
        self._first += count
        return count

    def read_batch(self, count: int) -> int:
        count = min(count, self._last - self._first + 1)
        keys = [number.to_bytes(8, "big") for number in range(self._first, self._first + count)]
        self._database[keys]
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for key in keys:
            batch.delete(key)
        self._database.write(batch)
        self._first += count
        return count

    def close(self) -> None:
        self._database.close()


ASYNC = Peer("RocksDB put (rocksdict)", "rocksdict", "rocksdict", RocksDbQueue)
