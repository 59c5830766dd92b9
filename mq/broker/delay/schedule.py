"""The schedule of one broker: where delayed messages wait, and how they are delivered when they are due.

Every broker puts messages aside; the one that has the duties delivers them for all (see levels.py), and
sleeps until the next is due. A sender of one that is due before that wakes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from mq.api.results import MessageQueue
from mq.broker.delay.level_progress import DelayOffsets, LevelProgress
from mq.broker.delay.levels import SCHEDULE_TOPIC, Delivery
from mq.errors import MessageInvalid, StoreCorrupted
from mq.message import MessageExt
from mq.store.directory.delay_levels import LEVEL_COUNT_MAX, LEVELS, parse_levels
from mq.store.directory.settings import LOST
from mq.store.index.find_records import is_delivery, stored
from mq.store.log.reappend import Copies, Copy, Turn, changed
from mq.store.queue.reader import Reader
from mq.store.queue.unit_code import unit_code
from mq.store.shared.lock_guards import thread_locks
from mq.store.store import Store
from mq.store.timer.engine import LATE_MS

__all__ = ["Schedule"]

QUEUE_COUNT = 18  # of RocketMQ's own
IDLE = 5.0  # seconds; the clock may be set forward meanwhile, and damaged memory keep somebody from ringing


class Schedule:
    """Delayed messages of one broker.

    make_topic(name, queue_count) has the settings of a topic in place; place is Delivery's. is_abandoned
    tells of a topic that what waits for it is not delivered to any more.
    """

    name = "mq-delay"
    save_interval = 10.0  # RocketMQ's flushDelayOffsetInterval

    def __init__(
        self,
        store: Store,
        broker_name: str,
        version: Any,
        levels: str | None,
        make_topic: Callable[[str, int], None],
        place: Callable[[str, int], tuple[str, int] | None],
        is_abandoned: Callable[[str], bool],
    ) -> None:
        self.delays_ms = parse_levels(LEVELS if levels is None else levels)
        self.is_abandoned: Final = is_abandoned
        self.copies = Copies(store)
        self._deliveries = Copies(store, of_duties=True)
        self._store = store
        settings = store.settings
        # Nobody knows by which levels messages were put aside.
        self._is_lost = settings.held == LOST and "message_delay_level" not in settings.options
        self._broker_name = broker_name
        self.reader = Reader(store, broker_name, version, lambda _queue: None)
        self._make_topic = make_topic
        self._place = place
        self._numbers: dict[int, int] = {}
        self._progress: LevelProgress | None = None
        self._offsets: DelayOffsets | None = None
        self.path = store.root / "mq" / "delay"
        self._locked = thread_locks(self.path, "opening it")

    def delivered(self, level: int, queue: MessageQueue) -> int:
        """The first message in the queue of a level that is not delivered yet."""
        begin = self.reader.min_offset(queue)
        if not self._store.read_only:
            progress = self.progress()
            if progress.is_ours():
                return max(begin, progress.delivered(level))
        delay_ms = self.delays_ms[level - 1] if level <= len(self.delays_ms) else 0
        # Nobody has delivered in this life of the store: what is not due is not delivered.
        if not delay_ms:
            return begin
        return max(begin, self.reader.offset_at(queue, time.time_ns() // 1_000_000 - delay_ms))

    def level(self, wanted: int) -> int:
        """The level that is meant: there is no higher one than the last."""
        return min(wanted, len(self.delays_ms))

    def queue_of(self, level: int) -> tuple[int, int]:
        """Number of the queue in which messages of a level wait, and their delay in ms. Raises
        MessageInvalid."""
        if level > len(self.delays_ms):
            raise MessageInvalid(f"delay_level {level}: this broker has levels 1 to {len(self.delays_ms)}")
        number = self._numbers.get(level)
        if number is None:
            self.prepare()
            number = self.copies.number(SCHEDULE_TOPIC, level - 1, add=True)
            assert number is not None
            self._numbers[level] = number
        return number, self.delays_ms[level - 1]

    def prepare(self) -> None:
        """Have the topic of the schedule."""
        if not self._numbers:
            self._make_topic(SCHEDULE_TOPIC, max(QUEUE_COUNT, len(self.delays_ms)))

    def put_aside(
        self,
        topic: str,
        queue_id: int,
        message: MessageExt,
        properties: Mapping[str, str | None],
        level: int,
        reconsume_times: int,
        turn: Turn | None = None,
    ) -> None:
        """Store a copy of a message with these properties changed, to be delivered to a queue when a level's
        delay has passed. turn: see Copies.append."""
        _, delay_ms = self.queue_of(level)
        wanted = {**properties, "DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
        copy = self.copies.append(
            SCHEDULE_TOPIC,
            level - 1,
            message,
            changed(message.encoded, wanted),
            reconsume_times=reconsume_times,
            delay_ms=delay_ms,
            turn=turn,
        )
        self.stored(copy.store_time_ms + delay_ms)
        self.kept(copy)

    def kept(self, copy: Copy) -> None:
        """Have a copy on disk where a send would: what it is a copy of counts as consumed from now on."""
        if self._store.sync:
            self.copies.flush(copy.end)

    def progress(self) -> LevelProgress:
        """When the leader looks next, and what has it look before."""
        with self._locked():
            progress = self._progress
            if progress is None:
                self._store.live()
                progress = self._progress = LevelProgress(self._store.root, self.copies.epoch())
            return progress

    def stored(self, due_ms: int) -> None:
        """A message was put aside that is due then."""
        (self._progress or self.progress()).stored(due_ms + 1)

    def run(self, stopping: Callable[[], bool], clock: Callable[[], int] | None = None) -> None:
        """Deliver until told to stop, and woken for that. For the leader."""
        monotonic = None if clock else _monotonic_ms
        clock = clock or (lambda: time.time_ns() // 1_000_000)
        progress, more = self.progress(), self._more_levels()
        if self._offsets is None:
            last_store_ms = self.copies.last_store_ms()
            levels = len(self.delays_ms) + more
            control = self._store.control
            assert control is not None
            self._offsets = DelayOffsets(
                self._store.root,
                progress,
                levels,
                last_store_ms,
                put=control.duty_writer(progress.mapped),
                undelivered=partial(self._undelivered, last_store_ms),
            )
        offsets = self._offsets
        delivery = Delivery(
            self.delays_ms,
            offsets,
            self._deliveries,
            self.reader.pull,
            self._place,
            self._was_stored,
            broker_name=self._broker_name,
            sync=self._store.sync,
            more=more,
            code=partial(unit_code, self._store),
            monotonic=monotonic,
            is_meant=self._is_lost,
        )
        while True:
            # Before anything is looked at: a notification that comes after is not slept through.
            heard = progress.event.value
            if stopping():
                return
            # First: what is put aside from now on is told, and what was before is seen.
            offsets.wake_at(None)
            due = delivery.deliver(clock, stopping)
            offsets.wake_at(due)
            progress.event.wait(heard, IDLE if due is None else min(IDLE, (due - clock()) / 1000))

    def _undelivered(self, last_store_ms: int, level: int) -> tuple[int, int]:
        """The first message of a level whose delivery would have been stored after the last message there is,
        or shortly before, since it may have been late; and by when what there is of the level is due."""
        is_known = level <= len(self.delays_ms) and not self._is_lost
        delay_ms = self.delays_ms[level - 1] if is_known else max(self.delays_ms)
        queue = MessageQueue(SCHEDULE_TOPIC, self._broker_name, level - 1)
        try:
            first = self.reader.offset_at(queue, last_store_ms - LATE_MS - delay_ms)
        except StoreCorrupted:
            first = 0  # All are looked up.
        return first, last_store_ms + delay_ms

    def _more_levels(self) -> int:
        """How many levels messages were put aside for beyond those that there are."""
        known = len(self.delays_ms)
        numbers = {
            level: self.copies.number(SCHEDULE_TOPIC, level - 1, add=False)
            for level in range(known + 1, LEVEL_COUNT_MAX + 1)
        }
        return max((level for level, number in numbers.items() if number is not None), default=known) - known

    def _was_stored(self, topic: str, message: MessageExt) -> bool:
        """Whether a topic has a copy of a message that was put aside."""
        if "UNIQ_KEY" not in message.properties:
            return False  # Nothing to look for: rather twice than not at all.
        found = stored(self._store, topic, message.msg_id, message.store_time_ms)
        return any(is_delivery(each, message) for each in found)

    def wake(self) -> None:
        """Have run() look whether it is to stop."""
        if self._progress is not None:
            self._progress.notify()

    def save(self) -> None:
        """Write down how far delivery is, once that is on disk. For the leader."""
        offsets = self._offsets
        if offsets is not None and (unsaved := offsets.unsaved()):
            self._store.flush_log()
            offsets.save(unsaved)

    def give_up(self) -> None:
        """The duties are another's from now on."""
        self._offsets = None

    def close(self) -> None:
        """Let go of the log, and of mq/delay."""
        self.reader.close()
        with self._locked():
            self._progress = self._offsets = None


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
