"""Transactions of the broker in memory: half messages in a list, under the broker's one lock.

No thread checks here: the rounds that are due are made by a checker that waits, and by undecided().
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mq.api.broker import (
    Appender,
    Check,
    Ender,
    MessageQueue,
    SendResult,
    SendStatus,
    Transactions,
    Undecided,
)
from mq.api.transactions import HalfMessage
from mq.api.transactions import TransactionState as State
from mq.errors import MessageInvalid, MessageNotFound, NotPermitted
from mq.message import Message, MessageExt
from mq.names import check_group
from tests.support.records import STORE_HOST, encoded, fields_of, unique_id

if TYPE_CHECKING:
    from tests.support.memory.broker import MemoryBroker

HALF_QUEUE = MessageQueue("RMQ_SYS_TRANS_HALF_TOPIC", "mq", 0)


@dataclass
class _Half:
    """A half message with all its copies, of which the last counts."""

    group: str
    queue: MessageQueue
    copies: list[MessageExt] = field(default_factory=list)
    times: int = 0
    is_asked: bool = False  # for the next live producer of its group
    is_given_up: bool = False
    ended: State | None = None

    @property
    def newest(self) -> MessageExt:
        return self.copies[-1]

    @property
    def immunity_ms(self) -> int | None:
        """Its immunity time, if it has one."""
        given = self.newest.properties.get("CHECK_IMMUNITY_TIME_IN_SECONDS", "")
        return int(given) * 1000 if given.isdecimal() else None


class MemoryTransactions(Transactions):
    """All transactions of one broker."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.live: Counter[str] = Counter()  # producers of each group
        self._timeout_ms = int(broker.transaction_timeout * 1000)
        self._interval_ms = int(broker.transaction_check_interval * 1000)
        self.next_round = broker.clock() + self._interval_ms
        self._halves: list[_Half] = []

    def preparer(self, queue: MessageQueue, group: str) -> Appender:
        check_group(group)

        def prepare(message: Message, body: bytes, sys_flag: int, given_id: str | None = None) -> SendResult:
            if message.delayed:
                raise MessageInvalid("a half message cannot be delayed")
            own_id, topic, queue_id = given_id or unique_id(), queue.topic, queue.queue_id
            more = {"TRAN_MSG": "true", "PGROUP": group, "REAL_TOPIC": topic, "REAL_QID": queue_id}
            properties = message.encoded + encoded({**more, "UNIQ_KEY": own_id, "__transactionId__": own_id})
            fields = {"flag": message.flag, "sys_flag": sys_flag, "born_time_ms": self.broker.clock()}
            with self.broker.changed:
                stored = self.broker.store(HALF_QUEUE, body, properties, **fields)
                self._halves.append(_Half(group, queue, [stored]))
            place = STORE_HOST, stored.log_offset
            return SendResult(SendStatus.SEND_OK, queue, stored.queue_offset, own_id, place, own_id)

        return self.broker.until_changed(queue, prepare)

    def ender(self, group: str) -> Ender:
        check_group(group)

        def end(
            log_offset: int, queue_offset: int, state: State, from_check: bool = False, of: object = None
        ) -> None:
            with self.broker.changed:
                half = self._half_at(log_offset, queue_offset)
                if half.group != group:
                    raise NotPermitted(f"this is a transaction of group {half.group}, not of {group}")
                if state in {half.ended, State.UNKNOWN}:
                    return
                if half.ended is not None:
                    raise NotPermitted(f"this transaction has ended already: {half.ended.name}")
                newest, own_ms = half.newest, half.immunity_ms
                age_ms = self.broker.clock() - newest.born_time_ms
                if own_ms is not None and not from_check and age_ms > max(own_ms, self._timeout_ms):
                    raise NotPermitted("this transaction is ended by checks alone by now")
                if state is State.COMMIT:
                    self.broker.check_writable(half.queue)
                    fields = {**fields_of(newest), "prepared_offset": newest.log_offset}
                    fields["sys_flag"] |= State.COMMIT.value
                    self.broker.store(half.queue, newest.stored_body, newest.encoded, **fields)
                half.ended = state

        return end

    def _half_at(self, *place: int) -> _Half:
        for half in self._halves:
            if any((each.log_offset, each.queue_offset) == place for each in half.copies):
                return half
        raise MessageNotFound(f"no half message at {place}")

    def enlist(self, group: str, client_id: str) -> MemoryChecker:
        check_group(group)
        with self.broker.changed:
            self.live[group] += 1
            return MemoryChecker(self, group)

    def undecided(self) -> list[Undecided]:
        with self.broker.changed:
            self.look()
            found = [half for half in self._halves if half.ended is None]
            return [Undecided(HalfMessage(x.newest), x.group, x.times, x.is_given_up) for x in found]

    def resume(self, msg_id: str) -> None:
        with self.broker.changed:
            self.look()
            for half in self._halves:
                if half.is_given_up and half.newest.msg_id == msg_id:
                    half.is_given_up, half.times = False, 0
                    self._copy(half)
                    return
        raise MessageNotFound(msg_id)

    def asked(self, group: str) -> Check | None:
        """A transaction that a producer of this group is to look at; the lock is held."""
        for half in self._halves:
            if half.is_asked and half.group == group and half.ended is None:
                half.is_asked, newest = False, half.newest
                return Check(HalfMessage(newest), group, newest.log_offset, newest.queue_offset)
        return None

    def look(self) -> None:
        """Make the round that is due; the lock is held."""
        now = self.broker.clock()
        if now < self.next_round:
            return
        self.next_round = now + self._interval_ms
        for half in self._halves:
            own_ms, age_ms = half.immunity_ms, now - half.newest.born_time_ms
            wait_ms = self._timeout_ms if own_ms is None else own_ms
            is_due = half.ended is None and not half.is_given_up and age_ms > wait_ms
            half.is_given_up |= is_due and half.times >= self.broker.transaction_check_max
            half.is_asked = is_due and not half.is_given_up and self.live[half.group] > 0
            if is_due and not half.is_given_up:
                half.times += 1
                self._copy(half)

    def _copy(self, half: _Half) -> None:
        newest = half.newest
        stored = self.broker.store(HALF_QUEUE, newest.stored_body, newest.encoded, **fields_of(newest))
        half.copies.append(stored)


class MemoryChecker:
    """See mq.api.transactions.Checker."""

    def __init__(self, transactions: MemoryTransactions, group: str) -> None:
        self._transactions, self._group = transactions, group
        self._changed = transactions.broker.changed
        self._is_poked = self._has_left = False

    def next(self, wait: float) -> Check | None:
        deadline = time.monotonic() + wait
        with self._changed:
            while True:
                self._transactions.look()
                left = deadline - time.monotonic()
                if not self._has_left and (found := self._transactions.asked(self._group)) is not None:
                    return found
                if self._is_poked or self._has_left or left <= 0:
                    self._is_poked = False
                    return None
                until_round = (self._transactions.next_round - self._transactions.broker.clock()) / 1000
                self._changed.wait(min(left, max(0.001, until_round)))

    def wakeup(self) -> None:
        with self._changed:
            self._is_poked = True
            self._changed.notify_all()

    def leave(self) -> None:
        with self._changed:
            self._transactions.live[self._group] -= not self._has_left
            self._has_left = True
            self._changed.notify_all()
