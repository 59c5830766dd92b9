"""One run: the producers, the query with its kills and restarts, and the table, until it is complete."""

import json
import random
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, NamedTuple

import mq
from examples.pipeline.drivers import VICTIMS, Driver
from examples.pipeline.plan import CHANGES, PRODUCER_COUNT, QUERY_GROUP, RESULTS, Plan
from examples.pipeline.producer import produce
from examples.pipeline.sums import Found, Sum
from examples.pipeline.table import Table

__all__ = ["Kill", "Run", "Status"]

QUEUE_COUNT = 8
LOOK_INTERVAL = 0.1
STALLED_AFTER = 600.0  # seconds without progress; Spark takes a while to start, and more on a busy machine
DELAY_MAX = 1.0  # of a kill, so that it falls anywhere in a micro-batch


class Kill(NamedTuple):
    victim: str
    event_count: int  # in the table
    seconds: float  # since the start of the run


class Status(NamedTuple):
    """The progress of a run."""

    sent: int
    query_lag: int  # events that the query has not finished
    event_count: int  # that the table knows of
    result_count: int
    kills: tuple[Kill, ...]
    is_working: bool  # the query has written something since it was started


class Run:
    """Exits if a process ends by itself, or nothing progresses any more."""

    def __init__(self, plan: Plan, broker: mq.Broker, table: Table) -> None:
        self._plan = plan
        self._broker = broker
        self._table = table
        self._kills: list[Kill] = []
        self._began = time.monotonic()
        context = get_context("spawn")
        self._producers = [
            context.Process(target=produce, args=(plan, number), name=f"producer {number + 1}", daemon=True)
            for number in range(PRODUCER_COUNT)
        ]
        for topic in (CHANGES, RESULTS):
            broker.create_topic(topic, QUEUE_COUNT)
        self._events_before = 0  # the driver that lives
        self._drivers: list[Driver] = []  # the last one lives

    def go_on(self, show: Callable[[Status], None]) -> Found:
        """Run until the table is complete and the batch job is done."""
        try:
            with uninterrupted():
                # A process started while it is ignored ignores it too: it is for this process alone.
                handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
                for producer in self._producers:
                    producer.start()
                signal.signal(signal.SIGINT, handler)
            self._start_driver()
            with self._table.filled_from(self._broker):
                self._watch(show)
                self._drivers[-1].finish()
                # What the query wrote until it stopped, if it wrote anything more.
                while self._table.lag(self._broker):
                    time.sleep(LOOK_INTERVAL)
            status = self.status()
            show(status)
        finally:
            for driver in self._drivers:
                driver.close()
            for producer in self._producers:
                if producer.pid is not None:
                    producer.kill()
                    producer.join()
        rows = json.loads(self._plan.batch_result.read_text())
        batch = {(module, day): Sum(*sums) for module, day, *sums in rows}
        return Found(
            status.sent,
            self._table.sums(),
            status.result_count,
            self._table.twice(),
            self._table.missing(),
            batch,
        )

    def status(self) -> Status:
        table = self._table
        sent = sum(queue.max_offset for queue in self._broker.topic(CHANGES).queues)
        lag = self._broker.group(QUERY_GROUP).lag(CHANGES)
        is_working = table.event_count > self._events_before
        return Status(sent, lag, table.event_count, table.result_count, tuple(self._kills), is_working)

    def _watch(self, show: Callable[[Status], None]) -> None:
        before: Status | None = None
        since = time.monotonic()
        while True:
            time.sleep(LOOK_INTERVAL)
            self._drivers[-1].check()
            for producer in self._producers:
                if producer.exitcode:
                    sys.exit(f"pipeline: {producer.name} ended with status {producer.exitcode}")
            status = self.status()
            show(status)
            if status != before:
                before, since = status, time.monotonic()
            elif time.monotonic() - since > STALLED_AFTER:
                so_far = f"{status.event_count:,} of {self._plan.event_count:,} events are in the table"
                stalled = f"nothing has moved for {STALLED_AFTER:.0f} s; {so_far}"
                sys.exit(f"pipeline: {stalled}.\n{self._drivers[-1].said()}")
            doom = self._plan.killed_at(len(self._kills))
            if doom is not None and status.event_count >= doom:
                self._kill_if_it_worked(status)
            elif doom is None and self._is_done(status):
                return

    def _kill_if_it_worked(self, status: Status) -> None:
        if not status.is_working and status.event_count < self._plan.event_count:
            return
        time.sleep(random.uniform(0, DELAY_MAX))
        victim = VICTIMS[len(self._kills) % len(VICTIMS)]
        seconds = time.monotonic() - self._began
        self._drivers[-1].kill(victim)
        self._events_before = self._table.event_count
        self._kills.append(Kill(victim, self._events_before, seconds))
        self._start_driver()

    def _start_driver(self) -> None:
        # An interrupt between the start and the append would leave a driver that is never closed.
        with uninterrupted():
            self._drivers.append(Driver(self._plan))

    def _is_done(self, status: Status) -> bool:
        """Whether all events are sent, the query has processed them, and the table has all results."""
        all_sent = status.sent >= self._plan.event_count
        return all_sent and not status.query_lag and not self._table.lag(self._broker)


@contextmanager
def uninterrupted() -> Generator[None, None, None]:
    """Defer the signals that would end this program."""
    came: list[int] = []

    def note(number: int, _: Any) -> None:
        came.append(number)

    handlers = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for noted in came:
        signal.raise_signal(noted)
