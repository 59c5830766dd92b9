"""What the tests of consumers share: a listener that remembers, and brokers that can be made to fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mq
from mq.api.results import MessageQueue
from tests.support import assigned
from tests.support.appending import append_one
from tests.support.memory.broker import MemoryBroker

PATIENCE = 60.0  # seconds; a machine under load takes its time, and that proves nothing


class Heard:
    """A listener: remembers what it was given, and fails or blocks where it is told to."""

    def __init__(self, act: Callable[[mq.MessageExt], object] = lambda _message: None) -> None:
        self.messages: list[mq.MessageExt] = []
        self.running = 0
        self.running_max = 0
        self._act = act
        self._changed = threading.Condition()

    def __call__(self, message: mq.MessageExt) -> None:
        with self._changed:
            self.messages.append(message)
            self.running += 1
            self.running_max = max(self.running_max, self.running)
            self._changed.notify_all()
        try:
            self._act(message)
        finally:
            with self._changed:
                self.running -= 1
                self._changed.notify_all()

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in list(self.messages)]

    def wait(self, count: int) -> None:
        """Until it was called so many times."""
        self.wait_for(lambda: len(self.messages) >= count)

    def wait_for(self, is_true: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(is_true, PATIENCE), f"heard {len(self.messages)} messages"


def eventually(is_true: Callable[[], object]) -> None:
    """Wait for what happens elsewhere."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.002)):
        if is_true():
            return
        pause.wait(0.002)
    raise AssertionError("it did not come true")


class Clock:
    """The broker's time, in ms, which goes on only when it is told to."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


def send(
    broker: MemoryBroker, *bodies: str, topic: str = "orders", queue_id: int = 0, tags: str = "t"
) -> None:
    for body in bodies:
        message = mq.Message(topic, body.encode(), tags=tags)
        append_one(broker, topic, queue_id, message, message.body, 0)


def committed(broker: MemoryBroker, queue_id: int = 0, topic: str = "orders", group: str = "g") -> int | None:
    return assigned.committed(broker, group, MessageQueue(topic, "mq", queue_id))


def dead_letters(broker: MemoryBroker, group: str = "g") -> list[mq.MessageExt]:
    try:
        queues = broker.topic(f"%DLQ%{group}").queues
    except mq.TopicNotFound:
        return []
    return [message for queue in queues for message in queue.read(0).messages]


@contextmanager
def consuming(
    broker: MemoryBroker, listener: Callable[[Any], object], *, group: str = "g", **options: Any
) -> Iterator[mq.PushConsumer]:
    """A consumer of "orders" at work."""
    batch_size = options.pop("batch_size", None)
    expression = options.pop("expression", "*")
    with mq.PushConsumer(broker, group, **options) as consumer:
        consumer.subscribe("orders", expression, listener=listener, batch_size=batch_size)
        consumer.start()
        yield consumer
