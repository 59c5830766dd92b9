"""mq behind the same calls as a peer, through its public names alone.

Every message carries one tag and one key, and is built inside the timed loop where not said otherwise; a peer
is given the bare body. Readers take `body` of each message and keep their offset in a mapped file, so that it
survives kill -9 as a peer's acknowledgement does.
"""

from __future__ import annotations

import importlib
import mmap
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import mq

TOPIC = "orders"
TAG = "paid"
KEY = "order-20061"
FILL_COUNT = 1000

_OFFSET = struct.Struct("<q")


class Sending:
    """An open store and a producer. `send_each` may be called from several threads."""

    def __init__(
        self,
        directory: Path,
        body: bytes,
        *,
        flush: Literal["async", "sync"] = "async",
        compress_over: int = 4096,
        **options: Any,
    ) -> None:
        self._body = body
        self._broker = mq.open(str(directory), flush=flush, **options)
        self._producer = mq.Producer(self._broker, compress_over=compress_over)
        self._prepared = mq.Message(TOPIC, body, tags=TAG, keys=KEY)
        self._batch: list[mq.Message] = []

    def send_each(self, count: int) -> int:
        send, body, message = self._producer.send, self._body, mq.Message
        for _ in range(count):
            send(message(TOPIC, body, tags=TAG, keys=KEY))
        return count

    def send_each_prepared(self, count: int) -> int:
        """The same with a message that was built before."""
        send, prepared = self._producer.send, self._prepared
        for _ in range(count):
            send(prepared)
        return count

    def send_each_timed(self, count: int) -> list[int]:
        """The time of each of `count` sends, in ns."""
        send, body, message, now = self._producer.send, self._body, mq.Message, time.perf_counter_ns
        times = []
        for _ in range(count):
            begin = now()
            send(message(TOPIC, body, tags=TAG, keys=KEY))
            times.append(now() - begin)
        return times

    def send_batch(self, count: int) -> int:
        """One batch of messages that were built before."""
        if len(self._batch) != count:
            self._batch = self._built(count)
        self._producer.send_batch(self._batch)
        return count

    def send_batch_built(self, count: int) -> int:
        """One batch, its messages built as well."""
        self._producer.send_batch(self._built(count))
        return count

    def close(self) -> None:
        self._producer.close()
        self._broker.close()

    def _built(self, count: int) -> list[mq.Message]:
        message, body = mq.Message, self._body
        return [message(TOPIC, body, tags=TAG, keys=KEY) for _ in range(count)]


class Reading(Sending):
    """One queue of an open store, read from its first message on, and a producer to fill it with."""

    def __init__(self, directory: Path, body: bytes, **options: Any) -> None:
        super().__init__(directory, body, default_queue_count=1, **options)
        self._broker.create_topic(TOPIC, 1)
        self._queue = self._broker.topic(TOPIC).queues[0]
        self._kept_path = directory.with_name(f"{directory.name}.offset")
        self._kept_path.write_bytes(bytes(mmap.PAGESIZE))
        with self._kept_path.open("r+b") as file:
            self._kept = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def fill(self, count: int) -> int:
        for _ in range(0, count, FILL_COUNT):
            self.send_batch(FILL_COUNT)
        return count

    def read_each(self, count: int) -> int:
        read, kept, keep = self._queue.read, self._kept, _OFFSET.pack_into
        (offset,) = _OFFSET.unpack_from(kept)
        for done in range(count):
            result = read(offset, count_max=1)
            if not result.messages:
                return done
            _ = result.messages[0].body
            offset = result.next_offset
            keep(kept, 0, offset)
        return count

    def read_batch(self, count: int) -> int:
        (offset,) = _OFFSET.unpack_from(self._kept)
        result = self._queue.read(offset, count_max=count)
        for message in result.messages:
            _ = message.body
        _OFFSET.pack_into(self._kept, 0, result.next_offset)
        return len(result.messages)

    def read_timed(self, offsets: list[int]) -> list[int]:
        """The time of a read of one message at each of these offsets, in ns."""
        read, now, times = self._queue.read, time.perf_counter_ns, []
        for offset in offsets:
            begin = now()
            _ = read(offset, count_max=1).messages[0].body
            times.append(now() - begin)
        return times

    def read_arrow_all(self, count: int, byte_max: int) -> int:
        """Read the whole queue into record batches of up to `count` messages; how many there were."""
        offset = 0
        while batch := self._queue.read_arrow(offset, count_max=count, byte_max=byte_max).num_rows:
            offset += batch
        return offset

    def close(self) -> None:
        self._kept.close()
        self._kept_path.unlink()
        super().close()


