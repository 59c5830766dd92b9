"""Transactions of a local broker: half messages, and how they end.

The usual end is one call of the data plane (mq/store/native/transactions/transactions.h). What comes here
asks for more: somebody died in the middle of an end, the table has no entry of the transaction (after a
reboot, after a RocketMQ broker, or since very many others came after it), its topic was deleted, or it is
delayed. Then op records tell whether it has ended, and the index whether its message was stored: after that
it is stored, or it is not, and never twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from mq.api.queues import Appender, Appenders
from mq.api.results import MessageQueue, SendResult
from mq.api.transactions import Check, Ender, HalfMessage, TransactionState, Undecided
from mq.broker.delay.levels import SCHEDULE_TOPIC, destination
from mq.broker.delay.schedule import Schedule
from mq.broker.delay.timer import TIMER_TOPIC
from mq.broker.topics.registry import Catalog
from mq.broker.transactions import half_queues
from mq.broker.transactions.check_loop import Ledger
from mq.broker.transactions.checker import TransactionChecker, times_of
from mq.broker.transactions.half_queues import GIVEN_UP_TOPIC, GROUP, HALF_TOPIC, HalfTopic
from mq.broker.transactions.producers import LocalChecker
from mq.errors import MessageInvalid, MessageNotFound, NotPermitted, TopicNotFound
from mq.fastpath import time_left
from mq.message import Message, MessageExt
from mq.names import check_group
from mq.store.directory.settings import Settings
from mq.store.index.find_records import stored
from mq.store.log.delayed_append import DelayedAppend
from mq.store.log.first_send import FirstSend
from mq.store.log.reappend import Copies, changed
from mq.store.log.writer import Writer
from mq.store.queue.reader import Reader
from mq.store.shared.duty_event import DutyEvent
from mq.store.shared.lock_guards import thread_locks
from mq.store.store import Store
from mq.store.transactions.table import End, Entry, TransactionTable
from mq.uninterrupted import uninterrupted

__all__ = ["LocalTransactions"]

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
ENDS: dict[TransactionState, int] = {COMMIT: Entry.COMMITTED, ROLLBACK: Entry.ROLLED_BACK}
WORDS: dict[int, str] = {entry: state.name for state, entry in ENDS.items()}
TRANSACTION_BITS, COMMITTED_BITS = 12, 8
WAIT_SECONDS, LOOK_SECONDS = 10.0, 0.001  # for another process that is ending the same transaction
READ_SECONDS = 60.0  # for a thread that reads all op records; as long as one waits for the index
OFFSET_MAX = 1 << 62


class LocalTransactions:
    """See mq.api.broker.Transactions."""

    def __init__(
        self,
        store: Store,
        broker_name: str,
        catalog: Catalog,
        writer: Writer,
        delays: DelayedAppend,
        schedule: Schedule,
        committed: Callable[[str, MessageQueue], int | None],
        commit: Callable[[str, MessageQueue, int], object],
        *,
        settings: Callable[[], Settings],
    ) -> None:
        self._store = store
        self._broker_name = broker_name
        self._catalog = catalog
        self._writer = writer
        self._delays = delays
        self._schedule = schedule
        self._timeout_ms = int(settings().option("transaction_timeout") * 1000)
        self._reader = Reader(store, broker_name, catalog.version, lambda _queue: None)
        self._copies = Copies(store)
        self.halves = halves = HalfTopic(
            store, broker_name, self._reader, partial(committed, GROUP), catalog.have
        )
        self._opened: TransactionTable | None = None
        self._lock = threading.Lock()  # guards what is opened or made once
        own = store.root / "mq" / "transactions"
        self._ending = thread_locks(own, "ending a transaction without an entry")
        self._reading = thread_locks(own, "reading op records", READ_SECONDS)
        self._ledger: Ledger | None = None
        self._ops_read = 0
        self._checkers: set[LocalChecker] = set()
        self._commit = commit
        self.rounds = TransactionChecker(
            self.table,
            self._is_in_use,
            DutyEvent(store),
            halves,
            self._commit,
            lambda: times_of(settings()),
        )

    def table(self) -> TransactionTable:
        """The table of transactions, opened on first use."""
        return self._opened or uninterrupted(self._open_table, of=self._store)

    def _open_table(self) -> TransactionTable:
        self._catalog.check_writable()
        with self._lock:
            if self._opened is None:
                is_first = not self._is_in_use()
                self._opened = TransactionTable(self._store, self._writer, self._timeout_ms)
                if is_first:
                    DutyEvent(self._store).notify()  # The leader waits for a process that uses transactions.
            return self._opened

    def _is_in_use(self) -> bool:
        """Whether anybody has ever used transactions here."""
        path = self._store.root / "mq" / "transactions"
        return path.exists() or self.halves.end(self.halves.halves) > 0

    # Half messages.

    def preparer(self, queue: MessageQueue, group: str) -> Appender:
        """See Transactions.preparer."""
        check_group(group)
        topic, broker_name, queue_id = queue
        if self._catalog.is_new(topic, queue_id, broker_name):
            send = partial(Appenders(partial(self.preparer, group=group)), queue)
            return FirstSend(self._catalog, queue, self._writer.check, send)
        table = self.table()
        half_queue = self.halves.make()
        table.ready(self.halves.op_number())
        # After the topics were made; before it is asked again whether this one may be written.
        version = self._catalog.version[0]
        self._catalog.admit_write(topic, queue_id)
        number = self._copies.number(topic, queue_id, add=True)
        assert number is not None
        table.admit(number, version)
        return table.preparer(half_queue, version, queue, half_queues.belongs(group, topic, queue_id))

    # Their ends.

    def ender(self, group: str) -> Ender:
        """See Transactions.ender."""
        check_group(group)
        self._catalog.check_writable()
        return self.table().ender(group.encode(), partial(self._end, group), COMMIT, ROLLBACK)

    def _end(
        self,
        group: str,
        log_offset: int,
        queue_offset: int,
        state: TransactionState,
        from_check: bool = False,
        of: SendResult | Check | None = None,
    ) -> None:
        """See Ender."""
        if not isinstance(state, TransactionState):
            raise TypeError(f"the state of a transaction is a TransactionState, not {type(state).__name__}")
        self._catalog.check_writable()
        if state is UNKNOWN:
            return
        is_place = 0 <= log_offset < OFFSET_MAX and 0 <= queue_offset < OFFSET_MAX
        table = self.table()
        found, ended = End.NONE, None
        if is_place and from_check and state is COMMIT:
            # It may have been stored under another name, of which the table knows nothing.
            found = End.UNUSUAL
        elif is_place:
            found, ended = table.end(group.encode(), log_offset, queue_offset, state.value, from_check)
        if found == End.UNUSUAL:
            table.ready(self.halves.op_number())
            self._end_unusual(group, log_offset, queue_offset, state, from_check)
        elif found not in (End.DONE, End.BEFORE):
            self._refuse(found, group, log_offset, queue_offset, state)
        elif ended is not None and self._store.sync:
            table.flushed(ended)
        elif self._store.sync and state is COMMIT:
            self._store.flush_log()  # The process that stored it may have died before it did so.

    def _refuse(
        self, found: int, group: str, log_offset: int, queue_offset: int, state: TransactionState
    ) -> NoReturn:
        place = f"{log_offset} (queue offset {queue_offset})"
        if found == End.NONE:
            raise MessageNotFound(
                str(log_offset),
                f"there is no half message at log offset {place}: there never was, or retention took it",
            )
        what = f"the transaction of the half message at log offset {place}"
        if found == End.FOREIGN:
            message = self._reader.record(log_offset)
            owner = "another group" if message is None else f"group {HalfMessage(message).group}"
            raise NotPermitted(f"{what} is one of {owner}: group {group} may not end it")
        if found == End.LATE:
            raise NotPermitted(
                f"{what} is past its CHECK_IMMUNITY_TIME_IN_SECONDS: producers that are asked may end it"
            )
        other = ROLLBACK if state is COMMIT else COMMIT
        raise NotPermitted(f"{what} has ended with {other.name} before: {state.name} comes too late")

    def _end_unusual(
        self, group: str, log_offset: int, queue_offset: int, state: TransactionState, from_check: bool
    ) -> None:
        message = self._reader.record(log_offset)
        if message is None or (message.topic, message.queue_offset) != (
            self.halves.halves.topic,
            queue_offset,
        ):
            self._refuse(End.NONE, group, log_offset, queue_offset, state)
        if HalfMessage(message).group != group:
            self._refuse(End.FOREIGN, group, log_offset, queue_offset, state)
        own_ms = half_queues.immunity_ms(message.encoded)
        if own_ms is not None and not from_check:
            age_ms = time.time_ns() // 1_000_000 - message.born_time_ms
            if age_ms > max(own_ms, self._timeout_ms):
                self._refuse(End.LATE, group, log_offset, queue_offset, state)
        before = uninterrupted(lambda: self._end_once(message, state, from_check), of=self._store)
        if self._store.sync and state is COMMIT:
            self._store.flush_log()
        if before != ENDS[state]:
            self._refuse(End.OTHERWISE, group, log_offset, queue_offset, state)

    def _end_once(self, message: MessageExt, state: TransactionState, from_check: bool) -> int:
        """End the transaction of a half message, unless it has ended; how it ended, now or before."""
        table, name = self.table(), half_queues.name_of(message)
        left = time_left()
        wait = WAIT_SECONDS if left is None else min(left, WAIT_SECONDS)
        deadline = time.monotonic() + wait
        while True:
            seen = table.claim(name)
            if seen is None:
                return self._end_claimed(message, state, None, look=from_check)
            entry, token = seen
            if entry in WORDS:
                return entry
            if entry == Entry.ABSENT:
                with self._ending(), table.unlisted():
                    # First: where that fails, nothing is claimed. Somebody may have made an entry meanwhile.
                    before = self._ended_before(message)
                    if table.claim(name, insert=True) is None:
                        return self._end_claimed(message, state, before)
                    if table.state(name)[0] == Entry.ABSENT:
                        return self._end_unlisted(message, state, before)
            elif table.is_alive(token):
                if time.monotonic() > deadline:
                    raise table.held_by(token, "ending this transaction", deadline - wait)
                time.sleep(LOOK_SECONDS)
            else:
                before = self._ended_before(message)
                if table.inherit(name, token):
                    return self._end_claimed(message, state, before)

    def _end_claimed(
        self, message: MessageExt, state: TransactionState, before: int | None, *, look: bool = False
    ) -> int:
        """The entry is this broker's to end; `before` is how it had ended, if anybody knows."""
        table, name = self.table(), half_queues.name_of(message)
        how = Entry.PENDING
        try:
            if look and self._is_committed(message):
                before = ENDS[COMMIT]
            how = self._store_once(message, state) if before is None else before
        finally:
            table.settle(name, how)
        if message.queue_offset != name:
            table.copy_ended(message.queue_offset)
        return how

    def _end_unlisted(self, message: MessageExt, state: TransactionState, before: int | None) -> int:
        """There is no room for an entry: an op record tells at once what became of the transaction."""
        how: int = self._store_once(message, state) if before is None else before
        copies = self._copies_of(message.msg_id)
        if before is None or copies:
            of_copies = (copy.queue_offset for copy in copies)
            places = sorted({half_queues.name_of(message), message.queue_offset, *of_copies})
            list(self.halves.tell(self.table(), places, Ledger(places[-1] + 1, 0)))
        return how

    def _store_once(self, message: MessageExt, state: TransactionState) -> int:
        if state is COMMIT:
            self._store_message(message)
        return ENDS[state]

    def _store_message(self, message: MessageExt) -> None:
        wanted = destination(message)
        if wanted is None:
            raise MessageInvalid(f"half message {message.msg_id} does not say where it belongs")
        while not self._is_stored(message, wanted):
            pass  # Some topic has changed meanwhile, perhaps this one.

    def _is_stored(self, message: MessageExt, wanted: tuple[str, int]) -> bool:
        version = self._catalog.route_version()
        place = self._catalog.due_place(*wanted)
        if place is None:
            raise TopicNotFound(wanted[0])
        known_as: dict[str, str | None] = {"TRAN_PREPARED_QUEUE_OFFSET": str(half_queues.name_of(message))}
        if message.delay_level:
            level = self._schedule.level(message.delay_level)
            self._schedule.put_aside(*place, message, known_as, level, message.reconsume_times)
            return True
        if message.delay_ms is not None or message.deliver_at_ms is not None:
            queue = MessageQueue(place[0], self._broker_name, place[1])
            as_sent = Message.restored(place[0], b"", 0, False, message.encoded)
            delayed = self._delays.prepare(queue, as_sent, len(message.stored_body))
            if delayed is not None:  # Else it is due.
                properties, times = changed(delayed.properties, known_as), message.reconsume_times
                self._copies.append(TIMER_TOPIC, 0, message, properties, reconsume_times=times)
                self._delays.appended(delayed)
                return True
        number = self._copies.number(*place, add=True)
        assert number is not None
        return self.table().store(message.log_offset, number, version)

    # What became of a transaction that the table does not tell of.

    def _ended_before(self, message: MessageExt) -> int | None:
        """How the transaction of a half message ended; None if it has not."""
        if self._is_committed(message):
            return ENDS[COMMIT]
        return None if self._is_undecided(message) else ENDS[ROLLBACK]

    def _is_committed(self, half: MessageExt) -> bool:
        """Whether the message of a half message, or of one with its unique id, is stored."""
        unique_id, group = half.msg_id, HalfMessage(half).group
        # A delayed one has the bits of the half message.
        places = ((HalfMessage(half).topic, COMMITTED_BITS), (SCHEDULE_TOPIC, None), (TIMER_TOPIC, None))
        for topic, bits in places:
            for found in self._found(topic, unique_id):
                if bits in (None, found.sys_flag & TRANSACTION_BITS) and HalfMessage(found).group == group:
                    return True
        return False

    def _found(self, topic: str, unique_id: str) -> list[MessageExt]:
        """The records of a topic with this unique id, newest first."""
        found = stored(self._store, topic, unique_id, broker_name=self._broker_name)
        return [message for message in found if message.msg_id == unique_id]

    def _is_undecided(self, message: MessageExt) -> bool:
        """Whether no op record tells that the transaction of this half message has ended."""
        if self._known().is_open(message.queue_offset):
            return True
        return bool(self._copies_of(message.msg_id) or self._found(GIVEN_UP_TOPIC, message.msg_id))

    def _copies_of(self, unique_id: str) -> list[MessageExt]:
        """The half messages with this unique id that nobody has told of."""
        ledger = self._known()
        return [found for found in self._found(HALF_TOPIC, unique_id) if ledger.is_open(found.queue_offset)]

    def _known(self) -> Ledger:
        """What op records tell by now. Kept, since there may be many of them."""
        with self._reading():
            if self._ledger is None:
                self._ledger, self._ops_read = self.halves.ledger()
            else:
                self._ledger.advance(self.halves.begin(self.halves.halves))
                self._ops_read = self.halves.read_ops(self._ledger, self._ops_read)
            self._ledger.settle()
            return self._ledger

    # For people.

    def undecided(self) -> list[Undecided]:
        """See Transactions.undecided."""
        self._store.live()
        halves, found = self.halves, []
        open_ones = halves.open_ones(self._known(), halves.end(halves.halves))
        newest = {message.msg_id: message for message in open_ones}
        queue = halves.given_up
        begin = self._reader.min_offset(queue) if halves.end(queue) else 0
        given_up = {message.msg_id: message for message in halves.all(queue, begin, halves.end(queue))}
        for msg_id, message in given_up.items():
            half = newest.get(msg_id)
            if half is None or half_queues.was_given_up(half, message):
                newest.pop(msg_id, None)
                name = half_queues.named(message)
                if not (name is not None and self._has_entry_ended(name)) and not self._is_committed(message):
                    found.append(_undecided(message, given_up=True))
        found += [
            _undecided(message, given_up=False)
            for message in newest.values()
            if not self._has_entry_ended(half_queues.name_of(message))
        ]
        return sorted(found, key=lambda each: (each.message.born_time_ms, each.message.log_offset))

    def _has_entry_ended(self, name: int) -> bool:
        # A read-only process goes by op records alone, which are some seconds behind.
        return not self._store.read_only and self.table().state(name)[0] in WORDS

    def resume(self, msg_id: str) -> None:
        """See Transactions.resume."""
        self._catalog.check_writable()
        if not isinstance(msg_id, str):
            raise TypeError(f"a message id is a str, not {type(msg_id).__name__}")
        with self._ending(), self.table().unlisted():
            waiting = self._found(GIVEN_UP_TOPIC, msg_id) if msg_id else []
            if not waiting:
                raise MessageNotFound(
                    msg_id,
                    f"no transaction was given up whose message has the id {msg_id!r}: it has ended, is still"
                    " checked, or never was",
                )
            message = waiting[0]
            name = half_queues.named(message)
            entry = Entry.ABSENT if name is None else self.table().state(name)[0]
            if entry in WORDS or self._is_committed(message):
                how = WORDS.get(entry, COMMIT.name)
                raise NotPermitted(f"the transaction of message {msg_id} has ended with {how} meanwhile")
            if not all(half_queues.was_given_up(half, message) for half in self._copies_of(msg_id)):
                return  # It was resumed before.
            self.halves.resume(message)

    # The producers that are asked.

    def enlist(self, group: str, client_id: str) -> LocalChecker:
        """See Transactions.enlist."""
        check_group(group)
        self._catalog.check_writable()
        if not isinstance(client_id, str) or not client_id:
            raise ValueError(f"client_id is {client_id!r}: give some text")
        checker = LocalChecker(self._store, self.table(), self.halves, group, self._checkers.discard)
        self._checkers.add(checker)
        return checker

    def close(self) -> None:
        """Let go of the files."""
        for checker in list(self._checkers):
            checker.leave()
        if self._opened is not None:
            self._opened.close()
        self._reader.close()
        vars(self).pop("rounds", None)  # They lead back here: nothing waits for the collector.


def _undecided(message: MessageExt, *, given_up: bool) -> Undecided:
    half = HalfMessage(message)
    return Undecided(half, half.group, half.times_checked, given_up)
