"""The queues of transactions: half messages, and op records, which say whose transactions have ended.

    RMQ_SYS_TRANS_HALF_TOPIC     queue 0: every half message, with REAL_TOPIC, REAL_QID, PGROUP, TRAN_MSG and
                                 __transactionId__, which is its unique id
    RMQ_SYS_TRANS_OP_HALF_TOPIC  queue 0: op records, tag d, of places in the other queue: "0,1,5,", or as
                                 older brokers wrote, one place in each: "5"
    TRANS_CHECK_MAX_TIME_TOPIC   queue 0: half messages that nobody is asked about any more

How far both of the first two are done is committed for the group CID_RMQ_SYS_TRANS. Where the log lost its
end, or is an older one, that is forgotten (see Offsets.clamp): op records tell what has ended in it.

A copy of a half message has TRAN_PREPARED_QUEUE_OFFSET, the place of the first one, which names the
transaction, and TRANSACTION_CHECK_TIMES, how often it was asked about.

RocketMQ: broker/transaction/queue/TransactionalMessageBridge.java, TransactionalOpBatchService.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from mq.api.results import MessageQueue, PullStatus
from mq.api.transactions import HalfMessage
from mq.broker.transactions.check_loop import Half, Ledger
from mq.errors import StoreCorrupted
from mq.message import MessageExt
from mq.names import TRANSACTION_GROUP
from mq.properties import value_of
from mq.store.log.reappend import Copies, changed
from mq.store.queue.reader import Reader
from mq.store.store import Store
from mq.store.transactions.table import TransactionTable

__all__ = [
    "GIVEN_UP_TOPIC",
    "GROUP",
    "HALF_TOPIC",
    "OP_TOPIC",
    "HalfTopic",
    "belongs",
    "half_of",
    "immunity_ms",
    "name_of",
    "named",
    "names_of",
    "places_in",
    "was_given_up",
]

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP = TRANSACTION_GROUP
IMMUNITY = b"CHECK_IMMUNITY_TIME_IN_SECONDS\x01"
NAME, TIMES = "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES"
MARKS_OF_COPIES = (NAME.encode() + b"\x01", TIMES.encode() + b"\x01")
READ_COUNT, READ_SIZE = 32, 256 << 10
PLACE_MAX, DIGITS_MAX = 1 << 56, 18

log = logging.getLogger("mq.transactions")


def belongs(group: str, topic: str, queue_id: int) -> bytes:
    """The properties that all half messages of one queue and group have in common."""
    given = {"TRAN_MSG": "true", "PGROUP": group, "REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
    return b"".join(f"{name}\x01{value}\x02".encode() for name, value in given.items())


def named(message: MessageExt) -> int | None:
    """Which transaction a copy of a half message is of, or what was stored out of one; None if it does not
    say so."""
    text = value_of(message.encoded, NAME.encode() + b"\x01")
    return int(text) if text and text.isdecimal() and len(text) < 16 else None


def name_of(message: MessageExt) -> int:
    """Which transaction a half message is of: the place of the first one, which none is before."""
    name = named(message)
    return message.queue_offset if name is None or name > message.queue_offset else name


def immunity_ms(encoded: bytes) -> int | None:
    """How long a half message is left alone, of its own wish; None if it has none that makes sense."""
    text = value_of(encoded, IMMUNITY)
    return int(text) * 1000 if text and text.isdecimal() and len(text) < 10 else None


def names_of(read: Callable[[], Iterable[MessageExt]]) -> dict[int, int]:
    """Which of the half messages that read() gives, in their order, are copies: by place, the names of their
    transactions.

    A RocketMQ broker does not write down what a copy is of that it has asked about. Then its unique id tells,
    if the first one, or another copy, is among them.
    """
    copies = [message for message in read() if any(mark in message.encoded for mark in MARKS_OF_COPIES)]
    found = {message.queue_offset: name for message in copies if (name := named(message)) is not None}
    unnamed = {_known_as(message) for message in copies if message.queue_offset not in found}
    if unnamed:
        names: dict[tuple[str, str], int] = {}
        for message in read():
            known_as, place = _known_as(message), message.queue_offset
            if known_as in unnamed:
                name = names.setdefault(known_as, found.get(place, place))
                if place != name and HalfMessage(message).times_checked:
                    found.setdefault(place, name)
    return {place: name for place, name in found.items() if place != name}


def _known_as(message: MessageExt) -> tuple[str, str]:
    return message.msg_id, HalfMessage(message).group


def half_of(message: MessageExt, name: int | None = None) -> Half:
    """What of a half message the check loop decides by; its name, where that is known from elsewhere."""
    return Half(
        message.queue_offset,
        name_of(message) if name is None else name,
        HalfMessage(message).times_checked,
        message.born_time_ms,
        message.store_time_ms,
        immunity_ms(message.encoded),
    )


def was_given_up(half: MessageExt, waiting: MessageExt) -> bool:
    """Whether this half message is the one that was given up, which waits there, and was not resumed since. A
    round says only at its end that it is handled: until then it is as open as one that was resumed."""
    return half.log_offset < waiting.log_offset


def places_in(body: bytes, end: int = PLACE_MAX) -> list[int]:
    """The places below `end` that an op record tells of, in either form; what is no number is left out."""
    words = body.split(b",")
    if body.translate(None, b"0123456789,") or len(max(words, key=len)) > DIGITS_MAX:
        words = [word for word in words if word.isdigit() and len(word) <= DIGITS_MAX]
    places = list(map(int, filter(None, words)))
    return places if max(places, default=-1) < end else [place for place in places if place < end]


class HalfTopic:
    """Both queues of one store, and those given up.

    committed(queue) is how far one is done. ensure(topic, queue_count) makes a topic if there is none.
    """

    def __init__(
        self,
        store: Store,
        broker_name: str,
        reader: Reader,
        committed: Callable[[MessageQueue], int | None],
        ensure: Callable[[str, int], None],
    ) -> None:
        self.halves = MessageQueue(HALF_TOPIC, broker_name, 0)
        self.ops = MessageQueue(OP_TOPIC, broker_name, 0)
        self.given_up = MessageQueue(GIVEN_UP_TOPIC, broker_name, 0)
        self._store = store
        self._reader = reader
        self._committed = committed
        self._ensure = ensure
        self._copies = Copies(store)
        self._of_rounds = Copies(store, of_duties=True)
        self._ahead: dict[int, MessageExt] = {}

    def make(self) -> int:
        """Have the topics; the number of the queue of half messages."""
        for topic in (HALF_TOPIC, OP_TOPIC):
            self._ensure(topic, 1)
        number = self._copies.number(HALF_TOPIC, 0, add=True)
        assert number is not None
        return number

    def end(self, queue: MessageQueue) -> int:
        """Where a queue ends."""
        number = self._copies.number(queue.topic, queue.queue_id, add=False)
        return 0 if number is None else self._copies.next_offset(number)

    def begin(self, queue: MessageQueue) -> int:
        """How far a queue is done."""
        if not self.end(queue):
            return 0
        return max(self._committed(queue) or 0, self._reader.min_offset(queue))

    def ledger(self) -> tuple[Ledger, int]:
        """What op records tell of the half messages that are not done; where they end."""
        ledger = Ledger(self.begin(self.halves), self.begin(self.ops))
        op_end = self.read_ops(ledger, ledger.op_base)
        if self.end(self.halves) and self._committed(self.halves) is None:
            for place in list(self._copies_between(ledger)):
                ledger.handle(place)
        return ledger, op_end

    def _copies_between(self, ledger: Ledger) -> Iterator[int]:
        """Copies whose transactions have ended, where op records tell of the first and the newest."""
        for message in self.open_ones(ledger, self.end(self.halves)):
            name = name_of(message)
            if ledger.base <= name < message.queue_offset and not ledger.is_open(name):
                yield message.queue_offset

    def read_ops(self, ledger: Ledger, begin: int) -> int:
        """Tell a ledger of all op records from there on; where they end."""
        op_end = self.end(self.ops)
        end = self.end(self.halves)  # After the other one: an op record tells of what was there before it.
        for record in self.all(self.ops, begin, op_end):
            ledger.told(record.queue_offset, places_in(record.body, end) if record.tags == "d" else ())
            begin = record.queue_offset + 1
        return begin

    def all(self, queue: MessageQueue, begin: int, end: int) -> Iterator[MessageExt]:
        """The messages of a queue; what cannot be read is left out."""
        end, is_flushed = min(end, self.end(queue)), not self._store.sync or self._store.read_only
        while begin < end:
            try:
                found = self._reader.pull(queue, begin, READ_COUNT, READ_SIZE, None, 0.0)
            except StoreCorrupted as error:
                if error.queue_offset is None:
                    raise
                log.warning("a record of transactions is lost: %s", error)
                begin = error.queue_offset + 1
                continue
            if found.status is PullStatus.FOUND:
                for message in found.messages:
                    if message.queue_offset < end:
                        yield message
                begin = found.next_offset
            elif begin < found.min_offset:
                begin = found.min_offset
            elif not is_flushed:
                self._store.flush_log()  # Nobody sees what is not on disk.
                is_flushed = True
            else:
                return

    def read(self, place: int, count: int) -> MessageExt | None:
        """A half message, when some of those after it will be asked for as well; None if it is lost."""
        message = self._ahead.pop(place, None)
        if message is None:
            found = self.all(self.halves, place, place + min(count, READ_COUNT))
            self._ahead = {message.queue_offset: message for message in found}
            message = self._ahead.pop(place, None)
        return message

    def open_ones(self, ledger: Ledger, end: int) -> Iterator[MessageExt]:
        """The half messages below `end` that the ledger does not know to be handled."""
        place = ledger.base
        while (place := ledger.next_open(place)) < end:
            count = ledger.run(place, min(READ_COUNT, end - place))
            yield from self.all(self.halves, place, place + count)
            place += count

    def copy(self, message: MessageExt, name: int, times_checked: int | None) -> int:
        """Store a half message once more, as one that was asked about so often (None: as before); where."""
        values = {NAME: str(name)}
        if times_checked is not None:
            values[TIMES] = str(times_checked)
        return self._append(self._of_rounds, HALF_TOPIC, message, values)

    def give_up(self, message: MessageExt, name: int) -> None:
        """Put a half message where it waits to be resumed."""
        self._ensure(GIVEN_UP_TOPIC, 1)
        self._append(self._of_rounds, GIVEN_UP_TOPIC, message, {NAME: str(name)})
        half = HalfMessage(message)
        log.warning(
            "transaction %s of group %s, for topic %s, is given up after %d checks without an answer: mq DIR"
            " transactions --resume %s has it checked again",
            *(half.msg_id, half.group, half.topic, half.times_checked, half.msg_id),
        )

    def resume(self, message: MessageExt) -> None:
        """Have one that was given up among the half messages again."""
        self.make()
        self._append(self._copies, HALF_TOPIC, message, {TIMES: "0"})

    def _append(self, copies: Copies, topic: str, message: MessageExt, values: dict[str, str]) -> int:
        properties = changed(message.encoded, values)
        return copies.append(topic, 0, message, properties, reconsume_times=0).queue_offset

    def tell(
        self, table: TransactionTable, places: Sequence[int], ledger: Ledger
    ) -> Iterator[tuple[int, int]]:
        """Store op records that tell of these places, and note it: where each is, and the last that it tells
        of."""
        handled = ledger.room(max(places, default=-1) + 1)
        return table.tell(self.op_number(), places, handled, ledger.base)

    def op_number(self) -> int:
        """The number of the queue of op records."""
        self._ensure(OP_TOPIC, 1)
        number = self._copies.number(OP_TOPIC, 0, add=True)
        assert number is not None
        return number

    def flush(self) -> None:
        """Have everything on disk that was stored before."""
        self._store.flush_log()
