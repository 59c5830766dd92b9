"""Keys: a message that is stored once against one that is just stored, and a key that is handled once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mq
from tests.speed import ours
from tests.speed.cases.case import Bench, Case, rate_of
from tests.speed.goal import at_least
from tests.speed.pairing import Measurement, paired
from tests.speed.peers import sqlite_keys
from tests.speed.peers.queue import Peer
from tests.speed.peers.sqlite_keys import SqliteKeys

WINDOW = 3600.0


class SendingOnce:
    """As ours.Sending, each message under a key of its own."""

    def __init__(self, directory: Path, body: bytes) -> None:
        self._body = body
        self._broker = mq.open(str(directory))
        self._producer = mq.Producer(self._broker, dedup_window=WINDOW)
        self._producer.send(mq.Message(ours.TOPIC, body), dedup_key="order")  # The first one makes the table.
        self._next = 0

    def send_each(self, count: int) -> int:
        send, body, message = self._producer.send, self._body, mq.Message
        for number in range(self._next, self._next + count):
            send(message(ours.TOPIC, body, tags=ours.TAG), dedup_key=f"order-{number}")
        self._next += count
        return count

    def send_again(self, count: int) -> int:
        send, prepared = self._producer.send, mq.Message(ours.TOPIC, self._body)
        for _ in range(count):
            send(prepared, dedup_key="order")
        return count

    def close(self) -> None:
        self._producer.close()
        self._broker.close()


class Handling:
    """mq.Once, each key once."""

    def __init__(self, directory: Path, _body: bytes) -> None:
        self._broker = mq.open(str(directory))
        self._once = mq.Once(self._broker, "billing", size=1_000_000)
        self._next = 0

    def handle_each(self, count: int) -> int:
        once = self._once
        for number in range(self._next, self._next + count):
            with once(f"orders/key-{number}") as fresh:
                assert fresh
        self._next += count
        return count

    def close(self) -> None:
        self._broker.close()


def _sends(run: Callable[[SendingOnce], Callable[[int], int]]) -> Callable[[Bench], Measurement]:
    def measure(bench: Bench) -> Measurement:
        def plain() -> float:
            return rate_of(bench, ours.Sending, lambda queue: queue.send_each)

        def once() -> float:
            return rate_of(bench, SendingOnce, run)

        return paired("msg/s", once, plain, bench.plan.rounds, bench.say)

    return measure


def _handling(peer: Peer[SqliteKeys]) -> Case:
    def measure(bench: Bench) -> Measurement:
        def handled() -> float:
            return rate_of(bench, Handling, lambda keys: keys.handle_each)

        def theirs() -> float:
            return rate_of(bench, peer.open, lambda keys: keys.handle_each)

        return paired("keys/s", handled, theirs, bench.plan.rounds, bench.say)

    name = "once/sqlite-shared" if peer is sqlite_keys.NORMAL_SHARED else "once/sqlite"
    return Case(name, "mq.Once, a key each", str(peer), None, measure, (peer.module,))


CASES = (
    Case(
        "once/send",
        "send under a dedup key, 1 KiB",
        "the plain send",
        at_least(0.5),
        _sends(lambda queue: queue.send_each),
    ),
    Case(
        "once/send-again",
        "send of what is stored already",
        "the plain send",
        None,
        _sends(lambda queue: queue.send_again),
    ),
    _handling(sqlite_keys.NORMAL),
    _handling(sqlite_keys.NORMAL_SHARED),
)
