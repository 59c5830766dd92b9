"""Messages that come by themselves, after a delay or from another process: waited for, not slept for."""

from __future__ import annotations

import time

import mq

__all__ = ["read_all", "wait_for"]

PATIENCE = 60.0  # seconds; far from what anything here takes


def read_all(queue: mq.Queue, offset: int = 0, count_max: int = 32) -> list[mq.MessageExt]:
    """All that is in a queue from an offset on, read in as many pieces as it takes."""
    found: list[mq.MessageExt] = []
    while (result := queue.read(offset, count_max=count_max)).status is mq.PullStatus.FOUND:
        found += result.messages
        offset = result.next_offset
    return found


def wait_for(queue: mq.Queue, count: int, timeout: float = PATIENCE) -> list[mq.MessageExt]:
    """The first `count` messages of a queue, or those that came with them, once they are there."""
    deadline = time.monotonic() + timeout
    found: list[mq.MessageExt] = []
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        found += queue.read(len(found), count_max=1000, wait=1.0).messages
    return found
