"""LMDB with a queue made by hand: the key is a number counted up, in append mode; taking deletes.

Without sync a commit is in the page cache and survives kill -9. A writable map is the fastest setting; it
gives up what the default has: stray writes of the process can reach the file, and a full disk is a SIGBUS.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.speed.peers.queue import Peer

MAP_SIZE = 16 << 30


class LmdbQueue:
    def __init__(self, directory: Path, body: bytes, *, sync: bool, writable_map: bool) -> None:
        lmdb = importlib.import_module("lmdb")
        self._body = body
        self._environment = lmdb.open(
            str(directory),
            map_size=MAP_SIZE,
            sync=sync,
            metasync=sync,
            writemap=writable_map,
            map_async=writable_map,
            max_spare_txns=1,
        )
        self._last = 0

    def send_each(self, count: int) -> int:
        begin, body, last = self._environment.begin, self._body, self._last
        for number in range(last + 1, last + count + 1):
            with begin(write=True) as transaction:
                transaction.put(number.to_bytes(8, "big"), body, append=True)
        self._last = last + count
        return count

    def send_batch(self, count: int) -> int:
        numbers = range(self._last + 1, self._last + count + 1)
        items = [(number.to_bytes(8, "big"), self._body) for number in numbers]
        with self._environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(items, append=True)
        self._last += count
        return count

    def read_each(self, count: int) -> int:
        for done in range(count):
            if not self.read_batch(1):
                return done
        return count

    def read_batch(self, count: int) -> int:
        done = 0
        with self._environment.begin(write=True) as transaction:
            cursor = transaction.cursor()
            more = cursor.first()
            while more and done < count:
                cursor.value()
                done += 1
                more = cursor.delete() and cursor.key() != b""
        return done

    def close(self) -> None:
        self._environment.close()


NOSYNC = Peer(
    "LMDB without sync, writable map",
    "lmdb",
    "lmdb",
    lambda directory, body: LmdbQueue(directory, body, sync=False, writable_map=True),
)
NOSYNC_DEFAULT_MAP = Peer(
    "LMDB without sync, default map",
    "lmdb",
    "lmdb",
    lambda directory, body: LmdbQueue(directory, body, sync=False, writable_map=False),
)
SYNC = Peer(
    "LMDB with sync",
    "lmdb",
    "lmdb",
    lambda directory, body: LmdbQueue(directory, body, sync=True, writable_map=False),
)
