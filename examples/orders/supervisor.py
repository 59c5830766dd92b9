"""Starts, kills and restarts the processes of a run until all orders are done."""

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import mq
from examples.orders.books import Books
from examples.orders.office import DUE, GROUPS, work
from examples.orders.plan import ANY_MOMENT, KILL_POINTS, SELLER_COUNT, KillPoint, Plan
from examples.orders.seller import sell
from examples.orders.shop import CHANGES, ORDERS, Progress, Shop

__all__ = ["Status", "Supervisor"]

QUEUE_COUNT = 8
OFFICE_COUNT = 2
LOOK_INTERVAL = 0.1
STALLED_AFTER = 30.0  # seconds without progress
LIFE_SECONDS = (0.5, 1.5)  # how long a process runs before it is killed at any moment

KINDS: Mapping[str, Callable[..., None]] = {"seller": sell, "office": work}


class Status(NamedTuple):
    """The progress of a run."""

    progress: Progress
    written: int  # in the books
    lag: dict[str, int]
    kills: Counter[tuple[str, str]]


@dataclass(slots=True)
class Worker:
    """A process: its kind, its number, and how it is to die."""

    kind: str
    number: int
    kill: KillPoint | None
    process: BaseProcess
    pipe: Connection
    killed_at: float | None


class Supervisor:
    """The processes of one run. Each kind is killed `rounds` times in each way."""

    def __init__(self, plan: Plan, rounds: int) -> None:
        self.kills: Counter[tuple[str, str]] = Counter()
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._context = get_context("forkserver")
        # Forks of a process that has these imports but no open broker start fast.
        self._context.set_forkserver_preload([sell.__module__, work.__module__])
        self._workers: list[Worker] = []
        self._kill_points = {kind: [kill for kill in KILL_POINTS for _ in range(rounds)] for kind in KINDS}
        for dooms in self._kill_points.values():
            self._chance.shuffle(dooms)
        # Limit the counts, so that all deaths happen before the work is done.
        self._times_max = max(1, plan.order_count // (12 * max(1, rounds)))

    def prepare(self) -> None:
        with Shop(self._plan.shop) as shop, Books(self._plan.books) as books:
            shop.open_for(self._plan.world())
            books.open()
        with self._plan.open_broker() as broker:
            for topic in (ORDERS, CHANGES, DUE):
                broker.create_topic(topic, QUEUE_COUNT)

    def run(self, show: Callable[[Status], None]) -> None:
        """Run until all is done. Exits if a process fails by itself, or nothing progresses any more."""
        try:
            for number in range(SELLER_COUNT):
                self._start("seller", number)
            for number in range(OFFICE_COUNT):
                self._start("office", number)
            # Read-only: the leader must be among the processes that die.
            with self._plan.open_broker(read_only=True) as broker:
                self._watch(broker, show)
            self._have_all_decided()
            self._end()
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()

    def _watch(self, broker: mq.Broker, show: Callable[[Status], None]) -> None:
        before: object = None
        since = time.monotonic()
        with Shop(self._plan.shop) as shop, Books(self._plan.books) as books:
            while True:
                self._replace_the_dead()
                lag = {group: lag_of(broker, group) for group in GROUPS}
                status = Status(shop.progress(), books.count(), lag, self.kills)
                show(status)
                if self._is_done(status):
                    return
                if status[:3] != before:
                    before, since = status[:3], time.monotonic()
                elif time.monotonic() - since > STALLED_AFTER + self._plan.longest_wait:
                    sys.exit(f"orders: nothing moves any more: {status}")

    def _have_all_decided(self) -> None:
        """Wait for the checks of transactions that are rolled back: no topic shows them."""
        until = time.monotonic() + STALLED_AFTER
        with self._plan.open_broker() as broker:
            while broker.transactions.undecided() and time.monotonic() < until:
                self._replace_the_dead()

    def _is_done(self, status: Status) -> bool:
        """Whether every order is in a final state, no message is pending, and the books are complete."""
        progress = status.progress
        return (
            sum(progress.states.values()) == self._plan.order_count
            and not progress.open
            and status.written == progress.changes
            and not any(status.lag.values())
        )

    def _replace_the_dead(self) -> None:
        wait([worker.process.sentinel for worker in self._workers], LOOK_INTERVAL)
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.killed_at is not None and now >= worker.killed_at:
                worker.process.kill()
                worker.process.join()
            if worker.process.is_alive():
                continue
            worker.process.join()
            if worker.kill is None or worker.process.exitcode != -signal.SIGKILL:
                sys.exit(f"orders: the {worker.kind} ended with status {worker.process.exitcode}")
            self.kills[worker.kind, worker.kill.point] += 1
            self._workers.remove(worker)
            worker.pipe.close()
            self._start(worker.kind, worker.number)

    def _start(self, kind: str, number: int) -> None:
        kill = None
        if self._kill_points[kind]:
            kill = KillPoint(self._kill_points[kind].pop(), self._chance.randint(1, self._times_max))
        here, there = self._context.Pipe()
        process = self._context.Process(
            target=KINDS[kind], args=(self._plan, number, kill, there), name=f"{kind} {number + 1}"
        )
        process.start()
        there.close()
        is_killed = kill is not None and kill.point == ANY_MOMENT
        killed_at = time.monotonic() + self._chance.uniform(*LIFE_SECONDS) if is_killed else None
        self._workers.append(Worker(kind, number, kill, process, here, killed_at))

    def _end(self) -> None:
        for worker in self._workers:
            worker.pipe.send("it is over")
        for worker in self._workers:
            worker.process.join(STALLED_AFTER)
            if worker.process.exitcode != 0:
                sys.exit(f"orders: the {worker.kind} ended with status {worker.process.exitcode}")


def lag_of(broker: mq.Broker, group: str) -> int:
    try:
        return broker.group(group).lag(GROUPS[group])
    except mq.TopicNotFound:  # There are no dead letters before the first.
        return 0
