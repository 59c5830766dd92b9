"""One queue that a consumer owns: pulled, in hand, finished, committed. Every kind of consumer has these.

The messages are in a ProcessQueue, whose `next` is where the pull goes on. A pull that finds nothing wanted
moves the offset all the same. Retention that was faster is a gap, said once; an offset beyond the end is
corrected. Where the group's offset was reset, everything is forgotten, and the queue begins there again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from mq.api.broker import READ_SIZE_MAX, Broker
from mq.api.group import Claim
from mq.api.results import MessageQueue, PullStatus
from mq.client.engine.delivery import Delivery
from mq.client.engine.flow_control import Limits
from mq.client.engine.hung_listeners import NOT_HUNG, Hung, clock
from mq.client.engine.process_queue import MessageRun, ProcessQueue
from mq.client.retry import RetriedMessage
from mq.errors import StoreCorrupted
from mq.message import MessageExt
from mq.names import RETRY_PREFIX

logger = logging.getLogger("mq.consumer")

PULL_PAUSE = 1.0  # seconds, after an error
# With others busy, a queue in which there was nothing is not looked at again sooner.
COLD_SECONDS = 0.001
# With so much waiting for another attempt, a consumer that asks for messages takes no more of the queue.
HELD_COUNT_MAX, HELD_SIZE_MAX = 1000, 100 << 20


Pulled = tuple[int, list[MessageExt], int]  # from an offset on, what is wanted before another


class ConsumeRequest:
    """Messages of a queue that were handed out: a run, to be finished. `cache` is where it came from."""

    __slots__ = ("cache", "delivery", "is_relieved", "owned", "run", "thread")

    def __init__(self, owned: OwnedQueue, run: MessageRun) -> None:
        self.owned = owned
        self.cache: ProcessQueue = owned.cache
        self.run = run
        self.delivery: Delivery = owned.delivery  # as it was: it may be replaced
        self.thread = 0  # that performs it
        self.is_relieved = False  # of what it had not begun

    @property
    def keeps_others_waiting(self) -> bool:
        """Whether there may be messages behind the one that its listener is at, for others to take."""
        return not self.is_relieved and len(self.run.messages) > self.run.batch and not self.delivery.ordered

    @property
    def is_wanted(self) -> bool:
        """Whether its result still counts: neither did it take too long, nor was the offset reset."""
        return not self.run.is_void and self.owned.cache is self.cache

    @property
    def is_open(self) -> bool:
        """Whether it is wanted and not finished, as by a commit just before it was handed out."""
        return self.is_wanted and self.run in self.cache.open


class Unconsumed(NamedTuple):
    """What of a request stays here although it is finished: `again`, the last of its messages, come next; or
    with `due` each of these comes from then on. The queue waits until `suspended_until`."""

    again: Sequence[MessageExt] = ()
    due: float | None = None
    suspended_until: float = 0.0


ALL_CONSUMED: Final = Unconsumed()


class OwnedQueue:
    """A queue with its claim, its messages, and how they are delivered. The consumer's lock guards it.

    It begins at the offset that the claim says; where it says none, at `start`, or at the oldest message.
    """

    def __init__(self, broker: Broker, claim: Claim, delivery: Delivery, start: int | None = None) -> None:
        self.queue: Final[MessageQueue] = claim.queue
        self.claim: Final = claim
        self.delivery = delivery
        self.is_draining = False  # to be given up, as soon as what is in hand is finished
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
        self._broker = broker
        self._pull = claim.puller()
        self._is_retry = self.queue.topic.startswith(RETRY_PREFIX)
        self._is_sought = False
        self._noted: str | None = None
        self._lost = 0  # messages one after the other that could not be read
        self.committed = self._beginning(start)
        # A consumer that asks for messages pulls when it has none: there is no flow to control.
        self._weighs = delivery.is_heard
        self.cache = ProcessQueue(self.committed, weighs=self._weighs)

    # Pulling.

    def may_pull(self, now: float, limits: Limits) -> bool:
        if self.is_draining or self.is_restarting or now < self.pull_after:
            return False
        cache = self.cache
        if cache.count and limits.over(cache):
            self.is_full = True
            return False
        self.is_full = False
        return True

    @property
    def wants_more(self) -> bool:
        """Whether a consumer that asks for messages is to pull. What waits comes back when it is due, so that
        nobody needs to be told when there is room again; it is forgotten where the queue begins again."""
        cache = self.cache
        has_room = cache.held_count < HELD_COUNT_MAX and cache.held_size < HELD_SIZE_MAX
        return not self.is_draining and (has_room or self.is_restarting)

    def pull(self, count_max: int, now: float) -> Pulled | None:
        """What comes next, for take_in; None where there is nothing now. Without the lock. Raises what the
        broker does; StoreCorrupted for a record that cannot be read."""
        delivery = self.delivery
        selection = delivery.selection
        offset = self.cache.next
        found = self._pull(offset, count_max, READ_SIZE_MAX, selection.hashes, 0.0)
        if self.trouble:
            self.trouble = ""
        if self._lost:
            self._report_all_lost(offset)
        status, end = found.status, found.next_offset
        if status is PullStatus.FOUND:
            messages = found.messages if type(found.messages) is list else list(found.messages)
            messages = selection.keep(messages)
            if self._is_retry and delivery.is_heard:
                messages = [RetriedMessage(message) for message in messages]
            return offset, messages, end
        if status is PullStatus.OFFSET_ILLEGAL:
            return self._go_on_at(offset, end)
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
        if self.cache.is_idle and self.cache.begun <= self.committed and not self._is_sought:
            # What the filter left out is no lag, where nothing in front of it waits for a commit.
            self.commit()

    def pass_over(self, error: StoreCorrupted) -> Pulled:
        """What was pulled where a record cannot be read: it is lost, and consumption goes on after it. Raises
        the error where it does not say which record that is."""
        offset = self.cache.next
        if error.queue_offset is None or error.queue_offset < offset:
            raise error
        self._lost += 1
        if self._lost == 1:
            logger.error("%s", error)
        return offset, [], error.queue_offset + 1

    def hold_off(self, now: float, error: BaseException) -> None:
        """A pull failed: the next one is later."""
        text = f"cannot be read: {error}"
        if text != self.trouble:
            logger.error("%s/%d %s", self.queue.topic, self.queue.queue_id, text)
        self.trouble = text
        self.pull_after = now + PULL_PAUSE

    def _go_on_at(self, offset: int, right: int) -> Pulled | None:
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

    def take(self, count_max: int, now: float) -> ConsumeRequest | None:
        """The next messages, at most so many, to be finished by the thread that takes them."""
        cache = self.cache
        if now < self.suspended_until or self.is_restarting or (cache.open and self.delivery.ordered):
            return None
        run = cache.take(count_max, now)
        return None if run is None else ConsumeRequest(self, run)

    def finish(self, request: ConsumeRequest, unconsumed: Unconsumed = ALL_CONSUMED) -> bool:
        """What was taken is consumed, but for what stays; commits nothing. False: it counts no more."""
        if not request.is_wanted:
            return False
        self.cache.finish(request.run, unconsumed.again, unconsumed.due)
        if unconsumed.suspended_until:
            self.suspended_until = unconsumed.suspended_until
        return True

    def finish_open(self) -> None:
        """All that was handed out counts as consumed."""
        for run in list(self.cache.open):
            self.cache.cut(run)
            self.cache.finish(run)

    def put_back(self) -> None:
        """Forget what is here: it is pulled again, from the first that is not consumed on."""
        self._replace_cache(self.cache.lowest)

    def deliver_by(self, delivery: Delivery) -> None:
        """Deliver what nobody has begun in another way, by another selection."""
        if delivery is not self.delivery:
            self.delivery = delivery
            self.cache.drain()

    def seek(self, offset: int) -> None:
        """Go on from here. Raises ValueError for an offset that the queue does not have."""
        low, high = self._broker.min_offset(self.queue), self._broker.max_offset(self.queue)
        if not isinstance(offset, int) or not low <= offset <= high:
            raise ValueError(f"{self.queue} has the offsets {low} to {high}, not {offset!r}")
        if not self.is_draining and (self.is_restarting or not self.claim.is_current()):
            self.restart()  # Where the offset was reset to before counts no more.
        self._replace_cache(offset)
        self._is_sought = True

    # Committing.

    @property
    def is_sought(self) -> bool:
        """Whether a seek is not committed yet."""
        return self._is_sought

    @property
    def is_behind(self) -> bool:
        """Whether there is something to commit."""
        return self._is_sought or self.cache.lowest > self.committed

    def commit(self) -> None:
        """Commit what is finished, after a seek also downwards; where somebody reset the offset, begin again
        from there."""
        lowest = self.cache.lowest
        if self.is_restarting or not (lowest > self.committed or self._is_sought):
            return
        if not self.claim.commit(self.committed if self._is_sought else lowest):
            self.is_restarting = True
            return
        if self._is_sought:
            self.claim.correct(lowest)
            self._is_sought = False
        self.committed = lowest

    def apply_reset(self) -> None:
        """Begin again where the group's offset was reset to, if it was; or with a queue made anew."""
        if not self.claim.is_current():
            self.is_restarting = True

    def restart(self) -> bool:
        """Forget everything and begin where the offset says now. False: not yet, since in order the listener
        that runs must end first. Raises what the broker says of a topic that was deleted, say."""
        open_runs = self.cache.open
        for run in open_runs:
            self.cache.cut(run)
        if self.delivery.ordered and open_runs:
            return False
        self.committed = self._beginning()
        self._replace_cache(self.committed)
        self.is_restarting = self.is_full = self._is_sought = False
        self.suspended_until = self.pull_after = self.cold_until = 0.0
        return True

    def _beginning(self, start: int | None = None) -> int:
        committed = self.claim.committed()
        if committed is not None:
            return committed
        return self._broker.min_offset(self.queue) if start is None else start

    def _replace_cache(self, offset: int) -> None:
        """Begin here with nothing; the result of what is in hand counts no more."""
        for run in self.cache.open:
            self.cache.cut(run)
            run.is_void = True
        self.cache = ProcessQueue(offset, weighs=self._weighs)

    # Giving up.

    def is_drained(self) -> bool:
        """Whether nothing keeps the queue from being given up; forgets what nobody has begun."""
        if not self.is_restarting:
            self.cache.drain()
            return self.cache.is_idle
        for run in self.cache.open:
            self.cache.cut(run)
        return not self.cache.open

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

    def set_status(self, reason: str) -> None:
        """Say why the queue does not move; nothing while it does."""
        if reason != self._noted:
            self._noted = reason
            self.claim.set_status(reason)

    def reason(self, limits: Limits, now: float, is_suspended: bool, hung: Hung = NOT_HUNG) -> str:
        """Why the queue of a push consumer does not move."""
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
    def has_note(self) -> bool:
        return bool(self._noted)
