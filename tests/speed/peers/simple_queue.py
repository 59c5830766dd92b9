"""multiprocessing.SimpleQueue: a pipe and two locks; a reader sleeps in read(2)."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

from tests.speed.peers.queue import Peer


class SimpleQueuePair:
    def __init__(self, directory: Path, body: bytes) -> None:
        context = multiprocessing.get_context("fork")
        self._body = body
        self._there = context.SimpleQueue()
        self._back = context.SimpleQueue()

    def echo(self, count: int, ready: Callable[[], object]) -> None:
        get, put, body = self._there.get, self._back.put, self._body
        ready()
        for _ in range(count):
            get()
            put(body)

    def ping(self, count: int, ready: Callable[[], object]) -> list[int]:
        put, get, body, now = self._there.put, self._back.get, self._body, time.perf_counter_ns
        times = []
        ready()
        for _ in range(count):
            begin = now()
            put(body)
            get()
            times.append(now() - begin)
        return times


SIMPLE_QUEUE = Peer("multiprocessing.SimpleQueue", None, "multiprocessing", SimpleQueuePair)
