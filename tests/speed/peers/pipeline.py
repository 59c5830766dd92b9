"""What several producers and several consumers ask, each in a process of its own.

A pipeline is made before the fork. Each producer sends `count` messages; the consumers (place 0, 1, ...) take
`total` together, and return when all are taken. `ready` is called twice by each: when it may begin, and when
it has ended.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from typing import Protocol


class Pipeline(Protocol):
    def produce(self, count: int, ready: Callable[[], object]) -> None: ...
    def consume(self, place: int, total: int, ready: Callable[[], object]) -> None: ...


class Tally:
    """How many each of several processes has done: a word of shared memory for each."""

    _word = struct.Struct("<q")

    def __init__(self, places: int) -> None:
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)
        self._places = places

    def set(self, place: int, number: int) -> None:
        self._word.pack_into(self._shared, place * self._word.size, number)

    def total(self) -> int:
        return sum(
            self._word.unpack_from(self._shared, place * self._word.size)[0] for place in range(self._places)
        )
