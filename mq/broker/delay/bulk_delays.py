"""Messages of a bulk that are to be delivered later: which queues they wait in, and what the leader is told.

A bulk has each of them written as mq/store/log/delayed_append.py would write it, for a queue of this broker:

    level(n)   the queue of a delay level; it waits there for the level's delay, counted from when the bulk is
               stored, which is what keeps the queue in the order in which its messages are due
    timed      the queue of messages that say themselves when they are due

Nobody else may have such messages appended: what does not say where it belongs is refused with its bulk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mq.api.results import MessageQueue
from mq.broker.delay.levels import SCHEDULE_TOPIC
from mq.broker.delay.schedule import Schedule
from mq.broker.delay.timer import TIMER_TOPIC, Timer
from mq.store.log.multi_append import PLAIN, TIMED

__all__ = ["DelayQueues"]


class DelayQueues:
    """The queues of one broker. admit(topic, queue_id) raises what forbids a message in any other queue.

    delay_max_ms: how far ahead a message may be due that says when.
    """

    def __init__(
        self,
        name: str,
        schedule: Schedule,
        timer: Timer,
        delay_max_ms: int,
        admit: Callable[[str, int], None],
    ) -> None:
        self.delay_max_ms = delay_max_ms
        self.precision_ms = timer.precision_ms
        self.levels = len(schedule.delays_ms)
        self.timed = MessageQueue(TIMER_TOPIC, name, 0)
        self._name = name
        self._schedule = schedule
        self._timer = timer
        self._admit_others = admit

    def level(self, level: int) -> MessageQueue:
        """The queue of a delay level, 1 to `levels`."""
        assert 1 <= level <= self.levels
        return MessageQueue(SCHEDULE_TOPIC, self._name, level - 1)

    def admit(self, topic: str, queue_id: int) -> None:
        """Have the queue of messages put aside; raises what forbids a message there."""
        if topic == SCHEDULE_TOPIC and 0 <= queue_id < self.levels:
            self._schedule.queue_of(queue_id + 1)
        elif topic == TIMER_TOPIC and queue_id == 0:
            self._timer.queue_number()
        else:
            self._admit_others(topic, queue_id)

    def delays_ms(self, queues: Sequence[MessageQueue]) -> list[int] | None:
        """What BulkWriter has to know of queues; None if nobody waits in any of them."""
        delays = [self._delay_ms(queue) for queue in queues]
        return None if all(delay == PLAIN for delay in delays) else delays

    def _delay_ms(self, queue: MessageQueue) -> int:
        if queue.topic == SCHEDULE_TOPIC and 0 <= queue.queue_id < self.levels:
            return self._schedule.delays_ms[queue.queue_id]
        return TIMED if (queue.topic, queue.queue_id) == (TIMER_TOPIC, 0) else PLAIN

    def stored(self, delays_ms: Sequence[int], store_time_ms: int) -> None:
        """A bulk was stored: the leader is woken if it would sleep longer than the first of it waits. It does
        not wait until that is on disk: see flush_sent in native/timer/timer.c."""
        if levels := [delay for delay in delays_ms if delay >= 0]:
            self._schedule.stored(store_time_ms + min(levels))
        if TIMED in delays_ms:
            self._timer.progress.notify()
