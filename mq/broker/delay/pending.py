"""What waits to be delivered: messages with a delay level, and those that are due at a time of their own.
What failed in a group that was deleted is left out: it is dropped when it is due.

Both are found in the topics in which they are put aside (see mq/store/log/delayed_append.py). One waits as
long as it is not delivered, unless a marker recalls it: until it is due, and longer where nobody delivers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache

from mq.api.local import Delayed
from mq.api.queues import readable
from mq.api.results import MessageQueue
from mq.api.retention import Range
from mq.broker.delay.levels import SCHEDULE_TOPIC, destination
from mq.broker.delay.recall import MARKS
from mq.broker.delay.schedule import Schedule
from mq.broker.delay.timer import TIMER_TOPIC, Timer
from mq.message import MessageExt
from mq.properties import number_of, value_of
from mq.store.queue.reader import Reader
from mq.store.store import Store
from mq.store.timer.engine import LATE_MS

__all__ = ["delayed", "delivered_before", "due_ms_of", "is_marker", "messages", "name_of", "undelivered"]

READ_COUNT, READ_SIZE = 256, 1 << 20
QUEUE_OFFSET_MAX = 1 << 62


def delayed(
    store: Store, broker_name: str, version: object, schedule: Schedule, timer: Timer
) -> Iterator[Delayed]:
    """All that wait now, levels first, each in the order of the sends. Damaged records are left out."""
    reader = Reader(store, broker_name, version, lambda _queue: None)
    try:
        yield from _of_levels(reader, broker_name, schedule)
        yield from _of_times(reader, broker_name, delivered_before(store, timer))
    finally:
        reader.close()


def delivered_before(store: Store, timer: Timer) -> int:
    """What is due later than that, in ms, waits."""
    now_ms = time.time_ns() // 1_000_000
    delivered_ms = now_ms if store.read_only else timer.delivered_ms(now_ms)
    # Of the last slots some are delivered, and the others are about to be.
    return delivered_ms if delivered_ms <= now_ms - LATE_MS - timer.precision_ms else now_ms


def name_of(message: MessageExt) -> tuple[str, str] | None:
    """The topic and unique id of a message that is put aside for its due time, or that a marker recalls."""
    place = destination(message)
    return None if place is None else (place[0], message.msg_id)


def due_ms_of(message: MessageExt) -> int | None:
    """When a message that is put aside is due; None for a marker, and for what has no due time."""
    out_ms = number_of(message.encoded, b"TIMER_OUT_MS\x01")
    return None if out_ms is None or is_marker(message) else message.deliver_at_ms or out_ms + 1


def is_marker(message: MessageExt) -> bool:
    """Whether this recalls a message."""
    return value_of(message.encoded, MARKS) is not None


def _of_levels(reader: Reader, broker_name: str, schedule: Schedule) -> Iterator[Delayed]:
    is_abandoned = cache(schedule.is_abandoned)
    for level, delay_ms in enumerate(schedule.delays_ms, start=1):
        queue = MessageQueue(SCHEDULE_TOPIC, broker_name, level - 1)
        if not reader.max_offset(queue):
            continue
        for message in messages(reader, queue, schedule.delivered(level, queue)):
            place = destination(message)
            if place is not None and not is_abandoned(place[0]):
                due_ms = message.store_time_ms + delay_ms
                yield Delayed(due_ms, MessageQueue(place[0], broker_name, place[1]), message.msg_id, level, 0)


def _of_times(reader: Reader, broker_name: str, delivered_ms: int) -> Iterator[Delayed]:
    """What is due later than that."""
    queue = MessageQueue(TIMER_TOPIC, broker_name, 0)
    waiting: dict[tuple[str, str], Delayed] = {}
    recalled: set[tuple[str, str]] = set()
    for message in messages(reader, queue, reader.min_offset(queue)):
        place, out_ms = destination(message), number_of(message.encoded, b"TIMER_OUT_MS\x01")
        if place is None or out_ms is None:
            continue
        name, due_ms = (place[0], message.msg_id), due_ms_of(message)
        if due_ms is None:
            recalled.add(name)
        elif due_ms > delivered_ms:
            # One that is far ahead may be there twice, like its marker: both are put aside again meanwhile.
            waiting[name] = Delayed(due_ms, MessageQueue(place[0], broker_name, place[1]), name[1], 0, out_ms)
    yield from (one for name, one in waiting.items() if name not in recalled)


def messages(
    reader: Reader, queue: MessageQueue, first: int, last: int = QUEUE_OFFSET_MAX
) -> Iterator[MessageExt]:
    """Those of a queue from one offset to another. Damaged records are left out."""
    if first > last:
        return
    for found in readable(lambda at: reader.pull(queue, at, READ_COUNT, READ_SIZE, None, 0.0), first):
        for message in found.messages:
            if message.queue_offset > last:
                return
            yield message


def undelivered(schedule: Schedule, broker_name: str, level: Range) -> Iterator[tuple[str, int]]:
    """What waits in a range of a delay level: the topic that each message is for, and its queue offset."""
    queue = MessageQueue(SCHEDULE_TOPIC, broker_name, level.queue_id)
    first = max(level.first, schedule.delivered(level.queue_id + 1, queue))
    is_abandoned = cache(schedule.is_abandoned)
    for message in messages(schedule.reader, queue, first, level.last):
        if (place := destination(message)) is not None and not is_abandoned(place[0]):
            yield place[0], message.queue_offset
