"""multiprocessing.Queue: a pipe, two locks, and a thread of each sender that feeds the pipe."""

from __future__ import annotations

import multiprocessing
import struct
import time
from collections.abc import Callable
from pathlib import Path

from tests.speed.peers.pipeline import Tally
from tests.speed.peers.queue import Peer

_fork = multiprocessing.get_context("fork")
_TIME = struct.Struct("<q")
END = b""


class ProcessQueuePipeline:
    def __init__(self, directory: Path, body: bytes) -> None:
        self._body = body
        self._queue = _fork.Queue()
        self.tally = Tally(64)

    def produce(self, count: int, ready: Callable[[], object]) -> None:
        put, body = self._queue.put, self._body
        ready()
        for _ in range(count):
            put(body)
        ready()
        self._queue.close()
        self._queue.join_thread()

    def consume(self, place: int, total: int, ready: Callable[[], object]) -> None:
        """The consumer that takes the last message tells the others to end."""
        get, tally, taken = self._queue.get, self.tally, 0
        ready()
        while get() != END:
            taken += 1
            tally.set(place, taken)
            if tally.total() >= total:
                break
        self._queue.put(END)
        ready()


class ProcessQueueOneWay:
    def __init__(self, directory: Path, body: bytes) -> None:
        self._body = body
        self._queue = _fork.Queue()

    def send(self, count: int, pause: float, ready: Callable[[], object]) -> None:
        put, now, pack, rest = self._queue.put, time.perf_counter_ns, _TIME.pack, self._body[_TIME.size :]
        ready()
        ready()
        for _ in range(count):
            time.sleep(pause)
            put(pack(now()) + rest)
        ready()

    def listen(self, count: int, ready: Callable[[], object]) -> list[int]:
        get, now, unpack, times = self._queue.get, time.perf_counter_ns, _TIME.unpack_from, []
        ready()
        ready()
        for _ in range(count):
            body = get()
            arrived = now()
            times.append(arrived - unpack(body)[0])
        ready()
        return times


PIPELINE = Peer("multiprocessing.Queue", None, "multiprocessing", ProcessQueuePipeline)
ONE_WAY = Peer("multiprocessing.Queue", None, "multiprocessing", ProcessQueueOneWay)
