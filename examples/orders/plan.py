"""The parameters that all processes of a run share, and the points at which processes are killed."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import mq
from examples.orders.database import POINTS, Point
from examples.orders.model import LATEST, World, generate

__all__ = [
    "ANY_MOMENT",
    "CHECKED_AFTER",
    "KILL_POINTS",
    "RETRY_LEVEL",
    "SELLER_COUNT",
    "KillPoint",
    "Plan",
    "dies_at",
]

SELLER_COUNT = 2
TIME_TO_PAY = 30  # minutes
RETRIES = (2, 10)  # minutes of the delay levels
RETRY_LEVEL = 1
CHECKED_AFTER = 1.0  # seconds
CHECKS_MAX = 100  # within so many seconds a producer answers, even on a slow machine with kills

ANY_MOMENT = "any moment"
KILL_POINTS = (ANY_MOMENT, *POINTS)


class Plan(NamedTuple):
    directory: Path
    seed: int
    order_count: int
    minute: float  # seconds that a minute of the shop takes

    @property
    def shop(self) -> Path:
        return self.directory / "shop.db"

    @property
    def books(self) -> Path:
        return self.directory / "books.db"

    @property
    def time_to_pay_ms(self) -> int:
        return self.ms(TIME_TO_PAY)

    @property
    def longest_wait(self) -> float:
        """The longest time in seconds without progress, because the bank is slow."""
        return LATEST * self.time_to_pay_ms / 1000

    def ms(self, minutes: float) -> int:
        return int(minutes * self.minute * 1000)

    def world(self) -> World:
        return generate(self.seed, self.order_count)

    def open_broker(self, *, read_only: bool = False) -> mq.LocalBroker:
        return mq.open(
            self.directory / "store",
            read_only=read_only,
            message_delay_level=" ".join(f"{self.ms(minutes)}ms" for minutes in RETRIES),
            transaction_timeout=CHECKED_AFTER,
            transaction_check_interval=CHECKED_AFTER,
            transaction_check_max=CHECKS_MAX,
        )


class KillPoint(NamedTuple):
    """A process dies when it reaches a point for the n-th time; at "any moment" the supervisor kills it."""

    point: str
    times: int


def dies_at(kill: KillPoint | None) -> Point:
    """The function that a process calls at each point."""
    passed: Counter[str] = Counter()

    def passes(point: str) -> None:
        passed[point] += 1
        if kill is not None and (point, passed[point]) == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    return passes
