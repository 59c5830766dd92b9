"""What the tests have in common in which a real RocketMQ broker and mq take turns on one directory.

A side is whichever of them has the directory at the time. Either side sends the same sorts of messages, and a
ledger keeps what must come of each, whichever broker has the directory then.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import mq
from tests.oracle.agreement import messages_of
from tests.oracle.sending import SIZES, open_store
from tests.oracle.server import Server, ServerFailed

TOPIC = "orders"
QUEUE_COUNT = 4
TIMER_TOPIC = "rmq_sys_wheel_timer"
GROUP = "billing"
PAYERS = "payers"
# Short enough to wait for, and one that no test waits for. What fails comes again by levels 3, 4, ..., and a
# slow machine takes so long that it would come to the last of a few.
DELAYS_MS = (1000, 2000, 3000, 7000, *[5000] * 12, 3_600_000)
LEVELS = " ".join(f"{delay_ms // 1000}s" for delay_ms in DELAYS_MS)
HOUR_LEVEL = len(DELAYS_MS)
PATIENCE = 120.0  # A machine under load takes its time.
FAILING = b"old plain 3"
MANY_CHECKS = 1000

COMMIT, ROLLBACK, UNKNOWN = (
    mq.TransactionState.COMMIT,
    mq.TransactionState.ROLLBACK,
    mq.TransactionState.UNKNOWN,
)
STATES = {COMMIT: "COMMIT_MESSAGE", ROLLBACK: "ROLLBACK_MESSAGE", UNKNOWN: "UNKNOW"}

SETTINGS: dict[str, object] = {
    "messageDelayLevel": LEVELS,
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 3000,
    "transactionOpBatchInterval": 100,
    # At one a second the usual fifteen checks are over before a slow machine has closed its broker.
    "transactionCheckMax": MANY_CHECKS,
}
OPTIONS: dict[str, Any] = {
    "message_delay_level": LEVELS,
    "transaction_timeout": 1.0,
    "transaction_check_interval": 1.0,
    "transaction_check_max": MANY_CHECKS,
}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_beside(directory: Path) -> mq.LocalBroker:
    """mq over a directory that RocketMQ has as well."""
    return open_store(directory, SIZES, **OPTIONS)


class Side(Protocol):
    """What sends to the directory: RocketMQ's clients, or mq's."""

    def plain(self, body: bytes, queue_id: int) -> None: ...
    def level(self, body: bytes, level: int) -> None: ...
    def after(self, body: bytes, delay_ms: int) -> None: ...
    def at(self, body: bytes, deliver_at_ms: int) -> str | None: ...
    def recall(self, handle: str) -> None: ...
    def transact(self, body: bytes, state: mq.TransactionState) -> None: ...


class RocketMQSide:
    """RocketMQ's own producers."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def plain(self, body: bytes, queue_id: int) -> None:
        self._server.send(TOPIC, body, tags="T", keys="k", queue_id=queue_id)

    def level(self, body: bytes, level: int) -> None:
        self._server.send(TOPIC, body, tags="T", keys="k", delay_level=level)

    def after(self, body: bytes, delay_ms: int) -> None:
        self._server.send(TOPIC, body, tags="T", keys="k", delay_ms=delay_ms)

    def at(self, body: bytes, deliver_at_ms: int) -> str | None:
        return self._server.send(TOPIC, body, tags="T", keys="k", deliver_at_ms=deliver_at_ms).recall_handle

    def recall(self, handle: str) -> None:
        """The broker answers when it has the order; it counts once the order is in the wheel."""
        self._server.recall(TOPIC, handle)
        until(lambda: self._server.timer()["undispatched"] == 0, self._server.timer)
        _, end = self._server.queues()[TIMER_TOPIC, 0]
        until(lambda: self._server.timer()["commit_queue_offset"] >= end, self._server.timer)

    def transact(self, body: bytes, state: mq.TransactionState) -> None:
        self._server.transact(PAYERS, TOPIC, body, STATES[state], tags="T", keys="k")


