"""A process that sends messages which are due soon, and takes most of them back about when they are.

    python -m tests.broker.recaller STORE SEED COUNT

Each line of its standard output says what is sure by then: `sent ID`, then for some of them `recalled ID`, or
`late ID` where it came too late. A line `done` ends it; then it stays until its standard input closes.
"""

from __future__ import annotations

import random
import sys
import time

import mq
from mq.broker.delay import recall as recalls
from tests.broker.deliverer import SIZES

PRECISION_MS = 200
RECALLED = 0.8  # of all


def main(path: str, seed: str, count: str) -> None:
    chance = random.Random(int(seed))
    recalls.TIMEOUT = 60.0  # The leader is killed over and over, and the machine may be busy.
    with mq.open(path, timer_precision_ms=PRECISION_MS, **SIZES) as broker:
        topic = broker.topic("orders")
        waiting: list[tuple[int, str]] = []

        def say(what: str, msg_id: str) -> None:
            print(what, msg_id, flush=True)

        def take_back(due_ms: int, handle: str) -> None:
            left_ms = due_ms - time.time_ns() / 1e6 + chance.uniform(-12, 4)
            time.sleep(max(0.0, left_ms / 1000))
            recall(handle)

        def recall(handle: str) -> None:
            try:
                say("recalled", broker.recall(handle))
            except mq.NotPermitted:
                say("late", handle)

        for number in range(int(count)):
            due_ms = time.time_ns() // 1_000_000 + chance.randrange(20, 400)
            result = topic.send(b"x", deliver_at_ms=due_ms)
            say("sent", result.msg_id)
            if result.recall_handle is not None and chance.random() < RECALLED:
                if number % 8 == 0:
                    recall(result.recall_handle)  # At once, which a slow machine does in time too.
                else:
                    waiting.append((due_ms, result.recall_handle))
            waiting.sort()
            while waiting and waiting[0][0] - time.time_ns() // 1_000_000 < 20:
                take_back(*waiting.pop(0))
        for each in waiting:
            take_back(*each)
        say("done", "")
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
