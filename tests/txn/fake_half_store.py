"""The queues of transactions and their table in memory, on a clock that is set, for the transaction checker.

What HalfTopic reads out of its queues is its own doing; here are only the queues. Its users can be
made to die, before or after any single record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import Mock

from mq.api.results import MessageQueue
from mq.broker.transactions.check_loop import Ledger, Rules
from mq.broker.transactions.checker import TransactionChecker
from mq.broker.transactions.half_queues import (
    GIVEN_UP_TOPIC,
    GROUP,
    HALF_TOPIC,
    OP_TOPIC,
    HalfTopic,
    belongs,
    name_of,
)
from mq.message import MessageExt
from mq.store.log.reappend import changed
from mq.store.transactions.table import Entry
from tests.support.store.encoder import Record, properties

BEGIN_MS = 1_700_000_000_000
PRODUCERS = "payers"


class Died(Exception):
    """Of a process: nothing after it was done."""


class FakeHalfStore(HalfTopic):
    """The three queues, and the table."""

    def __init__(self) -> None:
        self.halves = MessageQueue(HALF_TOPIC, "mq", 0)
        self.ops = MessageQueue(OP_TOPIC, "mq", 0)
        self.given_up = MessageQueue(GIVEN_UP_TOPIC, "mq", 0)
        self.now = BEGIN_MS
        self.queues: dict[MessageQueue, list[MessageExt]] = {self.halves: [], self.ops: [], self.given_up: []}
        self.done: dict[MessageQueue, int] = {}
        self._committed = self.done.get
        self.table = Table()
        self.steps_left: int | None = None  # until the user dies
        self._ahead = {}
        self._copies = self._of_rounds = Mock()  # _append() stands in for both
        self._ensure = lambda _topic, _queue_count: None

    # What HalfTopic has of a store.

    def begin(self, queue: MessageQueue) -> int:
        return self.done.get(queue, 0)

    def end(self, queue: MessageQueue) -> int:
        return len(self.queues[queue])

    def all(self, queue: MessageQueue, begin: int, end: int) -> Iterator[MessageExt]:
        yield from self.queues[queue][begin:end]

    def tell(self, table: object, places: Sequence[int], ledger: Ledger) -> Iterator[tuple[int, int]]:
        """Three to a record."""
        for at in range(0, len(places), 3):
            part = places[at : at + 3]
            op_offset = self.write_op(part)
            self.table.written(part)
            for place in part:
                ledger.handle(place)
            yield op_offset, max(part)

    def write_op(self, places: Sequence[int]) -> int:
        return self._put(self.ops, (",".join(map(str, places)) + ",").encode(), b"TAGS\x01d\x02")

    def flush(self) -> None:
        self._step()

    def _append(self, _copies: object, topic: str, message: MessageExt, values: dict[str, str]) -> int:
        queue = MessageQueue(topic, "mq", 0)
        return self._put(queue, b"", changed(message.encoded, values), born_ms=message.born_time_ms)

    def _put(self, queue: MessageQueue, body: bytes, encoded: bytes, *, born_ms: int | None = None) -> int:
        self._step()
        place = len(self.queues[queue])
        record = Record(
            queue.topic,
            body,
            encoded,
            queue_offset=place,
            born_time=self.now if born_ms is None else born_ms,
            store_time=self.now,
        )
        self.queues[queue].append(MessageExt(record.encode(), "mq"))
        self._step()
        return place

    def _step(self) -> None:
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise Died

    # What producers do.

    def prepare(self, immunity: int | None = None, *, is_known: bool = True) -> int:
        """Store a half message; where. Not known: its entry made room for another."""
        unique_id = f"{len(self.queues[self.halves]):032X}"
        encoded = belongs(PRODUCERS, "orders", 0) + properties(UNIQ_KEY=unique_id)
        if immunity is not None:
            encoded += properties(CHECK_IMMUNITY_TIME_IN_SECONDS=str(immunity))
        place = self._put(self.halves, b"", encoded)
        if is_known:
            self.table.states[place] = Entry.PENDING
        return place

    def finish(self, place: int) -> None:
        """End the transaction of this half message, as a broker does that knows it has not ended."""
        name = name_of(self.queues[self.halves][place])
        if name not in self.table.states:
            copies = [each.queue_offset for each in self.queues[self.halves] if name_of(each) == name]
            self.write_op(copies)
            return
        self.table.states[name] = Entry.COMMITTED
        self.table.to_write.append(name)
        if place != name:
            self.table.to_write.append(place)

    # What is so.

    def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        assert group == GROUP
        assert self.done.get(queue, 0) <= offset <= self.end(queue)
        self._step()
        self.done[queue] = offset

    def newest(self) -> dict[int, MessageExt]:
        """The newest copy of every transaction by name."""
        return {name_of(message): message for message in self.queues[self.halves]}

    def open_names(self) -> set[int]:
        """The transactions that have not ended, as far as queues and table tell."""
        ledger, _ = self.ledger()
        found = self.open_ones(ledger, self.end(self.halves))
        return {name_of(message) for message in found} - self.table.ended()

    def rounds(self, rules: Rules, interval_ms: int) -> TransactionChecker:
        """A transaction checker that starts now."""
        table: Any = self.table  # as much of a table as rounds ask for
        event: Any = None
        times = rules, interval_ms
        return TransactionChecker(
            lambda: table, lambda: True, event, self, self.commit, lambda: times, lambda: self.now
        )


class Table:
    """Of a TransactionTable what rounds ask for."""

    def __init__(self) -> None:
        self.states: dict[int, int] = {}
        self.to_write: list[int] = []
        self.round_ms = BEGIN_MS
        self.asked: list[tuple[int, int]] = []

    def ended(self) -> set[int]:
        return {name for name, state in self.states.items() if state == Entry.COMMITTED}

    def state(self, name: int) -> tuple[int, int]:
        return self.states.get(name, Entry.ABSENT), 0

    def unwritten(self) -> Sequence[int]:
        return list(self.to_write)

    def unwritten_count(self) -> int:
        return len(self.to_write)

    def written(self, places: Sequence[int]) -> None:
        self.to_write = [place for place in self.to_write if place not in places]

    def ask(self, begin: int, end: int) -> None:
        self.asked.append((begin, end))

    def forget(self, name: int) -> None:
        """Its entry makes room for another."""
        if name not in self.to_write:
            self.states.pop(name, None)
