"""Messages of the log, stored once more: because they are due, were handed back, or are dead.

A copy keeps what the message was born with (time, host, body as stored, flags, unique id) and gets a place,
a store time and properties of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mq.errors import MessageInvalid
from mq.message import MessageExt
from mq.store.native import check, ffi, lib
from mq.store.store import Store

__all__ = ["Copies", "Copy", "Turn", "TurnOver", "changed"]

ID_SIZES = (32, 56)
BORN_HOST_AT, BORN_HOST_V6 = 48, 0x10
CHECKSUM, CHECKSUM_SIZE = b"__CRC32#\x01", 20
FLUSH_TIMEOUT_MS = 60_000
ENVELOPE, RECEIPT = ffi.typeof("mq_append_options *"), ffi.typeof("mq_receipt *")
RELATIVE = 2  # The code of a delayed message counts from its store time.


class Copy(NamedTuple):
    """Where a copy went."""

    log_offset: int
    queue_offset: int
    store_time_ms: int
    end: int


class Turn(NamedTuple):
    """For how long a consumer owns the queue of a message that it hands back: as long as the word at this
    address says this number. kept: the memory that the word is in."""

    address: int
    number: int
    kept: Any


class TurnOver(Exception):
    """The queue is another consumer's by now, which gets the message. Nothing was stored."""


def changed(encoded: bytes, values: Mapping[str, str | None]) -> bytes:
    """A property string with some values put in or, where None, taken out. Its checksum goes: a copy gets
    one of its own."""
    if not values and encoded[-CHECKSUM_SIZE:].startswith(CHECKSUM):
        return encoded[:-CHECKSUM_SIZE]
    names = {name.encode() + b"\x01" for name in values}
    kept = [
        piece
        for piece in encoded.split(b"\x02")
        if piece and not piece.startswith(CHECKSUM) and piece[: piece.find(b"\x01") + 1] not in names
    ]
    kept += [f"{name}\x01{value}".encode() for name, value in values.items() if value]
    return b"".join(piece + b"\x02" for piece in kept)


class Copies:
    """Appends copies to the queues of one store, whatever may be sent there. From any thread.

    of_duties: they are part of the duties, and refused once another process has these (StoreLocked).
    """

    def __init__(self, store: Store, *, of_duties: bool = False) -> None:
        self._store = store
        self._of_duties = of_duties
        self._numbers: dict[tuple[str, int], int] = {}

    def number(self, topic: str, queue_id: int, *, add: bool) -> int | None:
        """The queue's place in the table, which `add` makes; None if there is none."""
        name = topic.encode()
        number = lib.mq_log_queue(self._store.live(), name, len(name), queue_id, add)
        return None if number == lib.MQ_MISSING else check(number, str(self._store.root))

    def next_offset(self, number: int) -> int:
        """Where the queue's next message goes."""
        control = self._store.control
        assert control is not None
        return control.next_offset(number)

    def append(
        self,
        topic: str,
        queue_id: int,
        message: MessageExt,
        properties: bytes,
        *,
        reconsume_times: int,
        delay_ms: int | None = None,
        turn: Turn | None = None,
    ) -> Copy:
        """Store a copy; with delay_ms its unit says that it is due so long after it is stored.

        Raises StoreFull, StorePoisoned, MessageInvalid, and TurnOver once the turn is over; then nothing was
        stored.
        """
        record = message.record
        sys_flag = message.sys_flag
        envelope, receipt = ffi.new(ENVELOPE), ffi.new(RECEIPT)
        envelope.born_time = message.born_time_ms
        envelope.reconsume_times = reconsume_times
        envelope.has_tags_code = 0 if delay_ms is None else RELATIVE
        envelope.tags_code = delay_ms or 0
        envelope.has_born_host = 1
        control = self._store.control
        envelope.term = control.duties_term if self._of_duties and control is not None else 0
        if turn is not None:
            envelope.turn_at, envelope.turn = ffi.cast("int64_t *", turn.address), turn.number
        size = 20 if sys_flag & BORN_HOST_V6 else 8
        ffi.memmove(envelope.born_host, record[BORN_HOST_AT : BORN_HOST_AT + size], size)
        body = message.stored_body
        known_as: Any = ffi.NULL
        if b"UNIQ_KEY\x01" not in properties and len(message.msg_id) in ID_SIZES:
            known_as = ffi.new("char[]", message.msg_id.encode())
        while True:
            number = self._numbers.get((topic, queue_id))
            if number is None:
                number = self.number(topic, queue_id, add=True)
                assert number is not None
                self._numbers[topic, queue_id] = number
            result = lib.mq_append(
                self._store.live(), number, -1, message.flag, sys_flag, body, len(body),
                properties, len(properties), known_as, envelope, receipt,
            )  # fmt: skip
            if result != lib.MQ_GONE:
                break
            self._numbers.pop((topic, queue_id), None)  # deleted, and perhaps made again
        if result == lib.MQ_TOO_LARGE:
            raise MessageInvalid(
                f"message {message.msg_id} cannot be stored again for {topic}: with {len(properties):,} bytes"
                " of properties it is over a limit of RocketMQ's format"
            )
        if result == lib.MQ_DEPOSED and turn is not None:
            raise TurnOver
        check(result, str(self._store.root))
        return Copy(
            int(receipt.log_offset), int(receipt.queue_offset), int(receipt.store_time), int(receipt.end)
        )

    def epoch(self) -> int:
        """In which life of the table the numbers are right."""
        return self._store.word(lib.MQ_EPOCH)

    def last_store_ms(self) -> int:
        """When the last message there is was stored."""
        return self._store.word(lib.MQ_LAST_STORE_TIME)

    def queue_of(self, number: int) -> tuple[str, int] | None:
        """Topic and id of the queue with this number; None if it was deleted."""
        control = self._store.control
        assert control is not None
        return next(((topic, queue) for at, topic, queue in control.queues() if at == number), None)

    def flush(self, end: int | None = None) -> None:
        """Have everything below this log offset (None: everything) on disk, and tell readers that wait for
        it."""
        if end is None:
            end = self._store.end()
        check(lib.mq_log_flush(self._store.live(), end, -1, FLUSH_TIMEOUT_MS), str(self._store.root))

    def repair_tail(self) -> None:
        """Finish, or take back, the append in whose middle a process died."""
        log = self._store.live()
        check(lib.mq_log_repair_tail(log, lib.MQ_LOCK_TIMEOUT_MS), str(self._store.root))
