"""mq's clients on a name server: the same measurements as RocketMQ's Java client (peers/rocketmq_java.py)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from typing import Any

import mq
from tests.speed.consuming import LOOK_SECONDS, PATIENCE_SECONDS, TIME
from tests.speed.processes import in_child, together
from tests.speed.servers import TIMEOUT_SECONDS
from tests.speed.spread import percentile

HELD_SECONDS = 0.5  # from the first message until every queue's pull is held
WARM_UP_SHARE = 5  # the first fifth of a backlog


@dataclass(frozen=True, slots=True)
class MqClient:
    """The topic exists already. `rate` is in messages a second, `cpu_us` the client's processor time for
    each. What sends for some seconds sends once at least, however late it gets the processor."""

    name_server: str
    topic: str
    size: int = 1024

    def send(self, threads: int, seconds: float) -> dict[str, float]:
        """Sync sends of one process: rate, cpu_us."""
        body = bytes(self.size)

        def send(producer: mq.Producer, until: float) -> int:
            done = 0
            while not done or time.perf_counter() < until:
                producer.send(mq.Message(self.topic, body))
                done += 1
            return done

        def all_threads(producer: mq.Producer) -> int:
            until = time.perf_counter() + seconds
            with ThreadPoolExecutor(threads, thread_name_prefix="sender") as pool:
                return sum(pool.map(lambda _: send(producer, until), range(threads)))

        return self._produced(all_threads)

    def send_async(self, seconds: float) -> dict[str, float]:
        """Sends with a future, as many under way as the producer allows, until all are answered."""
        body = bytes(self.size)

        def send(producer: mq.Producer) -> int:
            until, done = time.perf_counter() + seconds, 0
            waiting: deque[Future[mq.SendResult]] = deque()
            while not done or time.perf_counter() < until:
                waiting.append(producer.send_async(mq.Message(self.topic, body)))
                done += 1
                while waiting and waiting[0].done():
                    waiting.popleft().result()
            for future in waiting:
                future.result(TIMEOUT_SECONDS)
            return done

        return self._produced(send)

    def send_batches(self, seconds: float, count: int = 500) -> dict[str, float]:
        """Sync sends of batches, whose messages are built inside the timed loop: rate in messages."""
        body = bytes(self.size)

        def send(producer: mq.Producer) -> int:
            until, done = time.perf_counter() + seconds, 0
            while not done or time.perf_counter() < until:
                producer.send_batch([mq.Message(self.topic, body) for _ in range(count)])
                done += count
            return done

        return self._produced(send)

    def send_count(self, count: int) -> dict[str, float]:
        """So many sync sends of one thread."""
        body = bytes(self.size)

        def send(producer: mq.Producer) -> int:
            for _ in range(count):
                producer.send(mq.Message(self.topic, body))
            return count

        return self._produced(send)

    def drain(self, group: str, messages: int, processes: int = 1) -> dict[str, float]:
        """New push consumers of one group take a backlog, the first fifth to warm up: rate; cpu_us, over all
        that they do from their start."""
        taken = RawArray("q", processes)

        def consumer(place: int) -> Callable[[Callable[[], object]], tuple[float, float]]:
            return lambda ready: self._consume(group, messages, taken, place, ready)

        results = together([consumer(place) for place in range(processes)])
        return {"rate": results[0][0], "cpu_us": sum(cpu for _, cpu in results) / messages * 1e6}

    def latency(self, group: str, messages: int, pause_us: int) -> dict[str, float]:
        """From send to listener, both in one process: p50_us, p99_us. The topic is empty."""
        return in_child(lambda: self._latency(group, messages, pause_us))

    def _produced(self, send: Callable[[mq.Producer], int]) -> dict[str, float]:
        with self._broker() as broker, mq.Producer(broker) as producer:
            producer.send(mq.Message(self.topic, bytes(self.size)))
            begin, begin_cpu = time.perf_counter(), time.process_time()
            done = send(producer)
            seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        return {"rate": done / seconds, "cpu_us": cpu / done * 1e6}

    def _consume(
        self, group: str, messages: int, taken: Any, place: int, ready: Callable[[], object]
    ) -> tuple[float, float]:
        """One of the consumers: the rate of all of them, its own processor seconds.

        None begins before each has its share of the queues, so that no queue changes hands afterwards.
        """
        begin_cpu = time.process_time()
        lock = threading.Lock()

        def listener(_: mq.MessageExt) -> None:
            with lock:
                taken[place] += 1

        with self._broker() as broker, mq.PushConsumer(broker, group) as consumer:
            consumer.subscribe(self.topic, listener=listener)
            share = len(broker.topic(self.topic).queues) // len(taken)
            consumer.suspend()
            consumer.start()
            _wait_until(lambda: self._assigned(consumer) == share, "the consumer does not get its queues")
            ready()
            consumer.resume()
            first, begin = _wait_until(
                lambda: sum(taken) * WARM_UP_SHARE >= messages and sum(taken), "warm-up"
            )
            last, end = _wait_until(lambda: sum(taken) >= messages and sum(taken), "the rest does not come")
            cpu = time.process_time() - begin_cpu
            ready()
        # A backlog so small that the first look finds all of it was taken within that look.
        return (last - first or messages) / max(end - begin, LOOK_SECONDS), cpu

    def _assigned(self, consumer: mq.PushConsumer) -> int:
        return sum(queue.topic == self.topic for queue in consumer.assignment())

    def _latency(self, group: str, messages: int, pause_us: int) -> dict[str, float]:
        times: list[float] = []
        begun, done = threading.Event(), threading.Event()

        def listener(message: mq.MessageExt) -> None:
            arrived = time.perf_counter_ns()
            begun.set()
            if sent := TIME.unpack_from(message.body)[0]:
                times.append((arrived - sent) / 1e3)
                if len(times) == messages:
                    done.set()

        rest = bytes(self.size - TIME.size)
        with (
            self._broker() as broker,
            mq.PushConsumer(broker, group) as consumer,
            mq.Producer(broker) as producer,
        ):
            consumer.subscribe(self.topic, listener=listener)
            consumer.start()
            producer.send(mq.Message(self.topic, TIME.pack(0) + rest))
            assert begun.wait(PATIENCE_SECONDS), "the first message does not come"
            time.sleep(HELD_SECONDS)
            for _ in range(messages):
                time.sleep(pause_us / 1e6)
                producer.send(mq.Message(self.topic, TIME.pack(time.perf_counter_ns()) + rest))
            assert done.wait(PATIENCE_SECONDS), f"{len(times)} of {messages} messages came"
        warm = times[messages // WARM_UP_SHARE :]
        return {"p50_us": percentile(warm, 0.5), "p99_us": percentile(warm, 0.99)}

    def _broker(self) -> Any:
        return mq.open(f"rocketmq://{self.name_server}", timeout=TIMEOUT_SECONDS)


def _wait_until(what: Callable[[], int], otherwise: str) -> tuple[int, float]:
    """What it is once it is not 0, and when that was seen."""
    until = time.perf_counter() + PATIENCE_SECONDS
    while not (found := what()):
        if time.perf_counter() > until:
            raise TimeoutError(otherwise)
        time.sleep(LOOK_SECONDS)
    return found, time.perf_counter()
