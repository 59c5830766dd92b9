"""Delay levels: a message that is to come later is put aside in a queue of its level, and delivered when due.

A level is a delay, and one queue of SCHEDULE_TOPIC_XXXX (level 1 is queue 0): whatever is in one has the
same delay, so every queue is in the order in which its messages are due, and no other structure is needed. A
message put aside keeps in REAL_TOPIC and REAL_QID where it belongs; the code of its unit is the time when it
is due. Delivery stores it there as a new message, with all it was born with. The properties stay as they
are, DELAY, REAL_TOPIC and REAL_QID included: so RocketMQ stores them, and in another topic than this they
ask for nothing.

It is due when its store time plus the level's delay has passed, by the levels of the leader: give all
processes of a directory the same. One of a level that the leader does not have is due when the code of its
unit says. Where the store has lost its settings, none is due before that.

Store times never go back: where one lies ahead (the clock was set back), the delay counts from when the
message was first seen, some seconds after it was stored at the most. The process that delivers sees by the
monotonic clock how far the other one was set back, and takes that off the times of all that it knew before.
Another process, after a takeover, does not know: where a message would be due later there than one delay from
now, the delay counts from then on.

RocketMQ: broker/schedule/ScheduleMessageService.java; messageDelayLevel of MessageStoreConfig.java.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from mq.api.queues import readable
from mq.api.results import MessageQueue, PullResult, PullStatus
from mq.broker.delay.level_progress import DelayOffsets, Stated
from mq.errors import BrokerClosed, ForkedBroker, MessageInvalid, MQError, StoreCorrupted
from mq.message import MessageExt
from mq.names import UNSENDABLE_TOPICS, check_topic
from mq.properties import value_of
from mq.store.directory.delay_levels import DELAY_MAX_MS
from mq.store.log.reappend import Copy, changed

__all__ = ["SCHEDULE_TOPIC", "Delivery", "destination", "due_ms"]

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

READ_COUNT, READ_SIZE = 64, 256 << 10
SLICE = 64  # Messages of one level before the others have their turn.
KEPT_AHEAD_MS = 1000  # What is due later than that is not kept in memory until then.
AGAIN_MS = 100  # After a failure, such as a full disk.
JUMP_MS = 1000  # What the clock is set by, and no correction of its speed.

log = logging.getLogger("mq.timer")


def due_ms(store_time_ms: int, delay_ms: int, seen_ms: int) -> int:
    """When a message is due that was first looked at at seen_ms. Never before its delay has passed, and not
    later than one delay from now, whatever the clock did meanwhile."""
    return min(store_time_ms, seen_ms) + delay_ms


def destination(message: MessageExt) -> tuple[str, int] | None:
    """Topic and queue id where a message put aside belongs; None if it does not say so."""
    encoded = message.encoded
    topic, queue_id = value_of(encoded, b"REAL_TOPIC\x01"), value_of(encoded, b"REAL_QID\x01")
    if topic is None or queue_id is None or topic in UNSENDABLE_TOPICS:
        return None
    if not queue_id.isdecimal() or len(queue_id) > 9:
        return None
    try:
        check_topic(topic)
    except MQError:
        return None
    return topic, int(queue_id)


def is_copy(message: MessageExt, of: MessageExt) -> bool:
    """Whether a message is what delivery makes of another one."""
    # A copy of a message without a unique id has got one.
    given: dict[str, None] = {} if "UNIQ_KEY" in of.properties else {"UNIQ_KEY": None}
    return (
        changed(message.encoded, given) == changed(of.encoded, {})
        and (message.born_time_ms, message.reconsume_times) == (of.born_time_ms, of.reconsume_times)
        and message.stored_body == of.stored_body
    )


class Pull(Protocol):
    """Reads any queue: see Broker.pull."""

    def __call__(
        self, queue: MessageQueue, offset: int, count: int, size: int, hashes: None, wait: float, /
    ) -> PullResult: ...


class Log(Protocol):
    """What delivery needs of a store: see Copies."""

    def number(self, topic: str, queue_id: int, *, add: bool) -> int | None: ...
    def queue_of(self, number: int) -> tuple[str, int] | None: ...
    def next_offset(self, number: int) -> int: ...
    def last_store_ms(self) -> int: ...
    def append(
        self, topic: str, queue_id: int, message: MessageExt, properties: bytes, *, reconsume_times: int
    ) -> Copy: ...
    def flush(self, end: int | None = None) -> None: ...
    def repair_tail(self) -> None: ...


class Waiting(NamedTuple):
    """Which message is next in a level, and when."""

    offset: int
    due_ms: int
    delay_ms: int


class Seen(NamedTuple):
    """Messages up to an offset were there by this time, by a clock that was ahead of the monotonic one by
    base_ms. is_apart: by their store times they might have come later."""

    end: int
    time_ms: int
    base_ms: int
    is_apart: bool
    begin_ms: int = 0  # the first of these looks


class Level:
    """One level as far as it was read. delay_ms 0: the units say when their messages are due."""

    def __init__(self, number: int, delay_ms: int, broker_name: str) -> None:
        self.number = number
        self.delay_ms = delay_ms
        self.queue = MessageQueue(SCHEDULE_TOPIC, broker_name, number - 1)
        self.messages: Sequence[MessageExt] = ()
        self.place = 0
        self.seen: deque[Seen] = deque()
        self.waiting: Waiting | None = None

    def forget(self) -> None:
        """Read it again the next time."""
        self.messages, self.place = (), 0

    @property
    def seen_end(self) -> int:
        return self.seen[-1].end if self.seen else 0

    def see(self, seen: Seen) -> None:
        """What lies before the end was there by now."""
        if self.seen and seen.end <= self.seen_end:
            return
        begin_ms = seen.time_ms
        if self.seen:
            last = self.seen[-1]
            is_sure = not seen.is_apart and not last.is_apart
            if last.base_ms == seen.base_ms and (is_sure or 0 <= seen.time_ms - last.begin_ms < JUMP_MS):
                begin_ms = self.seen.pop().begin_ms
        self.seen.append(seen._replace(begin_ms=begin_ms))

    def times(self, offset: int, base_ms: int) -> tuple[int, int]:
        """When a message was there, by the clock as it is now, and how far that was set back since."""
        while len(self.seen) > 1 and self.seen[0].end <= offset:
            self.seen.popleft()
        seen = self.seen[0]
        back_ms = max(0, seen.base_ms - base_ms)
        return seen.time_ms - back_ms, back_ms


class Delivery:
    """Delivers what is due of all levels; used by one thread of the process that has the duties.

    place(topic, queue_id) is the queue where such a message can be read, or None where there is no such topic
    any more and it may not be made. was_stored(topic, message) looks for a copy of a message there. sync:
    what is delivered is flushed at once, since readers wait for that. more: how many levels there are after
    these in which something may wait; code(number, offset) is the code of a unit. monotonic() is in ms; None:
    how far the clock was set back is not known. is_meant: the levels are not known to be those that messages
    were put aside by, and none is to come before its unit says.
    """

    def __init__(
        self,
        levels: Sequence[int],
        offsets: DelayOffsets,
        store: Log,
        pull: Pull,
        place: Callable[[str, int], tuple[str, int] | None],
        was_stored: Callable[[str, MessageExt], bool],
        *,
        broker_name: str,
        sync: bool,
        more: int = 0,
        code: Callable[[int, int], int] = lambda _number, _offset: 0,
        monotonic: Callable[[], int] | None = None,
        is_meant: bool = False,
    ) -> None:
        delays = (*levels, *(0 for _ in range(more)))
        self._levels = [Level(number, delay, broker_name) for number, delay in enumerate(delays, start=1)]
        self._longest_ms = max(levels)
        self._code = code
        self._offsets = offsets
        self._store = store
        self._pull = pull
        self._place = place
        self._was_stored_in = was_stored
        self._broker_name = broker_name
        self._sync = sync
        self._monotonic = monotonic
        self._is_meant = is_meant
        self._base_ms: int | None = None  # by which the clock is ahead of the monotonic one
        self._end = 0
        self.last_error: BaseException | None = None

    def deliver(self, clock: Callable[[], int], stopping: Callable[[], bool] = lambda: False) -> int | None:
        """Deliver all that is due; when the next one will be, None if nothing waits."""
        try:
            self._settle()
            while not stopping():
                self._look_at_clock(clock)
                nexts = [self._deliver_level(level, clock) for level in self._levels]
                self._flush()
                due = min((due for due in nexts if due is not None), default=None)
                self.last_error = None
                if due is None or due > clock():
                    return due
        except (BrokerClosed, ForkedBroker):
            raise
        except (MQError, OSError, MemoryError) as error:
            # A full disk, a failed flush: senders meet it themselves. What is stated is looked for, then
            # repeated.
            if type(error) is not type(self.last_error):
                log.warning("delayed messages have to wait: %s", error)
            self.last_error = error
            return clock() + AGAIN_MS
        return None

    def _look_at_clock(self, clock: Callable[[], int]) -> None:
        """Note what came until now, and by how much the clock was set since the last look."""
        if self._monotonic is not None:
            base_ms = clock() - self._monotonic()
            if self._base_ms is None or abs(base_ms - self._base_ms) >= JUMP_MS:
                self._base_ms = base_ms
                for level in self._levels:
                    level.waiting = None  # Worked out anew.
        for level in self._levels:
            number = self._store.number(level.queue.topic, level.queue.queue_id, add=False)
            if number is not None:
                self._see(level, number, clock)

    def _see(self, level: Level, number: int, clock: Callable[[], int]) -> None:
        # In this order: one that is stored in between would look as if the clock had been set back.
        end, last_ms = self._store.next_offset(number), self._store.last_store_ms()
        now_ms = clock()
        level.see(Seen(end, now_ms, self._base_ms or 0, is_apart=now_ms < last_ms))

    def _deliver_level(self, level: Level, clock: Callable[[], int]) -> int | None:
        """Up to a slice of what is due in a level; when its next one is."""
        offsets = self._offsets
        number = self._store.number(level.queue.topic, level.queue.queue_id, add=False)
        if number is None:
            return None  # Nothing was ever put aside there.
        for _ in range(SLICE):
            offset = offsets[level.number]
            waiting = level.waiting
            if waiting is not None and waiting.offset == offset:
                left_ms = waiting.due_ms - clock()
                if left_ms > waiting.delay_ms + 1:
                    # The clock was set back since: counted from now, as for all that is there by now.
                    level.forget()
                    level.waiting = waiting = None
                    level.seen.clear()
                    self._see(level, number, clock)
                elif left_ms > 0:
                    return waiting.due_ms
            message = self._head(level, number, offset, clock)
            if message is None:
                return None
            offset = message.queue_offset
            if waiting is None or waiting.offset != offset:
                # The whole delay has passed when the ms is over in which it ends: store times are cut to the
                # ms.
                meant_ms = self._meant_ms(number, message) if self._is_meant or not level.delay_ms else 0
                delay_ms = max(level.delay_ms, meant_ms) or self._longest_ms
                seen_ms, back_ms = level.times(offset, self._base_ms or 0)
                due = due_ms(message.store_time_ms - back_ms, delay_ms, seen_ms) + 1
                level.waiting = waiting = Waiting(offset, due, delay_ms)
            if waiting.due_ms > clock():
                if waiting.due_ms > clock() + KEPT_AHEAD_MS:
                    level.forget()
                return waiting.due_ms
            self._deliver_one(level, number, message)
        return clock()

    def _meant_ms(self, number: int, message: MessageExt) -> int:
        """The delay that a message was put aside for, by its unit; 0 where that does not say."""
        delay_ms = self._code(number, message.queue_offset) - message.store_time_ms
        return delay_ms if 0 < delay_ms <= DELAY_MAX_MS else 0

    def _head(self, level: Level, number: int, offset: int, clock: Callable[[], int]) -> MessageExt | None:
        """The message at a level's offset, or the first after it that there is."""
        while True:
            if level.place < len(level.messages):
                message = level.messages[level.place]
                if message.queue_offset == offset:
                    return message
            level.forget()
            end = self._store.next_offset(number)
            if end == offset:
                return None
            if offset >= level.seen_end:
                self._see(level, number, clock)
            # None that was stored since: it would look as if the clock had been set back.
            count = min(READ_COUNT, max(level.seen_end - offset, 1))
            try:
                found = self._pull(level.queue, offset, count, READ_SIZE, None, 0.0)
            except StoreCorrupted as error:
                if error.queue_offset is None:
                    raise
                log.warning("a delayed message is lost: %s", error)
                offset = self._offsets[level.number] = error.queue_offset + 1
                continue
            if found.status is PullStatus.FOUND:
                level.messages = found.messages
                offset = self._offsets[level.number] = found.messages[0].queue_offset
            elif self._sync and found.max_offset < end:
                self._store.flush()  # Read when it is on disk, for which somebody has to see.
            elif offset < found.min_offset:
                log.warning(
                    "retention deleted messages of delay level %d before they were delivered:"
                    " offsets %d to %d",
                    level.number,
                    offset,
                    found.min_offset - 1,
                )
                offset = self._offsets[level.number] = found.min_offset
            elif offset > end:
                # Damaged memory, or a file of another time: on from where it surely was, and what is due by
                # now is looked for.
                self._offsets.doubt(max(clock(), self._store.last_store_ms()))
                offset = self._offsets[level.number] = self._offsets.saved(level.number, end)
            else:
                return None

    def _deliver_one(self, level: Level, aside: int, message: MessageExt) -> None:
        offset = message.queue_offset
        wanted = destination(message)
        place = None if wanted is None else self._place(*wanted)
        if place is None:
            why = "it does not say where it belongs" if wanted is None else f"there is no topic {wanted[0]}"
            log.warning("delayed message %s is dropped: %s", message.msg_id, why)
            self._offsets[level.number] = offset + 1
        elif self._is_doubtful(level, aside, message) and self._was_stored_in(place[0], message):
            self._offsets[level.number] = offset + 1
        else:
            topic, queue_id = place
            number = self._store.number(topic, queue_id, add=True)
            assert number is not None
            self._offsets.state(level.number, offset, number, self._store.next_offset(number))
            properties = changed(message.encoded, {})
            try:
                copy = self._store.append(
                    topic, queue_id, message, properties, reconsume_times=message.reconsume_times
                )
                self._end = copy.end
            except MessageInvalid as error:
                log.warning("delayed message %s is dropped: %s", message.msg_id, error)
            self._offsets.count(level.number, offset + 1)
        level.place += 1
        level.waiting = None

    def _is_doubtful(self, level: Level, aside: int, message: MessageExt) -> bool:
        """Whether it may have been delivered unnoted: it was due then, by its level's delay of today, or by
        that of when it was put aside."""
        doubt_ms, waiting = self._offsets.doubt_ms, level.waiting
        if waiting is None or message.store_time_ms > doubt_ms:
            return False
        meant_ms = self._meant_ms(aside, message) or waiting.delay_ms
        return min(waiting.due_ms - 1, message.store_time_ms + meant_ms) <= doubt_ms

    def _flush(self) -> None:
        if self._sync and self._end:
            self._store.flush(self._end)
            self._end = 0

    def _settle(self) -> None:
        """Find out about a delivery in whose middle somebody died, or failed."""
        stated = self._offsets.stated()
        if stated is None:
            return
        self._store.repair_tail()
        done = self._was_stored(stated)
        self._offsets.count(stated.level, stated.offset + 1 if done else stated.offset)
        for level in self._levels:
            level.forget()
            level.waiting = None

    def _was_stored(self, stated: Stated) -> bool:
        level = self._levels[stated.level - 1]
        found = self._pull(level.queue, stated.offset, 1, 0, None, 0.0)
        if found.status is not PullStatus.FOUND or found.messages[0].queue_offset != stated.offset:
            return False
        message = found.messages[0]
        place = self._store.queue_of(stated.queue)
        if place is None:
            return False  # Its topic was deleted since, with all that was in it.
        queue = MessageQueue(place[0], self._broker_name, place[1])
        end = self._store.next_offset(stated.queue)
        if self._sync:
            self._store.flush()  # What is not on disk would not be seen.
        if stated.begin >= end:
            return False
        for found in readable(
            lambda at: self._pull(queue, at, READ_COUNT, READ_SIZE, None, 0.0), stated.begin
        ):
            if any(is_copy(candidate, message) for candidate in found.messages):
                return True
            if found.next_offset >= end:
                return False
        return False
