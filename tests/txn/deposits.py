"""What the processes of the kill tests do: transactions over a database, which is the truth afterwards.

A deposit is a row of the database and a message, which are to come together or not at all. Its number says at
which step its producer dies, whether it is sent by send or by begin, and whether it is to be rolled back. See
tests/support/processes/nursery.py for how the processes come to life; paths are strings here, since arguments
travel as JSON.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import mq
from tests.support.processes.halts import WANTED, cut_short
from tests.support.processes.nursery import stopping

__all__ = [
    "GROUP",
    "TOPIC",
    "Database",
    "Deposit",
    "Step",
    "both_end",
    "checker",
    "depositors",
    "depositors_until_killed",
    "holder",
]

TOPIC = "deposits"
GROUP = "depositors"
BUSY_SECONDS = 30.0
PAUSE = 0.005

COMMIT, ROLLBACK, UNKNOWN = (
    mq.TransactionState.COMMIT,
    mq.TransactionState.ROLLBACK,
    mq.TransactionState.UNKNOWN,
)

Options = dict[str, Any]


class Step(IntEnum):
    """Where a producer is when it dies."""

    BEFORE_HALF = 0
    AFTER_HALF = 1  # the database does not know of it yet
    AFTER_DATABASE = 2  # inside execute, the database has committed
    BEFORE_END = 3  # execute has returned
    AFTER_END = 4  # inside send
    DONE = 5


class Deposit(NamedTuple):
    """What a number stands for."""

    number: int

    @property
    def step(self) -> Step:
        return Step(self.number % len(Step))

    @property
    def by_begin(self) -> bool:
        return self.number // len(Step) % 2 == 1

    @property
    def rolls_back(self) -> bool:
        return self.number // len(Step) % 5 == 4

    @property
    def message(self) -> mq.Message:
        return mq.Message(TOPIC, b"%d" % self.number, keys=str(self.number))


class Database:
    """One row for each deposit that has ended: what became of it, for good. For one thread each."""

    def __init__(self, path: str | Path) -> None:
        self._rows = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._rows.execute("PRAGMA synchronous = OFF")  # processes die here, not the machine
        self._rows.execute("PRAGMA journal_mode = WAL")
        self._rows.execute("CREATE TABLE IF NOT EXISTS outcome (number INTEGER PRIMARY KEY, done INTEGER)")

    def deposit(self, number: int) -> None:
        """Raises sqlite3.IntegrityError where a check was faster and has rolled it back."""
        self._rows.execute("INSERT INTO outcome VALUES (?, 1)", (number,))

    def became(self, number: int) -> bool:
        """Whether it is there; if not, it never will be."""
        self._rows.execute("INSERT OR IGNORE INTO outcome VALUES (?, 0)", (number,))
        ((done,),) = self._rows.execute("SELECT done FROM outcome WHERE number = ?", (number,)).fetchall()
        return bool(done)

    def begin_and_stay(self, number: int) -> None:
        """Have the row written, and not committed."""
        self._rows.execute("BEGIN IMMEDIATE")
        self.deposit(number)

    def numbers(self) -> list[int]:
        """All deposits that are there."""
        return [
            number
            for (number,) in self._rows.execute("SELECT number FROM outcome WHERE done ORDER BY number")
        ]

    def close(self) -> None:
        self._rows.close()


class _Stopped:
    """A broker that reports each end before and after it, so that a test can stop there."""

    def __init__(self, broker: mq.LocalBroker, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._broker = broker
        self._before = before
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def ender(self, group: str) -> Callable[..., None]:
        end = self._broker.transactions.ender(group)

        def stopped_end(*arguments: Any) -> None:
            self._before()
            end(*arguments)
            self._after()

        return stopped_end


def depositors(root: str, database: str, *, options: Options, first: int, count: int, producers: int) -> None:
    """Bring `count` deposits to the steps of their numbers, in a thread each, and die with all of them."""
    parked = threading.Semaphore(0)
    forever = threading.Event()
    at = threading.local()

    def park(step: Step) -> None:
        if at.deposit.step is step:
            parked.release()
            forever.wait()

    def run(deposit: Deposit, producer: mq.TransactionProducer) -> None:
        at.deposit = deposit
        rows = Database(database)
        with suppress(sqlite3.IntegrityError):  # slow: a check was faster, and has rolled it back
            transact(deposit, producer, rows)
        # At its last step, or beyond one that it did not come to for that.
        parked.release()
        forever.wait()

    def transact(deposit: Deposit, producer: mq.TransactionProducer, rows: Database) -> None:
        park(Step.BEFORE_HALF)
        if deposit.by_begin:
            with producer.begin(deposit.message) as transaction:
                park(Step.AFTER_HALF)
                if deposit.rolls_back:
                    transaction.rollback()
                else:
                    rows.deposit(deposit.number)
                park(Step.AFTER_DATABASE)
        else:
            producer.send(deposit.message, execute, rows)

    def execute(message: mq.Message, rows: Database) -> mq.TransactionState:
        park(Step.AFTER_HALF)
        if not at.deposit.rolls_back:
            rows.deposit(int(message.body))
        park(Step.AFTER_DATABASE)
        return ROLLBACK if at.deposit.rolls_back else COMMIT

    broker = mq.open(root, **options)
    stopped: Any = _Stopped(broker, lambda: park(Step.BEFORE_END), lambda: park(Step.AFTER_END))
    made = [mq.TransactionProducer(stopped, GROUP, Check(database)) for _ in range(producers)]
    for number in range(first, first + count):
        threading.Thread(target=run, args=(Deposit(number), made[number % producers]), daemon=True).start()
    for _ in range(count):
        if not parked.acquire(timeout=BUSY_SECONDS):
            raise AssertionError("not all deposits came to their step")
    # One more, in the middle of a transaction of the database.
    with made[0].begin(Deposit(first + count).message):
        Database(database).begin_and_stay(first + count)
        os.kill(os.getpid(), signal.SIGKILL)


def depositors_until_killed(root: str, database: str, *, options: Options, first: int, threads: int) -> None:
    """Deposit at full speed; killed at any moment. Where alarms are asked for, the main thread deposits too,
    and they end its deposits, each wherever it is."""

    def run(number: int, step: int) -> None:
        rows = Database(database)
        while True:
            transact(Deposit(number), rows)
            number += step

    def transact(deposit: Deposit, rows: Database) -> None:
        if deposit.by_begin:
            with suppress(sqlite3.IntegrityError), producer.begin(deposit.message) as transaction:
                if deposit.rolls_back:
                    transaction.rollback()
                else:
                    rows.deposit(deposit.number)
        else:
            producer.send(deposit.message, execute, rows)

    def execute(message: mq.Message, rows: Database) -> mq.TransactionState:
        if Deposit(int(message.body)).rolls_back:
            return ROLLBACK
        rows.deposit(int(message.body))
        return COMMIT

    broker = mq.open(root, **options)
    producer = mq.TransactionProducer(broker, GROUP, Check(database))
    step = threads + 1
    for each in range(threads):
        threading.Thread(target=run, args=(first + each, step), daemon=True).start()
    if WANTED:
        rows, chance = Database(database), random.Random(first)
        for number in count(first + threads, step):
            cut_short(partial(transact, Deposit(number), rows), chance)
    threading.Event().wait()


class Check:
    """Answers from the database, and writes down what it was asked about."""

    def __init__(self, database: str, asked: str | None = None, fails: str = "") -> None:
        self._database = database
        self._here = threading.local()
        self._asked = os.open(asked, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if asked else None
        self._fails = fails

    def __call__(self, message: mq.MessageExt) -> mq.TransactionState:
        number = int(message.body)
        if self._asked is not None:
            os.write(self._asked, b"%d\n" % number)
        if self._fails == "hangs":
            threading.Event().wait()
        if self._fails == "raises":
            raise ValueError(number)
        if self._fails == "nonsense":
            return "COMMIT"  # type: ignore[return-value]  # which is what is tried
        rows: Database | None = getattr(self._here, "rows", None)
        if rows is None:
            rows = self._here.rows = Database(self._database)
        return COMMIT if rows.became(number) else ROLLBACK


def checker(
    root: str, database: str, *, options: Options, asked: str, ready: str, group: str = GROUP, fails: str = ""
) -> None:
    """A producer that sends nothing: it is there to be asked, until stopped."""
    with (
        mq.open(root, **options) as broker,
        mq.TransactionProducer(broker, group, Check(database, asked, fails)) as producer,
    ):
        Path(ready).touch()
        while not stopping:
            time.sleep(PAUSE)
        if fails == "hangs":
            producer.close(0.0)


def holder(root: str, *, options: Options, ready: str) -> None:
    """A broker that is open, and may have the duties, until stopped."""
    with mq.open(root, **options):
        Path(ready).touch()
        while not stopping:
            time.sleep(PAUSE)


def both_end(
    root: str, *, options: Options, places: list[tuple[int, int]], at_ns: int, apart_ns: int
) -> None:
    """Commit the transactions at these places, each at its moment, as another process does."""
    with mq.open(root, **options) as broker:
        for number, (log_offset, queue_offset) in enumerate(places):
            while time.monotonic_ns() < at_ns + number * apart_ns:
                pass
            broker.transactions.ender(GROUP)(log_offset, queue_offset, COMMIT)
