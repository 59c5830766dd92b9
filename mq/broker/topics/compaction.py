"""Compaction of internal topics: the leader appends needed messages again before retention deletes them.

A rule (mq/compacted_topics.py) says which they are. Of every subject the newest message counts, and only that
one is appended again. It is looked for where it is about to be deleted, so each message of the topic is read
once for this. Two processes that do this at a time, or a program that writes meanwhile, do no harm: what is
found twice is the same, and the newest is the newest wherever it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from mq.api.results import MessageQueue, PullStatus
from mq.compacted_topics import CompactionRule
from mq.errors import NotPermitted, StoreCorrupted, StoreFull, TopicNotFound
from mq.message import Message, MessageExt
from mq.store.queue.reader import Reader

__all__ = ["Compaction"]

READ_COUNT, READ_BYTES = 1000, 1 << 20
FOUND_MAX = 32


class Compaction:
    """Of the internal topics of one store that have a rule, for the process that deletes old messages."""

    def __init__(
        self,
        name: str,
        rules: Sequence[CompactionRule],
        reader: Reader,
        query: Callable[..., list[MessageExt]],
        append: Callable[..., object],
        sync: Callable[[], object],
        topics: Callable[[], list[str]],
    ) -> None:
        self._name = name
        self._rules = rules
        self._min_offset = reader.min_offset
        self._max_offset = reader.max_offset
        self._pull = reader.pull
        self._query = query
        self._append = append
        self._sync = sync
        self._topics = topics

    @contextmanager
    def compacted(self, log_min: int, now_ms: int) -> Iterator[None]:
        """Retention deletes all before log_min inside; the needed messages are appended and synced first.

        On a full disk it is so afterwards: what is deleted makes the room.
        """
        with ExitStack() as stack:
            for rule in self._rules:
                stack.enter_context(self._compacted(rule, log_min, now_ms))
            yield

    @contextmanager
    def _compacted(self, rule: CompactionRule, log_min: int, now_ms: int) -> Iterator[None]:
        owed: list[tuple[str, bytes]] = []
        try:
            if rule.topic in self._topics():
                owed = list(self._of_use(rule, log_min, now_ms))
            self._append_again(rule, owed)
        except StoreFull:
            yield
            self._append_again(rule, owed)
        except (NotPermitted, TopicNotFound):
            yield  # The topic was taken away, or may not be read and written: nobody writes to it either.
        else:
            yield

    def _append_again(self, rule: CompactionRule, owed: Sequence[tuple[str, bytes]]) -> None:
        queue = self._queue(rule)
        for key, body in owed:
            self._append(queue, Message(rule.topic, body, keys=key), body, 0)
        if owed:
            self._sync()

    def _of_use(self, rule: CompactionRule, log_min: int, now_ms: int) -> Iterator[tuple[str, bytes]]:
        for subject, (key, old) in self._before(rule, log_min).items():
            found: list[MessageExt] = []
            # Where the index cannot be asked, on a full disk for one, the old one is appended again, at the
            # worst for nothing.
            with suppress(StoreCorrupted, StoreFull):
                found = self._query(rule.topic, key, FOUND_MAX, 0, None)
            body = rule.newest([old, *(message.body for message in found)], subject)
            is_kept = any(message.log_offset >= log_min for message in found if message.body == body)
            if rule.is_of_use(body, now_ms) and not is_kept:
                yield key, body

    def _before(self, rule: CompactionRule, log_min: int) -> dict[str, tuple[str, bytes]]:
        """By subject the newest message that lies there, as its key and its body."""
        found: dict[str, tuple[str, bytes]] = {}
        queue = self._queue(rule)
        at, count = self._min_offset(queue), READ_COUNT
        while at < self._max_offset(queue):
            try:
                result = self._pull(queue, at, count, READ_BYTES, None, 0.0)
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
                subject = rule.subject(message.body)
                if subject is not None and message.keys:
                    known = [found[subject][1]] if subject in found else []
                    found[subject] = message.keys[0], rule.newest([*known, message.body], subject)
        return found

    def _queue(self, rule: CompactionRule) -> MessageQueue:
        return MessageQueue(rule.topic, self._name, 0)
