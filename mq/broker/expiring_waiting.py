"""Messages that no group can read yet, and that retention is about to delete: delayed ones that are not due,
and half messages of transactions that have not ended.

They lie in RocketMQ's own topics until they are delivered. A message that is due late may lie there several
times, since it is put aside again meanwhile, and so may a half message that was asked about: it is lost when
its last copy goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mq.api.results import MessageQueue
from mq.api.retention import DELAYED, HALF, Range, Waiting
from mq.api.transactions import Undecided
from mq.broker.delay.levels import SCHEDULE_TOPIC
from mq.broker.delay.pending import (
    delivered_before,
    due_ms_of,
    is_marker,
    messages,
    name_of,
    undelivered,
)
from mq.broker.delay.schedule import Schedule
from mq.broker.delay.timer import TIMER_TOPIC, Timer
from mq.broker.transactions.half_queues import GIVEN_UP_TOPIC, HALF_TOPIC
from mq.errors import StoreCorrupted, StoreFull
from mq.message import MessageExt
from mq.store.index.find_records import EVERYWHERE, stored
from mq.store.store import Store

__all__ = ["ExpiringWaiting"]

Found = tuple[str, int]  # The topic that a message is meant for, and its queue offset where it waits.


class ExpiringWaiting:
    """Of one broker. undecided() are the transactions that have not ended."""

    def __init__(
        self,
        store: Store,
        broker_name: str,
        schedule: Schedule,
        timer: Timer,
        undecided: Callable[[], Sequence[Undecided]],
    ) -> None:
        self._store = store
        self._broker_name = broker_name
        self._schedule = schedule
        self._timer = timer
        self._undecided = undecided
        # By queue of the timer topic: where the search goes on, and what counted as delivered until there.
        # What was passed is delivered or recalled, or has a copy that lies there or later.
        self._searched: dict[int, tuple[int, int]] = {}

    def of(self, ranges: Sequence[Range], log_min: int, *, count_max: int | None) -> Iterator[Waiting]:
        """What of these ranges waits, and has no copy behind that log offset. count_max: so many messages are
        looked at for copies; where there are more, nothing is said of messages with a due time."""
        for each in ranges:
            if each.topic == SCHEDULE_TOPIC:
                yield from _by_topic(DELAYED, each, undelivered(self._schedule, self._broker_name, each))
            elif each.topic == TIMER_TOPIC:
                yield from _by_topic(DELAYED, each, self._of_times(each, count_max) or ())
        halves = [each for each in ranges if each.topic in (HALF_TOPIC, GIVEN_UP_TOPIC)]
        if halves:
            lost = [one for one in self._undecided() if one.message.log_offset < log_min]
            for each in halves:
                places = [
                    (one.message.topic, one.message.queue_offset)
                    for one in lost
                    if one.given_up == (each.topic == GIVEN_UP_TOPIC)
                ]
                yield from _by_topic(HALF, each, places)

    def first_of_times(
        self, ranges: Sequence[Range], log_min: int, count_max: int | None
    ) -> tuple[MessageExt, bool] | None:
        """The first message with a due time that waits in these ranges, and has no copy behind that log
        offset. It goes on where the last call ended, and looks at so many messages; False: it has come that
        far, and the next call begins with this one."""
        delivered_ms = delivered_before(self._store, self._timer)
        left = count_max
        for each in ranges:
            if each.topic != TIMER_TOPIC:
                continue
            at, then_ms = self._searched.get(each.queue_id, (0, 0))
            # If the clock was set back, or delivery stands still, what counted as delivered may wait.
            first = max(each.first, at) if delivered_ms >= then_ms else each.first
            gone = Range(each.topic, each.queue_id, first, each.last)
            try:
                found = self._first(gone, log_min, delivered_ms, left)
            except (StoreCorrupted, StoreFull):  # The index is of no use, or there is no space for it.
                found = self._first_unindexed(gone, left)
            at = found[0].queue_offset if found is not None else max(first, each.last + 1)
            self._searched[each.queue_id] = at, delivered_ms
            if found is not None:
                return found
            if left is not None:
                left -= max(0, each.last + 1 - first)
        return None

    def _first(
        self, gone: Range, log_min: int, delivered_ms: int, count_max: int | None
    ) -> tuple[MessageExt, bool] | None:
        queue = MessageQueue(TIMER_TOPIC, self._broker_name, gone.queue_id)
        until = EVERYWHERE
        # Below the end: what lies there is made findable once, since that waits for senders.
        next_until = self._store.end() - 1
        for count, message in enumerate(messages(self._schedule.reader, queue, gone.first, gone.last)):
            if count_max is not None and count >= count_max:
                return message, False
            due_ms = due_ms_of(message)
            if due_ms is None or due_ms <= delivered_ms:
                continue
            if not self._is_elsewhere(message, log_min, until):
                return message, True
            until = next_until
        return None

    def _first_unindexed(self, gone: Range, count_max: int | None) -> tuple[MessageExt, bool] | None:
        places = self._of_times(gone, count_max)
        first = gone.first if places is None else min((at for _, at in places), default=gone.last + 1)
        queue = MessageQueue(TIMER_TOPIC, self._broker_name, gone.queue_id)
        found = next(messages(self._schedule.reader, queue, first, gone.last), None)
        return None if found is None else (found, places is not None)

    def _is_elsewhere(self, message: MessageExt, log_min: int, until: int) -> bool:
        """Whether a message with a due time has a copy behind that log offset, or is recalled."""
        found = stored(self._store, TIMER_TOPIC, message.msg_id, message.store_time_ms, until=until)
        name = name_of(message)
        return any(one.log_offset >= log_min or is_marker(one) for one in found if name_of(one) == name)

    def _of_times(self, gone: Range, count_max: int | None) -> Sequence[Found] | None:
        """None where there are more messages to look at than that."""
        queue, reader = MessageQueue(TIMER_TOPIC, self._broker_name, gone.queue_id), self._schedule.reader
        delivered_ms = delivered_before(self._store, self._timer)
        waiting: dict[tuple[str, str], Found] = {}
        for count, message in enumerate(messages(reader, queue, gone.first, gone.last)):
            if count_max is not None and count >= count_max:
                return None
            name, due_ms = name_of(message), due_ms_of(message)
            if name is not None and due_ms is not None and due_ms > delivered_ms:
                waiting[name] = name[0], message.queue_offset
        if not waiting:
            return ()
        for count, message in enumerate(messages(reader, queue, gone.first)):
            if count_max is not None and count >= count_max:
                return None
            if message.queue_offset > gone.last or is_marker(message):
                waiting.pop(name_of(message) or ("", ""), None)
        return tuple(waiting.values())


def _by_topic(kind: str, gone: Range, found: Sequence[Found] | Iterator[Found]) -> Iterator[Waiting]:
    """For each topic how many messages for it wait in a range that goes, from which to which."""
    places: dict[str, list[int]] = {}
    for topic, offset in found:
        if gone.first <= offset <= gone.last:
            places.setdefault(topic, []).append(offset)
    for topic, offsets in sorted(places.items()):
        lies_in = Range(gone.topic, gone.queue_id, min(offsets), max(offsets))
        yield Waiting(kind, topic, lies_in, len(offsets))
