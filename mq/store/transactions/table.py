"""What became of each transaction: mq/transactions, mapped by all that send half messages, end or check them.

On disk: mq/transactions, in native byte order:

    offset  size  field
         0     8  stamp
         8     8  layout       raised when a field moves
        16     8  epoch        of the control file, whose half messages the entries are of
        24    16  boot_id
        40     8  ready        1: the entries are allocated, and may be touched
        48     8  tokens       how many were given to brokers
        56     8  unwritten    ends that no op record tells yet
        64     8  asked_begin  the copies of half messages that the last round of checks made: queue offsets
        72     8  asked_end
        80     8  round_ms     when that was
        88     4  event        futex: raised to wake the leader
        92     4  rounds       futex: raised with every round that asks

From byte 4096 on, 262,144 entries of 8 bytes; that of a transaction is at the queue offset of its first half
message modulo their number. From the lowest bit on: 4 bits are the state (MQ_TRANSACTION_... of
transactions.h), 22 the token of the process that is ending it, 28 that offset divided by 262,144, 10 a check
of all these.

A broker's token is a number whose byte of the file it has locked, from TOKEN_BYTES on: an entry that is being
ended by a token nobody locks has lost the process that did it. Byte 0 is locked while the table is made, byte
1 while a transaction without an entry is ended.

Nothing in it is needed after a reboot, or when a RocketMQ broker was here: it is emptied then. The file may
also be an older copy, put back while nobody used it: who opens it alone believes of it which transactions had
ended, and nothing of the others.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from mq.api.queues import Appender
from mq.api.results import MessageQueue, SendResult, SendStatus
from mq.api.transactions import Ender
from mq.errors import MessageInvalid, StoreLocked
from mq.fastpath import Guard, HalfMessages, LogHandle, bind_transactions
from mq.message import Message
from mq.store.directory.file_locks import byte_owner, lock_byte, open_own_file
from mq.store.log.writer import Writer
from mq.store.native import check, ffi, lib
from mq.store.os_errors import named_errors
from mq.store.shared.control import boot_id
from mq.store.shared.lock_guards import file_lock, locked_by_others
from mq.store.shared.waiting import Futex
from mq.store.store import Store

__all__ = ["End", "EndResult", "Entry", "TransactionTable"]

SIZE, HEADER_SIZE = lib.MQ_TRANSACTIONS_SIZE, lib.MQ_TRANSACTIONS_HEADER
MAKING_BYTE, UNLISTED_BYTE, TOKEN_BYTES = 0, 1, 1 << 32
UNWRITTEN_AT_ONCE, TOLD_AT_ONCE = 65_536, 256
STATE_MASK = 15
END_AT = ffi.offsetof("mq_receipt", "end")
CALLS = ("mq_transaction_prepare", "mq_transaction_end")
bind_transactions(*(int(ffi.cast("uintptr_t", ffi.addressof(lib, name))) for name in CALLS))


class End:
    """What TransactionTable.end finds: lib.MQ_END_..."""

    DONE, BEFORE, OTHERWISE = lib.MQ_END_DONE, lib.MQ_END_BEFORE, lib.MQ_END_OTHERWISE
    FOREIGN, NONE, LATE = lib.MQ_END_FOREIGN, lib.MQ_END_NONE, lib.MQ_END_LATE
    UNUSUAL = lib.MQ_END_UNUSUAL


class Entry:
    """States of a transaction in the table. Lower than 0: it has no entry."""

    ABSENT = -1
    PENDING, ENDING = lib.MQ_TRANSACTION_PENDING, lib.MQ_TRANSACTION_ENDING
    COMMITTED, ROLLED_BACK = lib.MQ_TRANSACTION_COMMITTED, lib.MQ_TRANSACTION_ROLLED_BACK


class EndResult(NamedTuple):
    """The message that an end stored."""

    queue: int  # its number
    end: int
    receipt: bytes


class TransactionTable:
    """The table of one store, for one broker. Raises what opening a file raises, StoreFull.

    timeout_ms: how long a transaction may take before it is asked about.
    """

    def __init__(self, store: Store, writer: Writer, timeout_ms: int) -> None:
        self._store = store
        self._writer = writer
        self.path = path = store.root / "mq" / "transactions"
        self._is_ready = False
        self._files = threading.RLock()  # held while a descriptor is used, which is not closed meanwhile
        self._fd = self._asking = -1
        try:
            with named_errors(path):
                header = self._mapped(timeout_ms)
            log = store.live()
            self._log_handle = LogHandle(log, int(ffi.cast("uintptr_t", log)))
            self._half_messages = HalfMessages(
                self._log_handle, self.handle, int(ffi.cast("uintptr_t", self.handle))
            )
            self.event = Futex(header, lib.MQ_TRANSACTIONS_EVENT_AT)
            self.rounds = Futex(header, lib.MQ_TRANSACTIONS_ROUNDS_AT)
        except BaseException:
            self._close_files()
            raise
        store.detach_with(self._forked)

    def _mapped(self, timeout_ms: int) -> mmap.mmap:
        """Open the file, made anew where it is not to be believed; its header."""
        path, store = self.path, self._store
        self._fd = open_own_file(path)
        store.close_in_child(self._fd)
        # Of its own: a lock of the descriptor that asks does not show, and a map would keep the locks of the
        # one that it was made of.
        self._asking = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        store.close_in_child(self._asking)
        with self._locked(MAKING_BYTE):
            if os.fstat(self._fd).st_size != SIZE:
                os.ftruncate(self._fd, 0)
                os.ftruncate(self._fd, SIZE)
            os.posix_fallocate(self._fd, 0, HEADER_SIZE)
            out = ffi.new("mq_transactions **")
            result = lib.mq_transactions_open(
                self._asking, store.word(lib.MQ_EPOCH), boot_id(), timeout_ms, out
            )
            check(result, str(path))
            # Unmapped when its last user lets go: a call in another thread, for instance.
            self.handle: Any = ffi.gc(out[0], lib.mq_transactions_close)
            if byte_owner(self._fd, TOKEN_BYTES, 0) is None:
                lib.mq_transactions_keep_ended(self.handle)
            self._token = self._sign()  # Before the next one looks whether it is alone.
        return mmap.mmap(self._asking, HEADER_SIZE)

    def _locked(self, byte: int) -> Guard:
        self._check_open()
        return file_lock(self.path, byte, "changing the table of transactions")

    def _check_open(self) -> None:
        if self._fd < 0:
            raise self._store.refusal()

    def _sign(self) -> int:
        while True:
            count = lib.mq_transactions_add(self.handle, lib.MQ_TRANSACTIONS_TOKENS, 1)
            token = int(count % lib.MQ_TRANSACTION_TOKEN_MAX) + 1
            if lock_byte(self._fd, TOKEN_BYTES + token):
                lib.mq_transactions_sign(self.handle, token)
                return token

    def ready(self, op_queue: int) -> None:
        """Have room for entries. op_queue is the number of the queue of op records. Raises StoreFull."""
        if self._is_ready:
            return
        lib.mq_transactions_set_ops(self.handle, op_queue)
        with named_errors(self.path), self._locked(MAKING_BYTE) as fd:
            os.posix_fallocate(fd, 0, SIZE)
        lib.mq_transactions_set(self.handle, lib.MQ_TRANSACTIONS_READY, 1)
        self._is_ready = True

    # Half messages, and their ends.

    def preparer(self, half_queue: int, version: int, queue: MessageQueue, target: bytes) -> Appender:
        """Stores half messages for one queue. half_queue is the number of the queue of half messages, target
        what all of one queue and group have in common. None, if a topic is another one than in this version
        of them."""
        slow_path = partial(self._prepare, queue)
        flushed = partial(self._flushed, half_queue) if self._store.sync else None
        return self._half_messages.preparer(
            queue, half_queue, version, target, slow_path, self._failed, flushed
        )

    def _prepare(
        self,
        queue: MessageQueue,
        store: Callable[[Message, bytes, int, str | None], SendResult | int | None],
        message: Message,
        body: bytes,
        sys_flag: int,
        unique_id: str | None = None,
    ) -> SendResult | None:
        """Store a half message by store(), unless it is one that no half message can be."""
        if message.delayed:
            raise MessageInvalid(
                "a half message cannot be delayed (delay_level, delay_ms, deliver_at_ms): commit the"
                " transaction, and have the consumer of its message send one that is"
            )
        if not message.plain and (key := message.dedup_key) is not None:
            self._writer.keyed.doubt(queue.topic, key, for_good=True)
        self._store.live()
        stored = store(message, body, sys_flag, unique_id)
        if isinstance(stored, int):
            raise self._store.refusal()  # The table is let go of: this broker is being closed.
        return stored

    def _failed(self, result: int, size: int, error: int) -> None:
        """Raises what a failed call stands for; `error` is the system's number."""
        ffi.errno = error
        raise self._writer.failure(result, size)

    def _flushed(self, half_queue: int, stored: SendResult) -> SendResult:
        """The result to hand out once the half message is on disk, or not in time."""
        receipt = stored._receipt
        end = int.from_bytes(receipt[END_AT : END_AT + 8], sys.byteorder)
        status = self._writer.flushed(end, half_queue, receipt)
        if status is SendStatus.SEND_OK:
            return stored
        name = stored.msg_id
        return SendResult(status, stored.queue, stored.queue_offset, name, stored._place, name)

    def ender(self, group: bytes, unusual: Ender, commit: object, rollback: object) -> Ender:
        """Ends transactions of one group where nothing speaks against it, else asks unusual() to."""
        if self._store.sync:
            return unusual  # It waits for the disk.
        return self._half_messages.ender(group, unusual, commit, rollback)

    def end(
        self, group: bytes, log_offset: int, queue_offset: int, state: int, from_check: bool
    ) -> tuple[int, EndResult | None]:
        """What lib.mq_transaction_end finds, and the message that it stored."""
        ended = ffi.new("mq_ended *")
        result = lib.mq_transaction_end(
            self.handle, self._store.live(), group, len(group), log_offset, queue_offset, state, from_check,
            ended,
        )  # fmt: skip
        if result < 0:
            raise self._writer.failure(result, 0)
        return result, _stored(ended)

    def admit(self, number: int, topics_version: int) -> None:
        """By this version of the topics, what is committed may be stored in the queue with this number."""
        lib.mq_transaction_admit(self.handle, number, topics_version)

    def store(self, log_offset: int, number: int, topics_version: int) -> bool:
        """Store the message of a half message in the queue with this number. Nothing is stored, and the
        result is False, if some topic has changed since topics_version."""
        log, ended = self._store.live(), ffi.new("mq_ended *")
        result = lib.mq_transaction_store(self.handle, log, log_offset, number, topics_version, ended)
        if result not in (0, lib.MQ_STALE):
            raise self._writer.failure(result, 0)
        return bool(result == 0)

    def flushed(self, ended: EndResult) -> None:
        """Wait until a message that was stored is on disk."""
        self._writer.flushed(ended.end, ended.queue, ended.receipt)

    # Entries.

    def state(self, name: int) -> tuple[int, int]:
        """Of a transaction, one of Entry; with the token of the process that is ending it."""
        return _entry(lib.mq_transaction_state(self.handle, name))

    def claim(self, name: int, *, insert: bool = False) -> tuple[int, int] | None:
        """None: this broker is ending it from now on. Else what state() says."""
        found = lib.mq_transaction_claim(self.handle, name, insert)
        return None if found == 0 else _entry(found)

    def inherit(self, name: int, token: int) -> bool:
        """Go on with what a dead process was ending; whether there is such."""
        return bool(lib.mq_transaction_inherit(self.handle, name, token) == 0)

    def settle(self, name: int, state: int) -> None:
        """What this broker was ending is PENDING, COMMITTED or ROLLED_BACK."""
        lib.mq_transaction_settle(self.handle, name, state)

    def copy_ended(self, queue_offset: int) -> None:
        """The transaction of this copy of a half message has ended."""
        lib.mq_transaction_copy_ended(self.handle, queue_offset)

    def is_alive(self, token: int) -> bool:
        """Whether a broker of this token is open."""
        with self._files:
            self._check_open()
            return token == self._token or byte_owner(self._asking, TOKEN_BYTES + token) is not None

    def held_by(self, token: int, doing: str, since: float) -> StoreLocked:
        """The error for an entry that the broker of a token keeps; since when, in monotonic seconds."""
        return locked_by_others(self.path, doing, since, TOKEN_BYTES + token)

    def unlisted(self) -> Guard:
        """For a with statement: one at a time ends a transaction that has no entry. Raises StoreLocked."""
        return self._locked(UNLISTED_BYTE)

    # For op records.

    def unwritten(self) -> Sequence[int]:
        """Queue offsets of half messages whose transactions have ended, which no op record tells."""
        offsets = array("q", bytes(8 * UNWRITTEN_AT_ONCE))
        count = lib.mq_transaction_unwritten(
            self.handle, ffi.from_buffer("int64_t[]", offsets), UNWRITTEN_AT_ONCE
        )
        return offsets[:count]

    def tell(
        self, op_queue: int, offsets: Sequence[int], handled: bytearray, base: int
    ) -> Iterator[tuple[int, int]]:
        """Store op records that tell of these: where, and the last that each tells of. `handled` has a byte
        for each queue offset from base on, which becomes 1."""
        places, control = array("q", offsets), self._store.control
        assert control is not None
        told, done = ffi.new("mq_told[]", TOLD_AT_ONCE), ffi.new("int *")
        while places:
            count = lib.mq_transaction_tell(
                self.handle, self._store.live(), op_queue, ffi.from_buffer("int64_t[]", places), len(places),
                ffi.from_buffer("uint8_t[]", handled), len(handled), base, told, TOLD_AT_ONCE,
                control.duties_term, done,
            )  # fmt: skip
            for record in told[0 : check(count, str(self._store.root))]:
                yield int(record.op_offset), int(record.last)
            del places[: done[0]]

    def unwritten_count(self) -> int:
        return int(lib.mq_transactions_get(self.handle, lib.MQ_TRANSACTIONS_UNWRITTEN))

    # Rounds of checks.

    @property
    def round_ms(self) -> int:
        """When the last one was."""
        return int(lib.mq_transactions_get(self.handle, lib.MQ_TRANSACTIONS_ROUND_TIME))

    @round_ms.setter
    def round_ms(self, time_ms: int) -> None:
        self._check_duties()
        lib.mq_transactions_set(self.handle, lib.MQ_TRANSACTIONS_ROUND_TIME, time_ms)

    def ask(self, begin: int, end: int) -> None:
        """Tell all producers that these are the copies of a round."""
        self._check_duties()
        lib.mq_transactions_set(self.handle, lib.MQ_TRANSACTIONS_ASKED_BEGIN, begin)
        lib.mq_transactions_set(self.handle, lib.MQ_TRANSACTIONS_ASKED_END, end)
        self.rounds.add()
        self.rounds.wake()

    def _check_duties(self) -> None:
        """Raises StoreLocked where another process has the duties by now."""
        control = self._store.control
        if control is not None:
            check(lib.mq_duties_check(control.handle, control.duties_term), str(self._store.root))

    def asked(self) -> tuple[int, int]:
        """Of the last round: see ask()."""
        words = lib.MQ_TRANSACTIONS_ASKED_BEGIN, lib.MQ_TRANSACTIONS_ASKED_END
        begin, end = (int(lib.mq_transactions_get(self.handle, word)) for word in words)
        return begin, end

    def notify(self) -> None:
        """Wake the leader."""
        self.event.add()
        self.event.wake()

    def _forked(self) -> None:
        self._files = threading.RLock()  # Another thread of the parent may have had it.
        self._fd = self._asking = -1  # The store closes the child's copies.
        self._detach()

    def _detach(self) -> None:
        self._log_handle.detach()
        self._half_messages.detach()

    def close(self) -> None:
        """Give the token back: what this broker left unfinished is another's to finish."""
        self._detach()
        self._close_files()

    def _close_files(self) -> None:
        with self._files:
            for fd in (self._fd, self._asking):
                self._store.closed_here(fd)
            self._fd = self._asking = -1


def _entry(found: int) -> tuple[int, int]:
    if found < 0:
        return Entry.ABSENT, 0
    return found & STATE_MASK & ~lib.MQ_TRANSACTION_UNWRITTEN, found >> 8


def _stored(ended: Any) -> EndResult | None:
    if not ended.receipt.size:
        return None
    receipt = ended.receipt
    return EndResult(int(ended.queue), int(receipt.end), ffi.buffer(ffi.addressof(receipt))[:])
