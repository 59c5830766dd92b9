"""What there is to run, and what becomes of it: taken by a thread, performed, finished, committed.

Everything here is called under the consumer's lock, but perform and expire, which take it themselves:
neither a listener nor a hand-back runs under it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident

from mq.client.engine.delivery import Delivery, Failure
from mq.client.engine.flow_control import Limits
from mq.client.engine.hung_listeners import NOT_HUNG, NOTE_SECONDS, Hung, Running
from mq.client.engine.process_queue import ProcessQueue, Run
from mq.client.engine.puller import OwnedQueue
from mq.client.engine.send_back import RETRY_SECONDS, TIMEOUT_LEVEL, HandBack
from mq.message import MessageExt

RELIEVE_SECONDS = 0.05  # many times what a run is made for
logger = logging.getLogger("mq.consumer")


class Work:
    """A run of a queue, for a thread to perform. `cache` is where it came from."""

    __slots__ = ("cache", "delivery", "is_relieved", "owned", "run", "thread")

    def __init__(self, owned: OwnedQueue, run: Run) -> None:
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


class Runs:
    """At most `threads` of them are under way. `tell` is called when who leads has something to do about one
    that is finished."""

    def __init__(
        self,
        lock: threading.Lock,
        threads: int,
        limits: Limits,
        handback: HandBack,
        clock: Callable[[], float],
        tell: Callable[[], None],
    ) -> None:
        self.is_suspended = False
        self.limits = limits  # of queues, as of now
        self.more: Callable[[], None] = lambda: None  # has one more thread come and take
        self._lock = lock
        self._threads = threads
        self._handback = handback
        self._clock = clock
        self._tell = tell
        self._ready: deque[OwnedQueue] = deque()
        self._at_work: set[Work] = set()

    @property
    def may_run(self) -> bool:
        return len(self._at_work) < self._threads and not self.is_suspended

    def offer(self, owned: OwnedQueue, now: float) -> None:
        """See whether a queue has something to take."""
        if not owned.is_listed and owned.can_take(now):
            owned.is_listed = True
            self._ready.append(owned)

    def take_from(self, owned: OwnedQueue, now: float) -> Work | None:
        run = owned.take(now)
        if run is None:
            return None
        run.batch = owned.delivery.batch_size or 1
        run.left, run.is_lost = owned.claim.while_held(run.left), owned.claim.is_lost
        work = Work(owned, run)
        self._at_work.add(work)
        return work

    def take(self) -> Work | None:
        """The next for a thread that has nothing to do, the queues in turn."""
        ready = self._ready
        if not ready or len(self._at_work) >= self._threads:
            return None
        now = self._clock()
        for _ in range(len(ready)):
            owned = ready.popleft()
            owned.is_listed = False
            if self.is_suspended and not owned.is_draining:
                continue
            work = self.take_from(owned, now)
            if work is not None:
                self.offer(owned, now)
                if ready and len(self._at_work) < self._threads:
                    self.more()
                return work
        return None

    def can_take(self, now: float) -> bool:
        return self.may_run and any(owned.can_take(now) for owned in self._ready)

    def look_at(self, now: float) -> float:
        """When to look whether a listener has been running for long."""
        due = now + NOTE_SECONDS if self._at_work else float("inf")
        starts = [work.run.started for work in self._at_work if work.keeps_others_waiting]
        return min(due, min(starts) + RELIEVE_SECONDS) if starts else due

    def relieve_long(self, now: float) -> None:
        """Let others have what runs have not begun whose listeners take longer than was thought."""
        for work in self._at_work:
            if work.run.started + RELIEVE_SECONDS <= now and work.keeps_others_waiting:
                self.relieve(work)

    def hung(self, now: float) -> Hung:
        """The listeners that have been running for long, and where they stand."""
        long = [work for work in self._at_work if now - work.run.started > NOTE_SECONDS]
        if not long:
            return NOT_HUNG
        threads = len(self._at_work) if len(self._at_work) >= self._threads else 0
        running = [Running(work.owned.queue, work.run.started, work.thread, work.is_wanted) for work in long]
        return Hung(running, threads, now)

    def perform(self, work: Work) -> None:
        """Run a listener, hand back what it did not consume, and commit. Raises nothing."""
        owned, run = work.owned, work.run
        work.thread = get_ident()
        try:
            failures = work.delivery.run(run)
        except BaseException as error:  # noqa: BLE001 - sent to the thread from elsewhere, between two calls
            failures = self._interrupted(work, error)
        again: list[MessageExt] = []
        due: float | None = None
        suspended_until = 0.0
        # What is another member's by now is not sent back by this one.
        if failures and work.is_wanted and not run.is_lost():
            if work.delivery.ordered:
                again, seconds = self._handback.ordered(owned, failures[0])
                suspended_until = self._clock() + seconds if seconds else 0.0
            else:
                again = self._handback.concurrent(owned, failures)
                due = self._clock() + RETRY_SECONDS
        with self._lock:
            self._at_work.discard(work)
            must_tell = bool(again) or owned.is_draining or owned.has_note
            if work.is_wanted:
                work.cache.finish(run, again, due)
                if suspended_until:
                    owned.suspended_until = suspended_until
                try:
                    owned.commit()
                except Exception as error:  # noqa: BLE001 - whoever leads meets it too, and says so
                    logger.debug("commit of %s: %s", owned.queue, error)
                must_tell |= owned.is_full and not self.limits.still_full(work.cache)
                self.offer(owned, self._clock())
            must_tell |= owned.is_restarting or owned.is_unsaved
        if must_tell:
            with suppress(Exception):
                self._tell()

    def _interrupted(self, work: Work, error: BaseException) -> list[Failure]:
        """What failed of a run that ended in the middle; what it had not begun is for others."""
        run = work.run
        with self._lock:
            if not work.is_wanted or run not in work.cache.open:
                return []
            work.cache.cut(run)
            failed = self._unfinished(work)
        return [Failure(failed, error)] if failed else []

    def relieve(self, work: Work) -> None:
        """A run that was thought to be brief is not: let others have what it has not begun."""
        now = self._clock()
        work.is_relieved = True
        work.delivery.slow_down(now - work.run.started)
        if work.is_wanted and work.run in work.cache.open:
            self._isolate(work)
            self.offer(work.owned, now)

    def expire(self, work: Work, group: str) -> None:
        """Send back what a listener has had for too long. It goes on, but its result counts no more."""
        owned, run, cache = work.owned, work.run, work.cache
        with self._lock:
            if not work.is_wanted or run not in cache.open or run.is_lost():
                return
            self._isolate(work)
            messages = self._unfinished(work)
        logger.error(
            "group %s: %s has been running for %.1f s with %d messages from %s/%d, queue offset %d on: they"
            " are sent back, and its thread is lost until it returns",
            *(
                group,
                work.delivery.name(next(iter(messages), None)),
                self._clock() - run.started,
                len(messages),
            ),
            *(owned.queue.topic, owned.queue.queue_id, run.begin),
        )
        kept = [each for each in messages if not self._handback.send_back(each, TIMEOUT_LEVEL)]
        with self._lock:
            if work.is_wanted and run in cache.open:
                run.is_void = True
                cache.finish(run, kept, self._clock() + RETRY_SECONDS)
                owned.commit()

    def _unfinished(self, work: Work) -> list[MessageExt]:
        """Of a run of which all is begun: what failed, and what the listener is at."""
        run = work.run
        in_hand = run.in_hand
        return [each for each in run.failed if each not in in_hand] + in_hand

    def _isolate(self, work: Work) -> None:
        """Leave of a run what its listener is at, and what failed before."""
        work.cache.cut(work.run)
        if not work.run.failed:
            work.cache.settle(work.run, len(work.run.in_hand))
