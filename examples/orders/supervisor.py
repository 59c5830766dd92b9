"""Starts the processes of a run, kills them, and starts others in their places, until all is done."""

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
from examples.orders.plan import ANY_MOMENT, DOOMS, SELLER_COUNT, Doom, Plan
from examples.orders.seller import sell
from examples.orders.shop import CHANGES, ORDERS, Progress, Shop

__all__ = ["Status", "Supervisor"]

QUEUE_COUNT = 8
OFFICE_COUNT = 2
LOOK_INTERVAL = 0.1
STALLED_AFTER = 30.0  # seconds without progress
LIFE_SECONDS = (0.5, 1.5)  # of a process that is killed at any moment, once it is begun

KINDS: Mapping[str, Callable[..., None]] = {"seller": sell, "office": work}


class Status(NamedTuple):
    """How far a run is."""

    progress: Progress
    written: int  # in the books
    lag: dict[str, int]
    kills: Counter[tuple[str, str]]


@dataclass(slots=True)
class Worker:
    """A process of a kind, the number of its place, and how it is to die."""

    kind: str
    number: int
    doom: Doom | None
    process: BaseProcess
    pipe: Connection
    killed_at: float | None


class Supervisor:
    """The processes of one run. Each kind is killed `rounds` times in each of the ways."""

    def __init__(self, plan: Plan, rounds: int) -> None:
        self.kills: Counter[tuple[str, str]] = Counter()
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._context = get_context("forkserver")
        # Forks of a process that has imported all this, and opened nothing, are there in no time.
        self._context.set_forkserver_preload([sell.__module__, work.__module__])
        self._workers: list[Worker] = []
        self._dooms = {kind: [doom for doom in DOOMS for _ in range(rounds)] for kind in KINDS}
        for dooms in self._dooms.values():
            self._chance.shuffle(dooms)
        # So that all processes that are to die do before the work is done.
        self._times_max = max(1, plan.order_count // (12 * max(1, rounds)))

    def prepare(self) -> None:
        with Shop(self._plan.shop) as shop, Books(self._plan.books) as books:
            shop.open_for(self._plan.world())
            books.open()
        with self._plan.open_broker() as broker:
            for topic in (ORDERS, CHANGES, DUE):
                broker.create_topic(topic, QUEUE_COUNT)

    def run(self, show: Callable[[Status], None]) -> None:
        """Have it all done. Ends the program if a process fails by itself, or nothing moves any more."""
        try:
            for number in range(SELLER_COUNT):
                self._start("seller", number)
            for number in range(OFFICE_COUNT):
                self._start("office", number)
            # A reader alone: the leader is among the processes that die.
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
        """Wait for the checks of transactions that came to nothing, of which no topic tells."""
        until = time.monotonic() + STALLED_AFTER
        with self._plan.open_broker() as broker:
            while broker.transactions.undecided() and time.monotonic() < until:
                self._replace_the_dead()

    def _is_done(self, status: Status) -> bool:
        """Whether every order is in a final state, nothing is still to come, and the books tell of all."""
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
            if worker.doom is None or worker.process.exitcode != -signal.SIGKILL:
                sys.exit(f"orders: the {worker.kind} ended with status {worker.process.exitcode}")
            self.kills[worker.kind, worker.doom.point] += 1
            self._workers.remove(worker)
            worker.pipe.close()
            self._start(worker.kind, worker.number)

    def _start(self, kind: str, number: int) -> None:
        doom = None
        if self._dooms[kind]:
            doom = Doom(self._dooms[kind].pop(), self._chance.randint(1, self._times_max))
        here, there = self._context.Pipe()
        process = self._context.Process(
            target=KINDS[kind], args=(self._plan, number, doom, there), name=f"{kind} {number + 1}"
        )
        process.start()
        there.close()
        is_killed = doom is not None and doom.point == ANY_MOMENT
        killed_at = time.monotonic() + self._chance.uniform(*LIFE_SECONDS) if is_killed else None
        self._workers.append(Worker(kind, number, doom, process, here, killed_at))

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
