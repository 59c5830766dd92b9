"""Consumers of each kind that are stopped where they are told to: see tests/groups/test_stopped.py.

Each writes down what its listener begins and ends, in order, one line each.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import mq
from mq import aio
from tests.support.processes.nursery import stopping

__all__ = ["holder"]

TOPIC = "events"
STOP = b"stop here"


class Trace:
    """Of one listener."""

    def __init__(self, path: str, stops: bool) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._stops = stops

    def _say(self, what: str, message: mq.MessageExt) -> None:
        line = f"{time.monotonic_ns()} {what} {message.queue_id} {message.queue_offset}\n"
        os.write(self._fd, line.encode())

    def handle(self, *messages: mq.MessageExt) -> None:
        for message in messages:
            self._say("begin", message)
        for message in messages:
            if self._stops and message.body == STOP:
                self._stops = False
                signal.raise_signal(signal.SIGSTOP)  # Of this thread: it stops here.
        for message in messages:
            self._say("end", message)


def holder(root: str, trace: str, kind: str, group: str, lease: float, stops: bool, sizes: Any) -> None:
    """Consumes until it is told to end. stops: at the message that says so."""
    handle = Trace(trace, stops).handle
    with mq.open(root, queue_lease=lease, duties=False, **sizes) as broker:
        KINDS[kind](broker, group, handle)


Handle = Callable[..., None]


def _push(broker: mq.Broker, group: str, handle: Handle, **options: Any) -> None:
    batch_size = options.pop("batch_size", None)
    # One thread: two could be stopped in a listener each.
    with mq.PushConsumer(broker, group, threads=1, **options) as push:
        listener = (lambda messages: handle(*messages)) if batch_size else handle
        push.subscribe(TOPIC, batch_size=batch_size, listener=listener)
        push.start()
        while not stopping:
            time.sleep(0.005)


def _pull(broker: mq.Broker, group: str, handle: Handle) -> None:
    with mq.PullConsumer(broker, group, auto_commit_interval=0.0) as pull:
        pull.subscribe(TOPIC)
        while not stopping:
            handle(*pull.poll(0.05))


def _loop(broker: mq.Broker, group: str, handle: Handle) -> None:
    pull = mq.PullConsumer(broker, group, auto_commit_interval=0.0)

    def close() -> None:
        while not stopping:
            time.sleep(0.005)
        pull.close()

    threading.Thread(target=close).start()
    pull.subscribe(TOPIC)
    for message in pull:
        handle(message)


def _aio(broker: mq.Broker, group: str, handle: Handle) -> None:
    async def run() -> None:
        async with aio.Consumer(broker, group, auto_commit_interval=0.0) as consumer:
            consumer.subscribe(TOPIC)
            running = asyncio.create_task(consumer.run(handle, concurrency=2))
            while not stopping:  # noqa: ASYNC110 - a signal handler sets it
                await asyncio.sleep(0.005)
            await consumer.close()
            await running

    asyncio.run(run())


KINDS: dict[str, Callable[..., None]] = {
    "push": _push,
    "ordered": lambda *given: _push(*given, ordered=True),
    "lists": lambda *given: _push(*given, batch_size=4),
    "pull": _pull,
    "loop": _loop,
    "aio": _aio,
}