class RoundTripPair:
    """Two topics of one queue each, there and back. `wait` is how long one read waits; 0 spins."""

    def __init__(self, directory: Path, body: bytes, wait: float) -> None:
        self._directory, self._body, self._wait = directory, body, wait

    def echo(self, count: int, ready: Callable[[], object]) -> None:
        with self._ends("there", "back") as (read, send):
            body, message, wait, offset = self._body, mq.Message, self._wait, 0
            ready()
            for _ in range(count):
                while not (result := read(offset, count_max=1, wait=wait)).messages:
                    pass
                _ = result.messages[0].body
                offset = result.next_offset
                send(message("back", body))

    def ping(self, count: int, ready: Callable[[], object]) -> list[int]:
        with self._ends("back", "there") as (read, send):
            body, message, wait, offset = self._body, mq.Message, self._wait, 0
            now, times = time.perf_counter_ns, []
            ready()
            for _ in range(count):
                begin = now()
                send(message("there", body))
                while not (result := read(offset, count_max=1, wait=wait)).messages:
                    pass
                _ = result.messages[0].body
                offset = result.next_offset
                times.append(now() - begin)
            return times

    @contextmanager
    def _ends(self, read_name: str, write_name: str) -> Iterator[tuple[Any, Any]]:
        with mq.open(str(self._directory)) as broker, mq.Producer(broker) as producer:
            for name in (read_name, write_name):
                broker.create_topic(name, 1)
            yield broker.topic(read_name).queues[0].read, producer.send


def make_store(directory: Path, body: bytes, count: int, *, plain: bool = True) -> None:
    """A store of `count` messages in one queue, indexed, closed cleanly. `plain`: without tag and key."""
    with mq.open(str(directory), default_queue_count=1) as broker, mq.Producer(broker) as producer:
        broker.create_topic(TOPIC, 1)
        extras: dict[str, Any] = {} if plain else {"tags": TAG, "keys": KEY}
        messages = [mq.Message(TOPIC, body, **extras) for _ in range(FILL_COUNT)]
        for _ in range(0, count, FILL_COUNT):
            producer.send_batch(messages)
        # A query brings the index up to date with all that was sent before it.
        broker.query(TOPIC, "no-such-key")


def make_topics(directory: Path, body: bytes, count: int) -> None:
    """A store of `count` topics of one queue with a message each, closed cleanly."""
    with (
        mq.open(str(directory), default_queue_count=1, queue_file_units=1000) as broker,
        mq.Producer(broker) as producer,
    ):
        for number in range(count):
            producer.send(mq.Message(f"topic-{number}", body))


def send_until_killed(directory: Path, body: bytes, ready: Callable[[], object]) -> None:
    with mq.open(str(directory)) as broker, mq.Producer(broker) as producer:
        producer.send(mq.Message(TOPIC, body))
        ready()
        while True:
            producer.send(mq.Message(TOPIC, body))


def open_times(directory: Path) -> tuple[float, float]:
    """Seconds of opening the store, and of the first read after it."""
    importlib.import_module("mq.broker.local")  # Loaded at its first use, which is no part of opening.
    begin = time.perf_counter()
    with mq.open(str(directory)) as broker:
        opened = time.perf_counter()
        messages = broker.topic(TOPIC).queues[0].read(0, count_max=1).messages
        read = time.perf_counter()
        assert len(messages) == 1
    return opened - begin, read - opened