class MQSide:
    """mq's producers."""

    def __init__(self, broker: mq.LocalBroker, check: Callable[[mq.MessageExt], mq.TransactionState]) -> None:
        self._broker = broker
        self._producer = mq.Producer(broker)
        self._transactions = mq.TransactionProducer(broker, PAYERS, check)

    def plain(self, body: bytes, queue_id: int) -> None:
        self._producer.send(_message(body), queue=mq.MessageQueue(TOPIC, self._broker.name, queue_id))

    def level(self, body: bytes, level: int) -> None:
        self._producer.send(_message(body, delay_level=level))

    def after(self, body: bytes, delay_ms: int) -> None:
        self._producer.send(_message(body, delay_ms=delay_ms))

    def at(self, body: bytes, deliver_at_ms: int) -> str | None:
        return self._producer.send(_message(body, deliver_at_ms=deliver_at_ms)).recall_handle

    def recall(self, handle: str) -> None:
        self._broker.recall(handle)

    def transact(self, body: bytes, state: mq.TransactionState) -> None:
        self._transactions.send(_message(body), lambda _message, _arg: state)

    def __enter__(self) -> MQSide:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._transactions.close()
        self._producer.close()


def _message(body: bytes, **when: Any) -> mq.Message:
    return mq.Message(TOPIC, body, tags="T", keys="k", **when)


@dataclass
class Ledger:
    """What was sent, and what must come of it: named by the bodies."""

    due: dict[bytes, int] = field(default_factory=dict)  # when it may be in its topic, and not before
    undecided: dict[bytes, mq.TransactionState] = field(default_factory=dict)  # what a check is to answer
    never: set[bytes] = field(default_factory=set)  # rolled back, recalled, or due after the test
    recalled: set[bytes] = field(default_factory=set)  # of these, in time
    unsure: set[bytes] = field(default_factory=set)  # recalled when it was about to come
    _handles: dict[bytes, str | None] = field(default_factory=dict)

    def check(self, message: mq.MessageExt) -> mq.TransactionState:
        """The application's answer about a half message."""
        return self.undecided.get(message.body, UNKNOWN)

    @property
    def answers(self) -> dict[str, str]:
        """The same for a producer of RocketMQ's."""
        return {body.decode(): STATES[state] for body, state in self.undecided.items()}

    @property
    def expected(self) -> Counter[bytes]:
        """Every body that must be in its topic in the end, once."""
        committed = {body for body, state in self.undecided.items() if state is COMMIT}
        return Counter([*self.due, *committed])

    def sure(self, bodies: Iterable[bytes]) -> Counter[bytes]:
        """Those of these of which it is known whether they come."""
        return Counter(body for body in bodies if body not in self.unsure)

    def send_plain(self, side: Side, name: str, count: int) -> None:
        for number in range(count):
            body = b"%s plain %d" % (name.encode(), number)
            self.due[body] = now_ms()
            side.plain(body, number % QUEUE_COUNT)

    def send_levels(self, side: Side, name: str, levels: Iterable[int]) -> None:
        for number, level in enumerate(levels):
            body = b"%s level %d, %d" % (name.encode(), level, number)
            delay = DELAYS_MS[level - 1]
            if level == HOUR_LEVEL:
                self.never.add(body)
            else:
                self.due[body] = now_ms() + delay
            side.level(body, level)

    def send_timers(self, side: Side, name: str, seconds: Sequence[float], *, second: int) -> None:
        """Some due after so many seconds; and in ms around one second of the clock, an hour and days away,
        and two recalled: one of them is left to the next broker."""
        prefix = name.encode()
        for wait in seconds:
            self.send_after(side, b"%s after %.1f s" % (prefix, wait), wait)
        for ms in (0, 1, 250, 500, 999, 1000):
            body = b"%s at %d ms" % (prefix, ms)
            self.due[body] = second + ms
            side.at(body, second + ms)
        for days in (0.04, 2.5, 2.9):
            body = b"%s in %.2f days" % (prefix, days)
            self.never.add(body)
            side.after(body, int(days * 86_400_000))
        for body in (b"%s recalled" % prefix, b"%s to be recalled" % prefix):
            self.due[body] = second + 600
            self._handles[body] = side.at(body, second + 600)
        self._recall(side, b"%s recalled" % prefix)

    def send_after(self, side: Side, body: bytes, seconds: float) -> None:
        delay_ms = int(seconds * 1000)
        self.due[body] = now_ms() + delay_ms
        side.after(body, delay_ms)

    def forgive(self, body: bytes) -> None:
        """It may come although it was recalled in time."""
        if body in self.recalled:
            self.recalled.remove(body)
            self.never.remove(body)
            self.unsure.add(body)

    def recall_the_other(self, side: Side, name: str) -> None:
        """By the handle that the side before was given."""
        self._recall(side, b"%s to be recalled" % name.encode())

    def _recall(self, side: Side, body: bytes) -> None:
        """Where a slow machine leaves no time for that, the message comes, or it may."""
        handle = self._handles[body]
        if handle is None or now_ms() >= self.due[body] - 2000:
            return
        last = self.due[body] - 1000
        try:
            side.recall(handle)
        except (ServerFailed, mq.NotPermitted, mq.RequestTimeout):
            if now_ms() < last:
                raise
        if now_ms() < last:
            self.never.add(body)
            self.recalled.add(body)
        else:
            self.unsure.add(body)
        del self.due[body]

    def send_transactions(self, side: Side, name: str) -> None:
        """Two that end at once, and three that are left open: a check is to commit two."""
        prefix = name.encode()
        self.due[b"%s committed" % prefix] = now_ms()
        side.transact(b"%s committed" % prefix, COMMIT)
        self.never.add(b"%s rolled back" % prefix)
        side.transact(b"%s rolled back" % prefix, ROLLBACK)
        for word, state in (("first", COMMIT), ("second", COMMIT), ("third", ROLLBACK)):
            body = b"%s %s undecided" % (prefix, word.encode())
            side.transact(body, UNKNOWN)
            self.undecided[body] = state


