"""Accepting delayed messages, 1 KiB with tag and key, built inside the loop, against plain ones.

They are due in hours, so that none is delivered meanwhile; the leader puts those with a time of
their own into the wheel beside the sender.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mq
from tests.speed import ours
from tests.speed.cases.case import Bench, Case, rate_of
from tests.speed.cases.send import ours_rate
from tests.speed.goal import at_least
from tests.speed.pairing import Measurement, paired

AGAINST = "the same without a delay"
HOUR_MS = 3_600_000
GOAL = at_least(0.5)


class Delaying(ours.Sending):
    """Sends with these arguments more."""

    def __init__(self, directory: Path, body: bytes, **delay: Any) -> None:
        super().__init__(directory, body)
        self._delay = delay

    def send_each(self, count: int) -> int:
        send, body, message, delay = self._producer.send, self._body, mq.Message, self._delay
        for _ in range(count):
            send(message(ours.TOPIC, body, tags=ours.TAG, keys=ours.KEY, **delay))
        return count


def _against_plain(delay: Callable[[], dict[str, int]]) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        def delayed() -> float:
            return rate_of(
                bench,
                lambda directory, body: Delaying(directory, body, **delay()),
                lambda queue: queue.send_each,
            )

        return paired("msg/s", delayed, lambda: ours_rate(bench), bench.plan.rounds, bench.say)

    return measure


def _case(name: str, title: str, delay: Callable[[], dict[str, int]]) -> Case:
    return Case(f"delayed/{name}", title, AGAINST, GOAL, _against_plain(delay))


CASES = (
    _case("level", "send with a delay level, 1 KiB", lambda: {"delay_level": 18}),
    _case("delay", "send with a delay in ms, 1 KiB", lambda: {"delay_ms": 20 * HOUR_MS}),
    _case(
        "time",
        "send of what is due at a time, 1 KiB",
        lambda: {"deliver_at_ms": time.time_ns() // 1_000_000 + 20 * HOUR_MS},
    ),
)
