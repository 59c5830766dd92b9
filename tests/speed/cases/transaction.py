"""Transactions beside plain sends: half message and END, with the message built inside the timed loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mq
from tests.speed.cases.case import Bench, Case, rate_of
from tests.speed.cases.send import ours_rate
from tests.speed.goal import Goal, at_least
from tests.speed.ours import KEY, TAG, TOPIC
from tests.speed.pairing import Measurement, paired

TITLE = "transaction, 1 KiB, one by one"


class Transacting:
    """An open store and a producer whose transactions all commit."""

    def __init__(self, directory: Path, body: bytes) -> None:
        self._body = body
        self._broker = mq.open(str(directory))
        self._producer = mq.TransactionProducer(self._broker, "transactors", _unknown)

    def send_each(self, count: int) -> int:
        send, body, message, execute = self._producer.send, self._body, mq.Message, _commit
        for _ in range(count):
            send(message(TOPIC, body, tags=TAG, keys=KEY), execute)
        return count

    def begin_each(self, count: int) -> int:
        begin, body, message = self._producer.begin, self._body, mq.Message
        for _ in range(count):
            with begin(message(TOPIC, body, tags=TAG, keys=KEY)):
                pass
        return count

    def close(self) -> None:
        self._producer.close()
        self._broker.close()


def _commit(_message: mq.Message, _arg: object) -> mq.TransactionState:
    return mq.TransactionState.COMMIT


def _unknown(_message: mq.MessageExt) -> mq.TransactionState:
    return mq.TransactionState.UNKNOWN


def _case(way: str, run: Callable[[Transacting], Callable[[int], int]], goal: Goal | None) -> Case:
    def measure(bench: Bench) -> Measurement:
        def transactions() -> float:
            return rate_of(bench, Transacting, run)

        return paired("msg/s", transactions, lambda: ours_rate(bench), bench.plan.rounds, bench.say)

    return Case(f"transaction/{way}", f"{TITLE}, by {way}", "plain send", goal, measure)


CASES = (
    _case("send", lambda each: each.send_each, at_least(0.3)),
    _case("begin", lambda each: each.begin_each, at_least(0.3)),
)
