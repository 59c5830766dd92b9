"""How many messages wait for another attempt of a group: on their way to its retry topic, or in it.

A message that was sent back lies in a queue of a delay level first, then in %RETRY%<group>; both are
consumed in order. Each message of these queues is looked at once by each broker that is asked: what is
remembered of those in front is dropped as they are delivered, or consumed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from mq.api.results import MessageQueue, PullStatus
from mq.broker.delay.levels import SCHEDULE_TOPIC
from mq.broker.delay.schedule import Schedule
from mq.errors import NotPermitted, StoreCorrupted, TopicNotFound
from mq.message import MessageExt
from mq.names import RETRY_PREFIX
from mq.properties import value_of
from mq.store.directory.delay_levels import LEVEL_COUNT_MAX
from mq.store.shared.lock_guards import thread_locks

__all__ = ["Retries"]

READ_COUNT, READ_SIZE = 256, 1 << 20

Waiting = tuple[int, str, str]  # offset in its queue, retry topic, topic that it was sent to


class Line:
    """The messages of one queue that wait for another attempt, from the first that is not done on."""

    def __init__(self) -> None:
        self.end = 0  # all before it was looked at
        self.waiting: deque[Waiting] = deque()

    def go_on(self, begin: int, end: int, read: Callable[[int], tuple[list[Waiting], int]]) -> None:
        """Forget what is done before `begin`, and look at what is new before `end`."""
        if self.end > end or begin < (self.waiting[0][0] if self.waiting else self.end):
            # Another queue of that name, or the offset was set back: all is looked at again.
            self.waiting.clear()
            self.end = begin
        while self.waiting and self.waiting[0][0] < begin:
            self.waiting.popleft()
        while self.waiting and self.waiting[-1][0] >= self.end:
            self.waiting.pop()  # An interrupt came before the end was set.
        self.end = max(self.end, begin)
        while self.end < end:
            found, offset = read(self.end)
            if offset <= self.end:
                return
            self.waiting += found
            self.end = offset


class Retries:
    """Of one broker. readable(topic) are the queues to read from, committed(group, queue) how far one is."""

    def __init__(
        self,
        broker_name: str,
        schedule: Schedule,
        readable: Callable[[str], Sequence[MessageQueue]],
        committed: Callable[[str, MessageQueue], int | None],
    ) -> None:
        self._reader = schedule.reader
        self._broker_name = broker_name
        self._schedule = schedule
        self._readable = readable
        self._committed = committed
        self._counting = thread_locks(schedule.path, "counting what waits for another attempt")
        self._lines: dict[MessageQueue, Line] = {}

    def of(self, group: str) -> dict[str, int]:
        """Topic to how many of its messages wait. One that is just delivered may count twice, none is left
        out."""
        retry_topic = RETRY_PREFIX + group
        found: Counter[str] = Counter()
        with self._counting():
            # First: what is delivered meanwhile is found behind.
            for level in range(1, LEVEL_COUNT_MAX + 1):
                queue = MessageQueue(SCHEDULE_TOPIC, self._broker_name, level - 1)
                if self._reader.max_offset(queue):
                    begin = self._schedule.delivered(level, queue)
                    self._count(found, retry_topic, queue, begin)
            try:
                queues = self._readable(retry_topic)
            except (TopicNotFound, NotPermitted):
                queues = []
            for queue in queues:
                begin = max(self._reader.min_offset(queue), self._committed(group, queue) or 0)
                self._count(found, retry_topic, queue, begin)
        return {} if found and self._schedule.is_abandoned(retry_topic) else dict(found)

    def _count(self, found: Counter[str], retry_topic: str, queue: MessageQueue, begin: int) -> None:
        line = self._lines.setdefault(queue, Line())
        line.go_on(begin, self._reader.max_offset(queue), lambda offset: self._read(queue, offset))
        found.update(topic for _, wanted, topic in line.waiting if wanted == retry_topic)

    def _read(self, queue: MessageQueue, offset: int) -> tuple[list[Waiting], int]:
        try:
            result = self._reader.pull(queue, offset, READ_COUNT, READ_SIZE, None, 0.0)
        except StoreCorrupted as error:
            if error.queue_offset is None:
                raise
            return [], error.queue_offset + 1
        if result.status is not PullStatus.FOUND:
            return [], result.next_offset
        return [each for each in map(_waiting, result.messages) if each is not None], result.next_offset


def _waiting(message: MessageExt) -> Waiting | None:
    """None for one that waits for something else."""
    encoded = message.encoded
    wanted = message.topic
    if wanted == SCHEDULE_TOPIC:
        wanted = value_of(encoded, b"REAL_TOPIC\x01") or ""
    if not wanted.startswith(RETRY_PREFIX):
        return None
    return message.queue_offset, wanted, value_of(encoded, b"RETRY_TOPIC\x01") or wanted
