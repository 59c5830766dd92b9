"""Processes that are stopped while they hold a key: see tests/dedup/test_stopped.py."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import mq
from mq.broker.once.handled_keys import LocalHandled
from mq.store.dedup.table import Bucket
from tests.dedup.dedup_actors import SMALL, order

__all__ = ["handler", "sender", "usual_sender"]

PREPARED_SECONDS = 0.5


def _stop() -> None:
    signal.raise_signal(signal.SIGSTOP)  # Of this thread: it stops here, and not a little later.


def sender(root: str, key: str, put: int) -> None:
    """Sends under a key, and is stopped with its bucket in hand: before the change of the bucket of that
    number, the claim or the place of what is stored."""
    change, number = Bucket.put, 0

    def stop_and_put(self: Bucket, digest: bytes, time_ms: int, place: int) -> None:
        nonlocal number
        number += 1
        if number == put:
            time.sleep(
                PREPARED_SECONDS
            )  # Else the thread that makes room may be stopped with the log's lock.
            _stop()
        change(self, digest, time_ms, place)

    with mq.open(root, duties=False, **SMALL) as broker:
        producer = mq.Producer(broker, dedup_window=3600)
        type.__setattr__(Bucket, "put", stop_and_put)
        producer.send(order(b"of the stopped"), dedup_key=key)


def usual_sender(root: str, key: str, fail: str) -> None:
    """Sends under a key in one call of C, and is stopped where `fail` says, by the build with fail points."""
    with mq.open(root, duties=False, **SMALL) as broker:
        producer = mq.Producer(broker, dedup_window=3600)
        producer.send(order(b"before"), dedup_key="before")
        time.sleep(PREPARED_SECONDS)
        os.environ["MQ_FAIL"] = fail
        producer.send(order(b"of the stopped"), dedup_key=key)


def handler(root: str, key: str, done: str, point: str) -> None:
    """Handles a key, and is stopped in the body, or at the mark with the file's lock in hand."""
    read_on = vars(LocalHandled)["_read_on"]

    def stop_and_read_on(self: LocalHandled) -> None:
        _stop()
        read_on(self)

    with mq.open(root, duties=False, **SMALL) as broker:
        with mq.Once(broker, "billing")(key) as is_fresh:
            assert is_fresh
            if point == "body":
                _stop()
            with Path(done).open("a") as file:
                file.write(f"{key}\n")
            if point == "mark":
                type.__setattr__(LocalHandled, "_read_on", stop_and_read_on)
        type.__setattr__(LocalHandled, "_read_on", read_on)
