"""What one process does for the transactions of all: op records, and rounds of checks.

    4096 B or 3 s   op records of transactions that have ended    transactionOpMsgMaxSize, …OpBatchInterval
    30 s            a round: which producers are asked (see check_loop.py)      transactionCheckInterval

Both are known in shared memory at once (mq/store/transactions/table.py); op records say it for good. In
between it sleeps, and costs nothing.

A round stores copies of half messages, and asks about them only then: a leader that dies in between leaves
some that nobody asked about, and the next round finds them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from mq.api.results import MessageQueue
from mq.broker.transactions.check_loop import Action, Half, Ledger, Rules, due
from mq.broker.transactions.half_queues import GROUP, HalfTopic, half_of, names_of
from mq.message import MessageExt
from mq.store.directory.settings import Settings
from mq.store.shared.duty_event import DutyEvent
from mq.store.transactions.table import UNWRITTEN_AT_ONCE, Entry, TransactionTable

__all__ = ["TransactionChecker", "times_of"]

OP_INTERVAL_MS = 3000
OP_SIZE = 4096
OP_PLACE_SIZE = 8  # bytes of a place in an op record, or about that
PAUSE_MS = 10  # between two looks at the whole table
READ_AHEAD = 32
IDLE = 3600.0  # seconds


def times_of(settings: Settings) -> tuple[Rules, int]:
    """The rules of a round by a store's settings, and the ms from one round to the next."""
    names = ("transaction_timeout", "transaction_check_interval")
    timeout_ms, interval_ms = (int(settings.option(name) * 1000) for name in names)
    return Rules(timeout_ms, settings.option("transaction_check_max"), settings.retention_ms), interval_ms