def stored(broker: mq.Broker, topic: str = TOPIC) -> list[mq.MessageExt]:
    """Every message of a topic, in the order in which they were stored."""
    queues = broker.topic(topic).queues
    found = [message for queue in queues for message in messages_of(broker, topic, queue.queue_id)]
    return sorted(found, key=lambda message: message.log_offset)


def until(true: Callable[[], object], what: Callable[[], object]) -> None:
    """Waits until something holds; what() tells what there is instead."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, what()
        time.sleep(0.05)


class Listener:
    """A push consumer of mq that keeps what it receives."""

    def __init__(self, broker: mq.Broker, failing: Iterable[bytes] = ()) -> None:
        self.received: list[mq.MessageExt] = []
        self._failing = frozenset(failing)
        self._changed = threading.Condition()
        self._consumer = mq.PushConsumer(broker, GROUP)
        self._consumer.subscribe(TOPIC, listener=self._listen)
        self._consumer.start()

    def _listen(self, message: mq.MessageExt) -> None:
        with self._changed:
            self.received.append(message)
            self._changed.notify_all()
        if message.body in self._failing:
            raise mq.Retry

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.received]

    def retries(self) -> list[int]:
        """How often what failed had failed, for each time that it came again."""
        return [message.reconsume_times for message in self.received if message.body == FAILING]

    def wait_for(self, bodies: Iterable[bytes]) -> None:
        missing = set(bodies)
        with self._changed:
            self._changed.wait_for(lambda: missing.issubset(self.bodies), PATIENCE)
            assert missing.issubset(self.bodies), missing.difference(self.bodies)

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._consumer.close()
