"""RocketMQ's broker and mq have one directory by turns: what one begins, any later one ends, once."""

from __future__ import annotations

from pathlib import Path

import pytest

import mq
from mq import MessageExt
from tests.oracle.crossing import (
    COMMIT,
    GROUP,
    HOUR_LEVEL,
    PAYERS,
    QUEUE_COUNT,
    SETTINGS,
    STATES,
    TIMER_TOPIC,
    TOPIC,
    UNKNOWN,
    Ledger,
    Listener,
    MQSide,
    RocketMQSide,
    Side,
    now_ms,
    open_beside,
    stored,
    until,
)
from tests.oracle.sending import SIZES
from tests.oracle.server import Server

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(1200)]

# Timers that are further away than these seconds are stored again and again until they are due.
ROLLING: dict[str, object] = {**SETTINGS, "timerRollWindowSlot": 4}


def committed(states: dict[bytes, mq.TransactionState]) -> set[bytes]:
    return {body for body, state in states.items() if state is COMMIT}


class Turns:
    """What all turns have in common."""

    def __init__(self, directory: Path, server: Server) -> None:
        self.directory = directory
        self.ledger = Ledger()
        self.received: list[bytes] = []
        self.second = 0  # around which timers of all turns are due
        self.turns_of_rocketmq: list[tuple[int, int]] = []  # when they began and ended
        self._server = server
        self._before: list[str] = []

    def _undecided(self) -> dict[bytes, mq.TransactionState]:
        """What the turn before has left to be decided in this one."""
        names = tuple(b"%s " % name.encode() for name in self._before)
        return {body: state for body, state in self.ledger.undecided.items() if body.startswith(names)}

    def _send(self, side: Side, name: str) -> None:
        ledger = self.ledger
        ledger.send_plain(side, name, QUEUE_COUNT)
        ledger.send_levels(side, name, [1, 4, HOUR_LEVEL])
        ledger.send_timers(side, name, [1.5, 8.0], second=self.second)
        ledger.send_transactions(side, name)
        for before in self._before:
            ledger.recall_the_other(side, before)
        self._before = [name]

    def rocketmq(self, name: str) -> None:
        """RocketMQ decides what was undecided before, and leaves as much behind."""
        server = self._server
        decidable = self._undecided()
        begin_ms = now_ms()
        server.start(self.directory, SIZES, ROLLING)
        with pytest.raises(mq.StoreLocked, match="open in a RocketMQ broker"):
            open_beside(self.directory)
        if not self._before:
            self.second = now_ms() // 1000 * 1000 + 25_000
            server.create_topic(TOPIC, QUEUE_COUNT)
        server.consume(GROUP, [TOPIC])
        server.be_asked(PAYERS, TOPIC, {body.decode(): STATES[state] for body, state in decidable.items()})
        self._send(RocketMQSide(server), name)
        asked: set[bytes] = set()

        def all_asked() -> bool:
            asked.update(one.body for one in server.asked(PAYERS, 0, wait=0))
            return asked >= decidable.keys()

        until(all_asked, lambda: asked)
        wanted = committed(decidable) | {
            body for body in self.ledger.due if body.startswith(b"%s plain" % name.encode())
        }
        wanted.add(b"%s committed" % name.encode())  # RocketMQ's producer waits for no answer to a commit.

        def all_came() -> bool:
            return wanted <= {one.body for one in server.received(GROUP, 0, wait=0)}

        until(all_came, lambda: wanted)
        self.received += [one.body for one in server.stop_consumer(GROUP)]
        server.stop()
        self.turns_of_rocketmq.append((begin_ms, now_ms()))

    def mq(self, name: str, *, last: bool = False) -> None:
        """mq does the same, and at last waits for everything."""
        decidable = self._undecided()

        def check(message: mq.MessageExt) -> mq.TransactionState:
            """Of the turn before, and of this one if it is the last. What RocketMQ was told of earlier it may
            ask again, for a halted machine has it ask twice before it hears the answer."""
            if last and message.body.startswith(b"%s " % name.encode()):
                return self.ledger.check(message)
            return decidable.get(message.body, UNKNOWN)

        with open_beside(self.directory) as broker:
            with Listener(broker) as listener, MQSide(broker, check) as side:
                self._send(side, name)
                if last:
                    listener.wait_for(set(self.ledger.expected).difference(self.received))
                    # Whatever else there is, of the same second, comes with the next.
                    self.ledger.send_after(side, b"last", 1.2)
                    listener.wait_for([b"last"])
                else:
                    wanted = [
                        body for body, state in decidable.items() if state is mq.TransactionState.COMMIT
                    ]
                    listener.wait_for([*wanted, b"%s committed" % name.encode()])
            self.received += listener.bodies
            if last:
                self.found = stored(broker)
                self._excuse(stored(broker, TIMER_TOPIC))

    def _excuse(self, timers: list[MessageExt]) -> None:
        """A message or its recall that RocketMQ stores once more is on its way for a moment. Where the
        machine halts then, the message's time comes before both are in the wheel again, and RocketMQ delivers
        it. mq never does."""
        for message in self.found:
            names = (None, f"{TOPIC}+{message.msg_id}")
            for begin_ms, end_ms in self.turns_of_rocketmq:
                if begin_ms <= message.store_time_ms <= end_ms and any(
                    begin_ms <= timer.store_time_ms <= end_ms
                    and "TIMER_ROLL_TIMES" in timer.properties
                    and timer.properties.get("UNIQ_KEY") == message.msg_id
                    and timer.properties.get("TIMER_DEL_UNIQKEY") in names
                    for timer in timers
                ):
                    self.ledger.forgive(message.body)


def test_everything_is_handed_over_and_comes_once(directory: Path, rocketmq: Server) -> None:
    rocketmq.launch()
    turns = Turns(directory, rocketmq)
    turns.rocketmq("first")
    turns.mq("second")
    turns.rocketmq("third")
    turns.mq("fourth", last=True)
    ledger = turns.ledger
    assert ledger.sure(message.body for message in turns.found) == ledger.expected
    assert ledger.sure(turns.received) == ledger.expected
    for message in turns.found:
        assert message.store_time_ms >= ledger.due.get(message.body, 0), message