class TransactionChecker:
    """A duty of the leader: see mq.broker.leader.Duty.

    table() is the table of transactions, opened once is_in_use(); the store's duty event is notified when
    that comes to be. commit(group, queue, offset) says how far a queue is done. times() are the rules of a
    round, and the ms from one to the next.
    """

    name = "mq-transactions"
    save_interval = 10.0

    def __init__(
        self,
        table: Callable[[], TransactionTable],
        is_in_use: Callable[[], bool],
        event: DutyEvent,
        halves: HalfTopic,
        commit: Callable[[str, MessageQueue, int], object],
        times: Callable[[], tuple[Rules, int]],
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._open_table = table
        self._is_in_use = is_in_use
        self._event = event
        self._halves = halves
        self._commit = commit
        self.times = times
        self._rules, self._interval_ms = times()
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._lock = threading.Lock()  # Of what is told by save() as well as by run().
        self._table: TransactionTable | None = None
        self._ledger: Ledger | None = None
        self._ops_read = 0
        self._stopping: Callable[[], bool] = lambda: False
        self._done = (-1, -1)
        self._unwritten_since: int | None = None
        self._written_at = 0
        self._names: dict[int, int] = {}  # of copies that were there when the duties were taken over
        self._message: MessageExt | None = None  # that a round looks at
        self._also: list[int] = []  # copies of what has ended, for the next op record

    def run(self, stopping: Callable[[], bool]) -> None:
        """See Duty.run."""
        while True:
            heard = self._event.heard()
            if stopping():
                return
            if self._is_in_use():
                break
            self._event.wait(heard, IDLE)
        self._stopping = stopping
        self._table = table = self._open_table()
        with self._lock:
            self._begin(table)
        while True:
            # Before anything is looked at: a notification that comes after is not slept through.
            heard = table.event.value
            if stopping():
                return
            wait_ms = self.step()
            table.event.wait(heard, wait_ms / 1000)

    def _begin(self, table: TransactionTable) -> None:
        """Rounds go on where those of a dead one would have, unless that is long ago: then one interval from
        now, or at once where retention would come before that to what nobody was asked about."""
        self._rules, self._interval_ms = self.times()
        now, last = self._clock(), table.round_ms
        self._ledger = None
        if not last <= now <= last + 2 * self._interval_ms:
            oldest = next(
                self._halves.open_ones(self._known(table), self._halves.end(self._halves.halves)), None
            )
            is_old = oldest is not None and now - oldest.store_time_ms > self._rules.retention_ms // 2
            table.round_ms = now - self._interval_ms if is_old else now

    def step(self) -> float:
        """Do what is due; in how many ms something will be."""
        table = self._table or self._open_table()
        with self._lock:
            now = self._clock()
            wait_ms = self._write_due(table, now)
            next_round = table.round_ms + self._interval_ms
            if now >= next_round or table.round_ms > now:
                table.round_ms = now
                self._rules, self._interval_ms = self.times()
                self._round(table, now)
                next_round = now + self._interval_ms
            return max(PAUSE_MS, min(wait_ms, next_round - self._clock()))

    # Op records.

    def _write_due(self, table: TransactionTable, now: int) -> float:
        count = table.unwritten_count()
        if not count:
            self._unwritten_since = None
            return float("inf")
        if self._unwritten_since is None or self._unwritten_since > now:
            self._unwritten_since = now
        left = self._unwritten_since + OP_INTERVAL_MS - now
        if 0 <= now - self._written_at < PAUSE_MS:
            return min(left, PAUSE_MS)
        if count * OP_PLACE_SIZE < OP_SIZE and left > 0:
            return left
        self._write(table)
        return float("inf")

    def _write(self, table: TransactionTable) -> None:
        """Have op records tell of all that has ended."""
        self._unwritten_since, self._written_at = None, self._clock()
        while True:
            places, also = table.unwritten(), self._also
            if not places and not also:
                return
            self._also = []
            ledger = self._known(table)
            # A RocketMQ broker goes by the newest copy, whichever was ended.
            also += ledger.copies_of(places)
            for ended in (places, also):
                for op_offset, last in self._halves.tell(table, ended, ledger):
                    if op_offset == self._ops_read:  # Else another one's lies before it, and both are read.
                        ledger.noted(op_offset, last)
                        self._ops_read += 1
            if len(places) < UNWRITTEN_AT_ONCE:
                return

    def _known(self, table: TransactionTable) -> Ledger:
        """The ledger, made of what the queues tell if this is the first time that it is asked for."""
        if self._ledger is None:
            ledger, self._ops_read = self._halves.ledger()
            for place in table.unwritten():
                ledger.handle(place)  # Told of soon: not to be read for what it is a copy of.
            end = self._halves.end(self._halves.halves)
            self._names = names_of(lambda: self._halves.open_ones(ledger, end))
            for place, name in self._names.items():
                ledger.copied(name, place)
            self._ledger = ledger
        return self._ledger

    # Rounds.

    def _round(self, table: TransactionTable, now: int) -> None:
        halves = self._halves
        end = halves.end(halves.halves)
        if not end:
            return
        ledger = self._known(table)
        self._write(table)
        self._ops_read = halves.read_ops(ledger, self._ops_read)
        begin, asked_end = end, 0
        try:
            for action, half in self._due(table, ledger, end, now):
                place = self._do(ledger, action, half)
                if action is Action.ASK:
                    begin, asked_end = min(begin, place), place + 1
                if self._stopping():
                    break  # The next one goes on where the cursor is.
        finally:
            if asked_end:
                table.ask(begin, asked_end)
        if self._also:
            self._write(table)
        self._commit_done(ledger)

    def _due(
        self, table: TransactionTable, ledger: Ledger, end: int, now: int
    ) -> Iterator[tuple[Action, Half]]:
        def read(place: int) -> Half | None:
            message = self._halves.read(place, ledger.run(place, READ_AHEAD))
            self._message = message
            return None if message is None else half_of(message, self._names.get(place))

        def has_ended(name: int) -> bool:
            return table.state(name)[0] in (Entry.COMMITTED, Entry.ROLLED_BACK)

        return due(ledger, end, read, has_ended, self._clock, now, self._rules)

    def _do(self, ledger: Ledger, action: Action, half: Half) -> int:
        """What a round has to do about one half message; where a copy of it is."""
        message = self._message
        assert message is not None
        if action is Action.FORGET:
            self._also.append(half.place)
            return -1
        if action is Action.GIVE_UP:
            self._halves.give_up(message, half.name)
            ledger.given_up(half.name)
            return -1
        times = half.times_checked + 1 if action is Action.ASK else None
        place = self._halves.copy(message, half.name, times)
        ledger.copied(half.name, place)
        return place

    def _commit_done(self, ledger: Ledger) -> None:
        done = ledger.settle()
        if done == self._done:
            return
        # What a half message became is on disk before it is said to be handled.
        self._halves.flush()
        self._commit(GROUP, self._halves.halves, done[0])
        if self._halves.end(self._halves.ops):
            self._commit(GROUP, self._halves.ops, done[1])
        self._done = done

    # Duty.

    def wake(self) -> None:
        """See Duty.wake."""
        if self._table is not None:
            self._table.notify()
        else:
            self._event.notify()

    def save(self) -> None:
        """See Duty.save."""
        # While run() is at work it sees to that itself: the flush of the leader does not wait for a round.
        # It may have been told to stop before it saw that there is a transaction.
        table = self._table or (self._open_table() if self._is_in_use() else None)
        if table is not None and self._lock.acquire(blocking=False):
            try:
                self._write(table)
            finally:
                self._lock.release()

    def give_up(self) -> None:
        """See Duty.give_up."""
        self._table = self._ledger = None
