"""mq's push consumer behind the calls that a case times, through its public names alone.

Listeners do nothing, or count; how far a group is, is read from what it has committed, by a thread that
sleeps in between.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from itertools import count as counting
from pathlib import Path
from typing import Any

import mq
from tests.speed import ours

QUEUE_COUNT = 4
GROUP = "billing"
LOOK_SECONDS = 0.002
PATIENCE_SECONDS = 240.0

TIME = struct.Struct("<q")


def nothing(_: Any) -> None:
    """The listener that does nothing."""


class Consuming(ours.Sending):
    """An open store, filled by its producer, consumed in the same process."""

    def __init__(
        self, directory: Path, body: bytes, *, queue_count: int = QUEUE_COUNT, **options: Any
    ) -> None:
        super().__init__(directory, body, **options)
        self._broker.create_topic(ours.TOPIC, queue_count)

    def fill(self, count: int) -> None:
        for _ in range(0, count, ours.FILL_COUNT):
            self.send_batch(ours.FILL_COUNT)

    def top_up(self, count: int) -> None:
        """Have at least so many messages waiting: a consumer takes more than its turn until it is closed."""
        waiting = self._broker.group(GROUP).lag(ours.TOPIC)
        if waiting < count:
            self.fill(count - waiting)

    def consumer(self, listener: Callable[[Any], object], **options: Any) -> mq.PushConsumer:
        consumer = mq.PushConsumer(self._broker, GROUP)
        consumer.subscribe(ours.TOPIC, listener=listener, **options)
        return consumer

    def consumed(self) -> int:
        return sum(self._broker.group(GROUP).offsets(ours.TOPIC).values())

    def drain_rate(self, **options: Any) -> float:
        """Messages a second of a consumer that takes all there is, from the first look at which it had taken
        some to the last."""
        total = sum(self._broker.max_offset(queue.message_queue) for queue in self._queues())
        with self.consumer(nothing, **options) as consumer:
            consumer.start()
            first, begin = self._progress(1)
            last, end = self._progress(total)
        assert last == total
        return (last - first) / (end - begin) if last > first else total / LOOK_SECONDS

    def _queues(self) -> tuple[mq.Queue, ...]:
        return self._broker.topic(ours.TOPIC).queues

    def _progress(self, wanted: int) -> tuple[int, float]:
        until = time.perf_counter() + PATIENCE_SECONDS
        while True:
            now = time.perf_counter()
            done = self.consumed()
            if done >= wanted:
                return done, now
            if now > until:
                raise TimeoutError(f"{done:,} of {wanted:,} messages are consumed")
            time.sleep(LOOK_SECONDS)


class Marks:
    """A listener that counts, and notes the time at which it was called for the n-th and the m-th time."""

    def __init__(self) -> None:
        self._numbers = counting(1)
        self._first = self._last = 0
        self._begin = self._end = 0.0
        self._reached = threading.Event()

    def __call__(self, _: Any) -> None:
        number = next(self._numbers)
        if number == self._first:
            self._begin = time.perf_counter()
        elif number == self._last:
            self._end = time.perf_counter()
            self._reached.set()

    def set(self, first: int, last: int) -> None:
        self._reached.clear()
        self._first, self._last = first, last

    def seconds(self) -> float:
        """From the first mark to the last, once both are reached."""
        if not self._reached.wait(PATIENCE_SECONDS):
            raise TimeoutError(f"{self._last:,} messages are not consumed")
        return self._end - self._begin


class OneWay:
    """Messages from one process to the listener in another. A body begins with the time of its send."""

    def __init__(self, directory: Path, body: bytes) -> None:
        self._directory, self._body = directory, body

    def send(self, count: int, pause: float, ready: Callable[[], object]) -> None:
        with mq.open(str(self._directory)) as broker, mq.Producer(broker) as producer:
            broker.create_topic(ours.TOPIC, QUEUE_COUNT)
            ready()
            ready()
            rest, now, pack, message = self._body[TIME.size :], time.perf_counter_ns, TIME.pack, mq.Message
            for _ in range(count):
                time.sleep(pause)
                producer.send(message(ours.TOPIC, pack(now()) + rest))
            ready()

    def listen(self, count: int, ready: Callable[[], object]) -> list[int]:
        times: list[int] = []
        now, unpack = time.perf_counter_ns, TIME.unpack_from
        done = threading.Event()

        def listener(message: mq.MessageExt) -> None:
            arrived = now()
            times.append(arrived - unpack(message.body)[0])
            if len(times) == count:
                done.set()

        with mq.open(str(self._directory)) as broker:
            ready()
            consumer = mq.PushConsumer(broker, GROUP)
            consumer.subscribe(ours.TOPIC, listener=listener)
            with consumer:
                consumer.start()
                until = time.perf_counter() + PATIENCE_SECONDS
                while len(consumer.assignment()) < QUEUE_COUNT:
                    assert time.perf_counter() < until, "the consumer gets no queues"
                    time.sleep(LOOK_SECONDS)
                ready()
                assert done.wait(PATIENCE_SECONDS)
            ready()
        return times


class Pipeline:
    """Several producers and one group of several consumers, each in a process of its own.

    Consumers begin when they have shared out the queues, as those of a peer begin with an open store.
    """

    def __init__(self, directory: Path, body: bytes, batch: int, consumers: int) -> None:
        self._directory, self._body, self._batch = directory, body, batch
        self._share = QUEUE_COUNT // consumers
        with mq.open(str(directory)) as broker:
            broker.create_topic(ours.TOPIC, QUEUE_COUNT)

    def produce(self, count: int, ready: Callable[[], object]) -> None:
        sending = ours.Sending(self._directory, self._body)
        ready()
        if self._batch == 1:
            sending.send_each(count)
        else:
            for _ in range(0, count, self._batch):
                sending.send_batch(self._batch)
        ready()
        sending.close()

    def consume(self, place: int, total: int, ready: Callable[[], object]) -> None:
        with mq.open(str(self._directory)) as broker:
            consumer = mq.PushConsumer(broker, GROUP)
            batch_size = None if self._batch == 1 else self._batch
            consumer.subscribe(ours.TOPIC, listener=nothing, batch_size=batch_size)
            with consumer:
                consumer.start()
                until = time.perf_counter() + PATIENCE_SECONDS
                while len(consumer.assignment()) != self._share:
                    assert time.perf_counter() < until, f"consumer {place} does not get its queues"
                    time.sleep(LOOK_SECONDS)
                ready()
                while sum(broker.group(GROUP).offsets(ours.TOPIC).values()) < total:
                    assert time.perf_counter() < until, f"consumer {place} waits for the rest"
                    time.sleep(LOOK_SECONDS)
                ready()
