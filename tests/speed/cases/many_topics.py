"""What a send and a read cost in a store of very many topics, against one of few."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import mq
from tests.speed.cases.case import KIB, Bench, Case
from tests.speed.goal import at_least
from tests.speed.pairing import Measurement, paired, rate
from tests.speed.workspace import fresh, settle

READ_COUNT = 100
MORE, MANY = 1, 2  # places in Plan.topic_counts
EACH = 20  # messages that each of many topics has before a turn; those of the few have as many together


class Topics:
    """A store of `count` topics of one queue with `each` messages, sent to and read from in turn."""

    def __init__(self, directory: Path, count: int, each: int) -> None:
        self._broker = mq.open(directory, default_queue_count=1, queue_file_units=1000)
        self._producer = mq.Producer(self._broker)
        self._body = os.urandom(KIB)
        self._names = [f"topic-{number}" for number in range(count)]
        batches = each // EACH
        self._each = batches * EACH
        for name in self._names * batches:
            self._producer.send_batch([mq.Message(name, self._body) for _ in range(EACH)])
        self._queues = [self._broker.topic(name).queues[0] for name in self._names]
        self._at = 0

    def send_each(self, count: int) -> int:
        send, body, message, names = self._producer.send, self._body, mq.Message, self._names
        begin, of = self._at, len(names)
        for number in range(begin, begin + count):
            send(message(names[number % of], body))
        self._at = begin + count
        return count

    def read_each(self, count: int) -> int:
        queues, begin, of, each = self._queues, self._at, len(self._queues), self._each
        for number in range(begin, begin + count):
            _ = queues[number % of].read(number // of % each, count_max=1).messages[0].body
        self._at = begin + count
        return count

    def close(self) -> None:
        self._producer.close()
        self._broker.close()


@contextmanager
def _both(bench: Bench, size: int) -> Iterator[tuple[Topics, Topics]]:
    few, many = bench.plan.topic_counts[0], bench.plan.topic_counts[size]
    with fresh(bench.data) as directory:
        bench.say(f"making {many:,} topics")
        with (
            closing(Topics(directory / "many", many, EACH)) as large,
            closing(Topics(directory / "few", few, EACH * many // few)) as small,
        ):
            yield large, small


def _measure(run: Callable[[Topics], Callable[[int], int]], size: int) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        with _both(bench, size) as (large, small):

            def turn(topics: Topics) -> float:
                settle(bench.plan.memory_size)
                return rate(run(topics), bench.plan.seconds)

            return paired("msg/s", partial(turn, large), partial(turn, small), bench.plan.rounds, bench.say)

    return measure


def _send(size: int) -> Callable[[Bench], Measurement]:
    return _measure(lambda topics: topics.send_each, size)


def _read(size: int) -> Callable[[Bench], Measurement]:
    return _measure(lambda topics: topics.read_each, size)


GOAL = at_least(0.8)
CASES = (
    Case("topics/send-1k", "send to 1,000 topics in turn, 1 KiB", "to 10 topics", GOAL, _send(MORE)),
    Case("topics/send", "send to 10,000 topics in turn, 1 KiB", "to 10 topics", GOAL, _send(MANY)),
    Case("topics/read-1k", "read from 1,000 topics in turn, one by one", "from 10 topics", GOAL, _read(MORE)),
    Case("topics/read", "read from 10,000 topics in turn, one by one", "from 10 topics", GOAL, _read(MANY)),
)
