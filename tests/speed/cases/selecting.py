"""Reading 1 KiB messages by an SQL92 expression on two of their properties; a quarter is selected.

What counts is every message looked at, selected or not. sqlite3 has the properties as columns, and is asked
row by row from Python, as one message after another comes to a consumer.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import mq
from tests.speed.cases.case import KIB, Bench, Case
from tests.speed.goal import at_least
from tests.speed.pairing import Measurement, alone, paired, rate
from tests.speed.workspace import fresh, settle

CONDITION = "price > 100 AND region IN ('EU', 'US')"
REGIONS = ("EU", "AS", "US", "AF")
READ_COUNT = 100
FILL_COUNT = 1000


def _properties(number: int) -> tuple[int, str]:
    return number % 201, REGIONS[number % 4]


class Selecting:
    """A queue with messages, read from the beginning again when its end is reached."""

    def __init__(self, directory: Path, body: bytes, count: int) -> None:
        self._broker = mq.open(str(directory))
        self._queue = self._broker.create_topic("orders", 1).queues[0]
        self._offset = 0
        with mq.Producer(self._broker) as producer:
            for begin in range(0, count, FILL_COUNT):
                producer.send_batch([_message(number, body) for number in range(begin, begin + FILL_COUNT)])

    def read(self, count: int) -> int:
        read, done = self._queue.read, 0
        while done < count:
            result = read(self._offset, count_max=READ_COUNT, sql=CONDITION)
            for message in result.messages:
                assert message.body
            done += result.next_offset - self._offset
            self._offset = result.next_offset if result.next_offset < result.max_offset else 0
        return done

    def close(self) -> None:
        self._broker.close()


def _message(number: int, body: bytes) -> mq.Message:
    price, region = _properties(number)
    return mq.Message("orders", body, tags="paid", properties={"price": str(price), "region": region})


class SqliteSelecting:
    def __init__(self, directory: Path, body: bytes, count: int) -> None:
        self._connection = sqlite3.connect(directory, isolation_level=None)
        self._connection.execute(
            "create table message (id integer primary key, price integer, region text, body blob)"
        )
        self._connection.execute("begin")
        self._connection.executemany(
            "insert into message values (?, ?, ?, ?)",
            ((number, *_properties(number), body) for number in range(count)),
        )
        self._connection.execute("commit")
        self._count, self._offset = count, 0

    def read(self, count: int) -> int:
        execute = self._connection.execute
        statement = f"select body from message where id = ? and {CONDITION}"
        for _ in range(count):
            for (body,) in execute(statement, (self._offset,)):
                assert body
            self._offset = (self._offset + 1) % self._count
        return count

    def close(self) -> None:
        self._connection.close()


def _rate(bench: Bench, opened: Callable[[Path, bytes, int], Selecting | SqliteSelecting]) -> float:
    with (
        fresh(bench.data) as directory,
        closing(opened(directory / "queue", os.urandom(KIB), bench.plan.read_count)) as queue,
    ):
        settle(bench.plan.memory_size)
        return rate(queue.read, bench.plan.seconds)


def _alone(bench: Bench) -> Measurement:
    return alone("msg/s", lambda: _rate(bench, Selecting), bench.plan.rounds, bench.say)


def _against_sqlite(bench: Bench) -> Measurement:
    return paired(
        "msg/s",
        lambda: _rate(bench, Selecting),
        lambda: _rate(bench, SqliteSelecting),
        bench.plan.rounds,
        bench.say,
    )


CASES = (
    Case(
        "filter/sql",
        "read by SQL on two properties, 1 KiB",
        "fixed limit",
        at_least(300_000, "msg/s"),
        _alone,
    ),
    Case(
        "filter/sqlite",
        "read by SQL on two properties, 1 KiB",
        "sqlite3, the same WHERE row by row",
        None,
        _against_sqlite,
    ),
)
