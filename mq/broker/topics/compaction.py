"""Messages of the sink's ledger that retention would take, and somebody may still ask for: appended again.

A query that rests for longer than messages are kept finds, when it goes on, which of its epochs the log had.
Of every transaction id the newest entry counts, and is the only one that moves on; it is looked for where it
is about to be deleted, so that each message of the ledger is read once for this. Two processes that do this
at a time, or one that commits meanwhile, do no harm: what is found twice is the same, and the newest is the
newest wherever it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from mq.api.results import MessageQueue, PullStatus
from mq.errors import NotPermitted, StoreCorrupted, StoreFull, TopicNotFound
from mq.message import Message, MessageExt
from mq.sink_ledger import TOPIC, Entry, newer
from mq.store.queue.reader import Reader

__all__ = ["Keepsakes"]

READ_COUNT, READ_BYTES = 1000, 1 << 20
FOUND_MAX = 32


class Keepsakes:
    """The ledger of one store, for the process that deletes old messages."""

    def __init__(
        self,
        name: str,
        reader: Reader,
        query: Callable[..., list[MessageExt]],
        append: Callable[..., object],
        sync: Callable[[], object],
        topics: Callable[[], list[str]],
    ) -> None:
        self._queue = MessageQueue(TOPIC, name, 0)
        self._min_offset = reader.min_offset
        self._max_offset = reader.max_offset
        self._pull = reader.pull
        self._query = query
        self._append = append
        self._sync = sync
        self._topics = topics

    @contextmanager
    def kept(self, log_min: int, now_ms: int) -> Iterator[None]:
        """What lies before log_min is deleted inside; what is of use of it is on disk again before that.

        On a full disk it is so afterwards: what is deleted makes the room.
        """
        owed: list[tuple[str, bytes]] = []
        try:
            if TOPIC in self._topics():
                owed = list(self._of_use(log_min, now_ms))
            self._move(owed)
        except StoreFull:
            yield
            self._move(owed)
        except (NotPermitted, TopicNotFound):
            yield  # The topic was taken away, or may not be read and written: nobody commits to it either.
        else:
            yield

    def _move(self, owed: list[tuple[str, bytes]]) -> None:
        for key, body in owed:
            self._append(self._queue, Message(TOPIC, body, keys=key), body, 0)
        if owed:
            self._sync()

    def _of_use(self, log_min: int, now_ms: int) -> Iterator[tuple[str, bytes]]:
        for txn, (key, old) in self._before(log_min).items():
            found: list[MessageExt] = []
            # Where the index cannot be asked, on a full disk for one, the old one moves on, at the worst for
            # nothing.
            with suppress(StoreCorrupted, StoreFull):
                found = self._query(TOPIC, key, FOUND_MAX, 0, None)
            entry = newer(old, (message.body for message in found), txn)
            body = entry.encode()
            is_kept = any(message.log_offset >= log_min for message in found if message.body == body)
            if entry.is_of_use(now_ms) and not is_kept:
                yield key, body

    def _before(self, log_min: int) -> dict[str, tuple[str, Entry]]:
        """By transaction id the newest entry that lies there, with its key."""
        found: dict[str, tuple[str, Entry]] = {}
        at, count = self._min_offset(self._queue), READ_COUNT
        while at < self._max_offset(self._queue):
            try:
                result = self._pull(self._queue, at, count, READ_BYTES, None, 0.0)
            except StoreCorrupted:
                # One of them is damaged: retention is not to wait for it.
                at, count = at + (count == 1), 1
                continue
            if result.status is not PullStatus.FOUND and result.next_offset <= at:
                break
            at, count = result.next_offset, READ_COUNT
            for message in result.messages:
                if message.log_offset >= log_min:
                    return found
                entry = Entry.decode(message.body)
                if entry is not None and message.keys:
                    known = found.get(entry.txn, ("", entry))[1]
                    found[entry.txn] = message.keys[0], newer(known, [message.body], entry.txn)
        return found
