"""LMDB with a queue made by hand that several processes write to and take from, without sync.

Each transaction looks for the last key, or the first. A consumer that finds nothing sleeps a little: LMDB
wakes nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.speed.peers.lmdb import LmdbQueue
from tests.speed.peers.pipeline import Tally
from tests.speed.peers.queue import Peer

CONSUMERS_MAX = 64
SLEEP_SECONDS = 0.0002


class LmdbPipeline:
    def __init__(self, directory: Path, body: bytes, *, batch: int, writable_map: bool) -> None:
        self._directory, self._body = directory, body
        self._batch, self._writable_map = batch, writable_map
        self.tally = Tally(CONSUMERS_MAX)

    def produce(self, count: int, ready: Callable[[], object]) -> None:
        queue = self._open()
        ready()
        for _ in range(0, count, self._batch):
            queue.send_next(self._batch)
        ready()
        queue.close()

    def consume(self, place: int, total: int, ready: Callable[[], object]) -> None:
        queue, tally, batch, taken = self._open(), self.tally, self._batch, 0
        ready()
        while True:
            found = queue.read_batch(batch)
            if found:
                taken += found
                tally.set(place, taken)
            elif tally.total() >= total:
                break
            else:
                time.sleep(SLEEP_SECONDS)
        ready()
        queue.close()

    def _open(self) -> SharedLmdbQueue:
        return SharedLmdbQueue(self._directory, self._body, sync=False, writable_map=self._writable_map)


class SharedLmdbQueue(LmdbQueue):
    def send_next(self, count: int) -> None:
        """One transaction that appends after whatever is the last key."""
        with self._environment.begin(write=True) as transaction:
            cursor = transaction.cursor()
            last = int.from_bytes(cursor.key(), "big") if cursor.last() else 0
            if count == 1:
                transaction.put((last + 1).to_bytes(8, "big"), self._body, append=True)
                return
            items = [(number.to_bytes(8, "big"), self._body) for number in range(last + 1, last + count + 1)]
            cursor.putmulti(items, append=True)


def peer(batch: int, *, writable_map: bool) -> Peer[LmdbPipeline]:
    return Peer(
        f"LMDB without sync, {'writable' if writable_map else 'default'} map",
        "lmdb",
        "lmdb",
        lambda directory, body: LmdbPipeline(directory, body, batch=batch, writable_map=writable_map),
    )
