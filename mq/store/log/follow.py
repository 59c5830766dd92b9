"""The log of a replica: what its master's log has is appended byte for byte, and compared where both have it.

A record gets its queue unit as it is appended (see native/log/follow.h). The log of a replica that is empty
may begin at any file of its master's. Queues begin with the first message that the log has of them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from mq.errors import ConfigMismatch, StoreCorrupted
from mq.store.native import check, ffi, lib
from mq.store.queue.consumequeue import last_unit, remove_queue, remove_queues
from mq.store.shared.control import Control
from mq.store.shared.lock_guards import append_lock
from mq.store.store import Store

__all__ = ["FollowedLog", "Taken"]

BLANK_SIZE = int(lib.MQ_BLANK_SIZE)
FLUSH_TIMEOUT_MS = 60_000
DELETED_AT_ONCE = 200  # topics
OFFSET_MAX = 1 << int(lib.MQ_OFFSET_MAX_BITS)  # No queue gets that far.


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of bytes that were offered: the log's end, and how many bytes the next record has."""

    end: int
    records: int
    wanted: int


class FollowedLog:
    """The log of a store that was opened to follow. One thread appends."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followed = ffi.new("mq_followed *")
        # Of topics that were deleted since the store was opened: a log offset before which all that the log
        # has of the name is of the deleted one.
        self.begins: dict[str, int] = {}

    @property
    def begin(self) -> int:
        return self._store.word(lib.MQ_LOG_MIN)

    @property
    def end(self) -> int:
        return self._store.end()

    @property
    def is_empty(self) -> bool:
        return self.begin == self.end

    @property
    def file_size(self) -> int:
        return self._store.file_sizes.commitlog_file_size

    def begin_at(self, log_offset: int) -> None:
        """Have an empty log begin there. Raises ConfigMismatch where no file of it does."""
        if log_offset % self.file_size:
            raise self._other_sizes(log_offset)
        check(lib.mq_log_begin_at(self._store.live(), log_offset), str(self._store.root))

    def append(self, at: int, data: bytes | bytearray | memoryview) -> Taken:
        """Append the whole records in what the master has at `at`, the log's end.

        Raises StoreCorrupted for what is no record of this place, ConfigMismatch where the master's files
        have another size, StoreFull, StorePoisoned. What came before is appended.
        """
        log, followed, path = self._store.live(), self._followed, str(self._store.root)
        records, begun, view = 0, at, memoryview(data)
        while True:
            rest = ffi.from_buffer("char[]", view[at - begun :])
            check(lib.mq_log_follow(log, at, rest, len(rest), followed), path)
            records += int(followed.records)
            at = int(followed.end)
            if followed.stopped != lib.MQ_FOLLOW_AGAIN:
                break
            self._start_over(int(followed.queue), at)
        if followed.stopped == lib.MQ_FOLLOW_SIZES:
            raise self._other_sizes(at)
        if followed.stopped != lib.MQ_FOLLOW_MORE:
            raise self._corrupt(at)
        return Taken(at, records, int(followed.wanted))

    def compare(self, at: int, data: bytes | bytearray | memoryview) -> int:
        """How many of these bytes are what the log has at `at`, up to its end."""
        return self._compared(
            lib.mq_log_compare(self._store.live(), at, ffi.from_buffer("char[]", data), len(data))
        )

    def _compared(self, result: int) -> int:
        return int(check(result, str(self._store.root)))

    def boundaries(self, begin: int, end: int) -> tuple[int, int, int]:
        """Of the records that lie wholly in [begin, end): where the first begins, where the last ends, and
        its store time. Where there is none, the first two are the same."""
        log, path = self._store.live(), str(self._store.root)
        walk = ffi.new("mq_walk *")
        start = max(begin // self.file_size * self.file_size, self.begin)
        if start < begin:
            check(lib.mq_log_walk(log, start, begin, 0, -1, walk), path)
            start = int(walk.end)
        first, last, time_ms = start, start, 0
        while last < end:
            check(lib.mq_log_walk(log, last, last + 1, 0, -1, walk), path)
            if walk.stopped or walk.end > end or walk.end <= last:
                break
            last = int(walk.end)
            time_ms = int(walk.last_store_time) or time_ms
        return first, last, time_ms

    def flush(self) -> None:
        """Have on disk what is appended."""
        check(lib.mq_log_flush(self._store.live(), self.end, -1, FLUSH_TIMEOUT_MS), str(self._store.root))

    def delete_topics(self, topics: Sequence[str], end: int) -> list[str]:
        """Forget the queues of topics, but of those of which the log has a message from `end` on; which are
        gone now."""
        gone: list[str] = []
        # Not all at once: what the log gets waits meanwhile.
        for begin in range(0, len(topics), DELETED_AT_ONCE):
            with self._locked():
                gone += self._delete(topics[begin : begin + DELETED_AT_ONCE], end)
        self.begins |= dict.fromkeys(gone, end)
        if gone:
            self._store.topics_changed()
        return gone

    def _delete(self, topics: Sequence[str], end: int) -> list[str]:
        queues = self._queues(set(topics))
        stay = {topic for number, topic, _ in queues if self._last_message(number) >= end}
        for number, topic, _ in queues:
            if topic not in stay:
                lib.mq_control_queue_delete(self._control.handle, number)
        gone = [topic for topic in topics if topic not in stay]
        for topic in gone:
            remove_queues(self._store.root, topic)
        return gone

    def begin_topics(self, begins: Mapping[str, int]) -> None:
        """What the log has of a topic before this log offset is of one of that name that was deleted."""
        with self._locked():
            for number, topic, queue_id in self._queues(begins):
                if 0 <= self._last_message(number) < begins[topic]:
                    self._make_anew(number, topic, queue_id, begins[topic])
                else:
                    lib.mq_control_queue_set_begin(self._control.handle, number, begins[topic])
        self._store.topics_changed()

    def topics(self) -> set[str]:
        """The topics of its queues."""
        return {topic for _, topic, _ in self._control.queues()}

    def queues_with_messages(self) -> set[tuple[str, int]]:
        """Topic and queue id of the queues that have had a message."""
        queues = self._control.queues()
        return {(topic, each) for number, topic, each in queues if self._control.next_offset(number)}

    @property
    def queues_version(self) -> tuple[int, int]:
        """Another one with every queue that there is since, or is no more."""
        return self._store.word(lib.MQ_PLACE_COUNT), self._store.word(lib.MQ_TOPICS_VERSION)

    def skip_to(self, topic: str, queue_id: int, offset: int) -> None:
        """Have a queue begin at a queue offset, as the master deleted all messages before it."""
        with self._locked():
            number = self._number(topic, queue_id)
            if self._control.next_offset(number) == 0 and 0 < offset <= OFFSET_MAX:
                lib.mq_control_queue_set(self._control.handle, number, offset, offset)

    @property
    def _control(self) -> Control:
        control = self._store.control
        assert control is not None
        return control

    def _locked(self) -> AbstractContextManager[object]:
        return append_lock(self._store.live(), self._store.root)

    def _queues(self, topics: Container[str]) -> list[tuple[int, str, int]]:
        """Number, topic and queue id of the queues of some topics."""
        return [each for each in self._control.queues() if each[1] in topics]

    def _number(self, topic: str, queue_id: int) -> int:
        name = topic.encode()
        found = lib.mq_control_queue(self._control.handle, name, len(name), queue_id, 2)
        return check(found, str(self._store.root))

    def _last_message(self, number: int) -> int:
        """The log offset of a queue's last message; -1 if it has none."""
        return last_unit(self._store.live(), self._control, number)

    def _start_over(self, number: int, at: int) -> None:
        """The master deleted the topic of this queue: it counts from 0 again, from log offset `at` on."""
        with self._locked():
            for each, topic, queue_id in self._control.queues():
                if each == number:
                    self._make_anew(number, topic, queue_id, at)
                    break
        self._store.topics_changed()

    def _make_anew(self, number: int, topic: str, queue_id: int, at: int) -> None:
        """Under the append lock."""
        lib.mq_control_queue_delete(self._control.handle, number)
        remove_queue(self._store.root, topic, queue_id)
        lib.mq_control_queue_set_begin(self._control.handle, self._number(topic, queue_id), at)

    def _other_sizes(self, at: int) -> ConfigMismatch:
        return ConfigMismatch(
            f"{self._store.root} is a copy with files of {self.file_size:,} bytes, and at log offset {at:,}"
            " the master's log shows that its files have another size: give replicate() the master's, as"
            " commitlog_file_size (RocketMQ: mappedFileSizeCommitLog), and a new directory",
            option="commitlog_file_size",
            stored=self.file_size,
            asked=None,
        )

    def _corrupt(self, at: int) -> StoreCorrupted:
        followed: Any = self._followed
        what = "no record of this place, or a damaged one"
        if followed.stopped == lib.MQ_FOLLOW_GAP:
            what = f"a record with queue offset {int(followed.queue_offset):,}, which its queue cannot have"
        return StoreCorrupted(
            f"the master has at log offset {at:,} {what}: verify its store, and this copy,"
            f" {self._store.root}",
            path=str(self._store.root),
            log_offset=at,
        )
