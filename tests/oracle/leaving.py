"""What mq leaves behind for a RocketMQ broker: everything that takes time, begun and not ended."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from dataclasses import dataclass, field
from pathlib import Path

import mq
from tests.oracle.crossing import (
    FAILING,
    GROUP,
    HOUR_LEVEL,
    QUEUE_COUNT,
    TOPIC,
    UNKNOWN,
    Ledger,
    Listener,
    MQSide,
    now_ms,
    open_beside,
    until,
)


@dataclass
class Left:
    """What is known of it."""

    ledger: Ledger = field(default_factory=Ledger)
    received: list[bytes] = field(default_factory=list)  # by mq's consumer
    checks: dict[bytes, int] = field(default_factory=dict)  # how often mq asked, by body
    offsets: dict[int, int] = field(default_factory=dict)  # of the group


def leave(directory: Path) -> Left:
    """Makes the store and closes it."""
    left = Left()
    _write(directory, left, killed=None)
    return left


def leave_killed(directory: Path, scratch: Path) -> Left:
    """The same in a process that is killed at the end."""
    process = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(directory, scratch))
    process.start()
    process.join(600)
    assert process.exitcode == -signal.SIGKILL
    left = pickle.loads(scratch.read_bytes())
    assert isinstance(left, Left)
    return left


def _write_and_die(directory: Path, scratch: Path) -> None:
    _write(directory, Left(), killed=scratch)


def _write(directory: Path, left: Left, *, killed: Path | None) -> None:
    ledger = left.ledger
    asked: list[tuple[bytes, int]] = []

    def check(message: mq.MessageExt) -> mq.TransactionState:
        asked.append((message.body, int(message.properties["TRANSACTION_CHECK_TIMES"])))
        return UNKNOWN

    with open_beside(directory) as broker:
        broker.create_topic(TOPIC, QUEUE_COUNT)
        with Listener(broker, failing=[FAILING]) as listener, MQSide(broker, check) as side:
            ledger.send_plain(side, "old", 12)
            ledger.send_transactions(side, "old")
            ledger.send_levels(side, "old", [1, 1, 4, 4, HOUR_LEVEL])
            ledger.send_timers(side, "old", [1.5, 9.0], second=now_ms() // 1000 * 1000 + 10_000)
            # One that ends at once is asked about too, where the machine halts before its end.
            until(lambda: {body for body, _ in asked} >= set(ledger.undecided), lambda: asked)
            listener.wait_for([*(body for body in ledger.due if b"plain" in body), b"old after 1.5 s"])
            # A failure that was told may not be stored yet: that it came again shows that it is.
            until(lambda: 1 in listener.retries(), listener.retries)
            ledger.send_levels(side, "late", [1, 2, 2])
            ledger.send_after(side, b"late after 2.2 s", 2.2)
            if killed is not None:
                _note(left, listener, asked, broker)
                killed.write_bytes(pickle.dumps(left))
                os.kill(os.getpid(), signal.SIGKILL)
        _note(left, listener, asked, broker)


def _note(left: Left, listener: Listener, asked: list[tuple[bytes, int]], broker: mq.LocalBroker) -> None:
    left.received = listener.bodies
    left.checks = dict(asked)
    left.offsets = {queue.queue_id: offset for queue, offset in broker.group(GROUP).offsets(TOPIC).items()}
