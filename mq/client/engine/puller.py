"""One queue that a consumer has: pulls from it, holds back when full, commits, and says why it does not move.

`next` of its process queue is where the pull goes on. A pull that finds nothing wanted moves the offset all
the same. Retention that was faster is a gap, said once; an offset beyond the end is corrected. A record
that cannot be read is lost, and consumption goes on after it: whoever is on call needs one line about it,
and not a queue that stands still behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from mq.api.broker import Puller
from mq.api.group import Claim
from mq.api.results import MessageQueue, PullStatus
from mq.client.engine.delivery import Delivery
from mq.client.engine.flow_control import Limits
from mq.client.engine.hung_listeners import NOT_HUNG, Hung, clock
from mq.client.engine.process_queue import ProcessQueue, Run
from mq.client.retry import RetriedMessage
from mq.errors import BrokerClosed, ForkedBroker, StoreCorrupted
from mq.message import MessageExt

logger = logging.getLogger("mq.consumer")

PULL_SIZE_MAX = 256 << 10
PULL_PAUSE = 1.0  # seconds, after an error
# With others busy, a queue in which there was nothing is not looked at again sooner.
COLD_SECONDS = 0.001


Pulled = tuple[int, list[MessageExt], int]  # from an offset on, what is wanted before another


class OwnedQueue:
    """A queue with its claim, its messages, and its listener. `lock` of the consumer guards it."""

    def __init__(
        self,
        queue: MessageQueue,
        claim: Claim,
        pull: Puller,
        delivery: Delivery,
        start: Callable[[], int],
        is_retry: bool,
        is_unsaved: Callable[[], bool],
    ) -> None:
        self.queue: Final = queue
        self.claim: Final = claim
        self.delivery = delivery
        self.is_retry: Final = is_retry
        self.is_draining = False
        self.is_restarting = False  # as soon as no listener runs
        self.is_listed = False  # among the queues that have something to take
        self.is_full = False
        self.trouble = ""  # why it is not pulled from
        self.trouble_of_group = ""
        self.pull_after = 0.0  # a time before which it is not
        self.cold_until = 0.0
        self.suspended_until = 0.0
        self.attempts = 0  # of the message at `attempts_at`, in order
        self.attempts_at = -1
        self._start = start
        self._is_unsaved = is_unsaved
        self._pull = pull
        self._noted: str | None = None
        self._lost = 0  # messages one after the other that could not be read
        self.cache = ProcessQueue(self._begin())

    # Pulling: by the thread that leads.

    def may_pull(self, now: float, limits: Limits) -> bool:
        if self.is_draining or self.is_restarting or now < self.pull_after:
            return False
        cache = self.cache
        if cache.count and limits.over(cache):
            self.is_full = True
            return False
        self.is_full = False
        return True

    def pull(self, count_max: int, now: float) -> Pulled | None:
        """What comes next, for take_in; None where there is nothing now. Without the lock."""
        selection = self.delivery.selection
        offset = self.cache.next
        try:
            found = self._pull(offset, count_max, PULL_SIZE_MAX, selection.hashes, 0.0)
        except StoreCorrupted as error:
            if error.queue_offset is None or error.queue_offset < offset:
                raise
            self._report_lost(error)
            return offset, [], error.queue_offset + 1
        if self.trouble:
            self.trouble = ""
        if self._lost:
            self._report_all_lost(offset)
        status, end = found.status, found.next_offset
        if status is PullStatus.FOUND:
            messages = found.messages if type(found.messages) is list else list(found.messages)
            messages = selection.keep(messages)
            if self.is_retry:
                messages = [RetriedMessage(message) for message in messages]
            return offset, messages, end
        if status is PullStatus.OFFSET_ILLEGAL:
            return self._go_to(offset, end)
        if status is PullStatus.NO_NEW_MESSAGE:
            self.cold_until = now + COLD_SECONDS
            if end == offset:
                return None
        return offset, [], end

    def take_in(self, pulled: Pulled) -> None:
        """Put what was pulled into the cache, unless the queue is being given up since: what was cached may
        have been forgotten, and this came after it."""
        begin, messages, end = pulled
        if self.is_draining or self.cache.next != begin:
            return
        self.cache.put(messages, end)
        if not self.cache.count:
            self.commit()

    def hold_off(self, now: float, error: BaseException) -> None:
        """A pull failed: the next one is later."""
        text = f"cannot be read: {error}"
        if text != self.trouble:
            logger.error("%s/%d %s", self.queue.topic, self.queue.queue_id, text)
        self.trouble = text
        self.pull_after = now + PULL_PAUSE

    def _go_to(self, offset: int, right: int) -> Pulled | None:
        if right > offset:
            # What is cached comes before the gap, and is consumed as ever.
            logger.warning(
                "%s/%d: messages from queue offset %d to %d were deleted before they were consumed",
                *(self.queue.topic, self.queue.queue_id, offset, right - 1),
            )
            return offset, [], right
        logger.warning(
            "%s/%d: queue offset %d is beyond the end: consumption goes on at %d",
            *(self.queue.topic, self.queue.queue_id, offset, right),
        )
        self.claim.correct(right)
        self.is_restarting = True
        return None

    def _report_lost(self, error: StoreCorrupted) -> None:
        self._lost += 1
        if self._lost == 1:
            logger.error("%s", error)

    def _report_all_lost(self, offset: int) -> None:
        if self._lost > 1:
            logger.error(
                "%s/%d: %d messages before queue offset %d could not be read and are lost",
                *(self.queue.topic, self.queue.queue_id, self._lost, offset),
            )
        self._lost = 0

    # Consuming.

    def can_take(self, now: float) -> bool:
        if now < self.suspended_until or self.is_restarting:
            return False
        cache = self.cache
        if self.delivery.ordered and cache.open:
            return False
        return cache.can_take(now)

    def take(self, now: float) -> Run | None:
        return self.cache.take(self.delivery.run_count, now) if self.can_take(now) else None

    def commit(self) -> None:
        """Commit what may be committed; where somebody reset the offset, begin again from there."""
        if not self.is_restarting and not self.claim.commit(self.cache.lowest):
            self.is_restarting = True

    def is_drained(self) -> bool:
        """Whether nothing keeps the queue from being given up; forgets what nobody has begun."""
        if not self.is_restarting:
            self.cache.drain()
            return self.cache.is_idle
        for run in self.cache.open:
            self.cache.cut(run)
        return not self.cache.open

    def restart(self, now: float) -> None:
        """Forget everything and begin where the offset says now, unless a listener must end first."""
        if self.claim.is_lost():
            return  # It is given up by the next rebalance.
        open_runs = self.cache.open
        for run in open_runs:
            self.cache.cut(run)
        if (self.delivery.ordered and open_runs) or now < self.pull_after:
            return
        try:
            fresh = ProcessQueue(self._begin())
        except (BrokerClosed, ForkedBroker):
            raise
        except Exception as error:  # noqa: BLE001 - of a topic that was deleted, say
            self.hold_off(now, error)
            return
        for run in open_runs:
            run.is_void = True
        self.cache = fresh
        self.is_restarting = False
        self.is_full = False
        self.suspended_until = self.pull_after = self.cold_until = 0.0

    def _begin(self) -> int:
        committed = self.claim.committed()
        return self._start() if committed is None else committed

    def lose(self) -> bool:
        """The queue is another member's: forget everything, and commit nothing. False: not yet, since in
        order the listener that runs must end first."""
        self.is_draining = self.is_restarting = True
        for run in list(self.cache.open):
            self.cache.cut(run)
        if self.delivery.ordered and self.cache.open:
            return False
        for run in self.cache.open:
            run.is_void = True
        return True

    # What is shown.

    def note(self, limits: Limits, now: float, is_suspended: bool, hung: Hung = NOT_HUNG) -> None:
        """Say why the queue does not move."""
        reason = self._reason(limits, now, is_suspended, hung)
        if reason != self._noted:
            self._noted = reason
            self.claim.note(reason)

    def _reason(self, limits: Limits, now: float, is_suspended: bool, hung: Hung) -> str:
        if text := hung.of(self.queue):
            return text
        if is_suspended:
            return "paused"
        if self.suspended_until > now:
            return f"suspended until {clock(self.suspended_until - now)}: attempt {self.attempts} failed"
        if self.trouble or self.trouble_of_group:
            return self.trouble or self.trouble_of_group
        if hung.threads and self.cache.count:
            return hung.of_all()
        if self.is_full:
            return limits.over(self.cache)
        due = self.cache.due
        if due is not None and due > now:
            return f"could not be sent back: tried again at {clock(due - now)}"
        return hung.of_lost(self.queue)

    @property
    def is_unsaved(self) -> bool:
        """Whether its offset is to be put on disk by this consumer, and no time is set for that."""
        return self._is_unsaved()

    @property
    def has_note(self) -> bool:
        return bool(self._noted)
