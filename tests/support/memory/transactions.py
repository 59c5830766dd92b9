"""Transactions of the broker in memory: half messages in a list, under the broker's one lock.

No thread asks here. Who waits to be asked makes the rounds that are due, and so does who looks at what is
undecided.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from mq.api.broker import Appender, Check, Ender, Undecided
from mq.api.results import MessageQueue, SendResult, SendStatus
from mq.api.transactions import HalfMessage, TransactionState
from mq.errors import MessageInvalid, MessageNotFound, NotPermitted
from mq.message import Message, MessageExt
from mq.names import check_group
from mq.properties import value_of
from tests.support.memory.timers import Keeps

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
IMMUNITY = b"CHECK_IMMUNITY_TIME_IN_SECONDS\x01"

Place = tuple[int, int]  # in the log, and in the half topic


class Log(Keeps, Protocol):
    """What transactions ask of their broker, its lock held."""

    def route_version(self) -> int: ...
    def check_writable(self, topic: str, queue_id: int) -> object: ...
    def writable(self, topic: str, queue_id: int) -> list[MessageExt]: ...


@dataclass
class _Half:
    """A half message with all its copies, of which the last counts."""

    group: str
    queue: MessageQueue
    records: list[MessageExt]
    times: int = 0
    ended: TransactionState | None = None
    is_given_up: bool = False

    @property
    def newest(self) -> MessageExt:
        return self.records[-1]


@dataclass
class _GroupOfProducers:
    live: list[MemoryChecker] = field(default_factory=list)
    asked: list[_Half] = field(default_factory=list)


class MemoryTransactions:
    """All transactions of one broker. `changed` guards everything and is told of every change."""

    def __init__(
        self,
        broker: Log,
        changed: threading.Condition,
        clock: Callable[[], int],
        unique_id: Callable[[], str],
        *,
        timeout: float,
        check_interval: float,
        check_max: int,
    ) -> None:
        self.broker = broker
        self.changed = changed
        self._clock = clock
        self._unique_id = unique_id
        self._timeout_ms = int(timeout * 1000)
        self._interval_ms = int(check_interval * 1000)
        self._check_max = check_max
        self._next_round = clock() + self._interval_ms
        self._records: list[MessageExt] = []  # the half topic
        self._halves: list[_Half] = []
        self._places: dict[Place, _Half] = {}
        self._groups: dict[str, _GroupOfProducers] = {}

    def _prepare(
        self,
        queue: MessageQueue,
        group: str,
        message: Message,
        body: bytes,
        sys_flag: int,
        unique_id: str | None = None,
    ) -> SendResult:
        check_group(group)
        if message.delayed:
            raise MessageInvalid("a half message cannot be delayed")
        with self.changed:
            self.broker.writable(queue.topic, queue.queue_id)
            name = unique_id or self._unique_id()
            properties = message.encoded + _encoded(
                TRAN_MSG="true",
                PGROUP=group,
                REAL_TOPIC=queue.topic,
                REAL_QID=str(queue.queue_id),
                UNIQ_KEY=name,
                __transactionId__=name,
            )
            half = _Half(group, queue, [])
            self._halves.append(half)
            stored = self._put(half, body, properties, flag=message.flag, sys_flag=sys_flag)
        return SendResult(
            SendStatus.SEND_OK,
            queue,
            stored.queue_offset,
            name,
            (bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big"), stored.log_offset),
            name,
        )

    def preparer(self, queue: MessageQueue, group: str) -> Appender:
        with self.changed:
            version = self.broker.route_version()
            self.broker.check_writable(queue.topic, queue.queue_id)

        def prepare(
            message: Message, body: bytes, sys_flag: int, unique_id: str | None = None, /
        ) -> SendResult | None:
            if self.broker.route_version() != version:
                return None
            return self._prepare(queue, group, message, body, sys_flag, unique_id)

        return prepare

    def _end(
        self,
        group: str,
        log_offset: int,
        queue_offset: int,
        state: TransactionState,
        from_check: bool = False,
        of: SendResult | Check | None = None,
    ) -> None:
        check_group(group)
        if state is TransactionState.UNKNOWN:
            return
        with self.changed:
            half = self._places.get((log_offset, queue_offset))
            if half is None:
                raise MessageNotFound(f"{log_offset}/{queue_offset}")
            if half.group != group:
                raise NotPermitted(f"this is a transaction of group {half.group}, not of {group}")
            if half.ended is state:
                return
            if half.ended is not None:
                raise NotPermitted(f"this transaction has ended already: {half.ended.name}")
            own_ms = _immunity_ms(half)
            age_ms = self._clock() - half.newest.born_time_ms
            if own_ms is not None and not from_check and age_ms > max(own_ms, self._timeout_ms):
                raise NotPermitted("this transaction is ended by checks alone by now")
            if state is TransactionState.COMMIT:
                topic, queue_id = half.queue.topic, half.queue.queue_id
                newest, original = half.newest, half.records[0]
                self.broker.keep(
                    topic,
                    queue_id,
                    self.broker.writable(topic, queue_id),
                    newest.stored_body,
                    newest.encoded,
                    flag=original.flag,
                    sys_flag=newest.sys_flag | 8,
                    born_time_ms=newest.born_time_ms,
                    prepared_offset=newest.log_offset,
                )
            half.ended = state
            self.changed.notify_all()

    def ender(self, group: str) -> Ender:
        check_group(group)
        return partial(self._end, group)

    def enlist(self, group: str, client_id: str) -> MemoryChecker:
        check_group(group)
        with self.changed:
            checker = MemoryChecker(self, group, client_id)
            self.group(group).live.append(checker)
            return checker

    def undecided(self) -> list[Undecided]:
        with self.changed:
            self.look()
            return [
                Undecided(HalfMessage(half.newest), half.group, half.times, half.is_given_up)
                for half in self._halves
                if half.ended is None
            ]

    def resume(self, msg_id: str) -> None:
        with self.changed:
            self.look()
            for half in self._halves:
                if half.is_given_up and half.newest.msg_id == msg_id:
                    half.is_given_up, half.times = False, 0
                    self._copy(half)
                    return
        raise MessageNotFound(msg_id)

    # What checkers ask, the lock held.

    def group(self, name: str) -> _GroupOfProducers:
        return self._groups.setdefault(name, _GroupOfProducers())

    def check_of(self, half: _Half) -> Check:
        newest = half.newest
        return Check(HalfMessage(newest), half.group, newest.log_offset, newest.queue_offset)

    def until_round(self) -> float:
        return (self._next_round - self._clock()) / 1000

    def look(self) -> None:
        """Make the round that is due."""
        now = self._clock()
        if now < self._next_round:
            return
        self._next_round = now + self._interval_ms
        for group in self._groups.values():
            group.asked.clear()
        for half in self._halves:
            age_ms = now - half.newest.born_time_ms
            if half.ended is None and not half.is_given_up and age_ms > self._wait_ms(half):
                if half.times >= self._check_max:
                    half.is_given_up = True
                    continue
                half.times += 1
                self._copy(half)
                if self.group(half.group).live:
                    self.group(half.group).asked.append(half)
        self.changed.notify_all()

    def _wait_ms(self, half: _Half) -> int:
        own_ms = _immunity_ms(half)
        return self._timeout_ms if own_ms is None else own_ms

    def _copy(self, half: _Half) -> None:
        newest = half.newest
        self._put(
            half,
            newest.stored_body,
            newest.encoded,
            sys_flag=newest.sys_flag,
            born_time_ms=newest.born_time_ms,
        )

    def _put(
        self,
        half: _Half,
        body: bytes,
        properties: bytes,
        *,
        flag: int = 0,
        sys_flag: int,
        born_time_ms: int | None = None,
    ) -> MessageExt:
        stored = self.broker.keep(
            HALF_TOPIC,
            0,
            self._records,
            body,
            properties,
            flag=flag,
            sys_flag=sys_flag,
            born_time_ms=born_time_ms,
        )
        half.records.append(stored)
        self._places[stored.log_offset, stored.queue_offset] = half
        return stored


class MemoryChecker:
    """See mq.api.broker.Checker."""

    def __init__(self, transactions: MemoryTransactions, group: str, client_id: str) -> None:
        self.client_id = client_id
        self._transactions = transactions
        self._group = group
        self._poked = False
        self._has_left = False

    def next(self, wait: float) -> Check | None:
        transactions = self._transactions
        deadline = time.monotonic() + wait
        with transactions.changed:
            while True:
                transactions.look()
                asked = transactions.group(self._group).asked
                while asked and not self._has_left:
                    half = asked.pop(0)
                    if half.ended is None:
                        return transactions.check_of(half)
                left = deadline - time.monotonic()
                if self._poked or self._has_left or left <= 0:
                    self._poked = False
                    return None
                transactions.changed.wait(min(left, max(0.001, transactions.until_round())))

    def poke(self) -> None:
        with self._transactions.changed:
            self._poked = True
            self._transactions.changed.notify_all()

    def leave(self) -> None:
        with self._transactions.changed:
            self._has_left = True
            live = self._transactions.group(self._group).live
            if self in live:
                live.remove(self)
            self._transactions.changed.notify_all()


def _immunity_ms(half: _Half) -> int | None:
    given = value_of(half.newest.encoded, IMMUNITY)
    return int(given) * 1000 if given and given.isdecimal() else None


def _encoded(**properties: str) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
