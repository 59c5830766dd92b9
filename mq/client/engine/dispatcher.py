"""What there is to run, and what becomes of it: taken by a thread, performed, finished, committed.

Everything here is called under the consumer's lock, but perform and expire, which take it themselves:
neither a listener nor a send-back runs under it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident

from mq.client.engine.delivery import Failure
from mq.client.engine.flow_control import Limits
from mq.client.engine.hung_listeners import NOT_HUNG, NOTE_SECONDS, Hung, Running
from mq.client.engine.owned_queue import ALL_CONSUMED, ConsumeRequest, OwnedQueue
from mq.client.engine.send_back import TIMEOUT_LEVEL, SendBack
from mq.message import MessageExt

RELIEVE_SECONDS = 0.05  # many times what a run is made for
logger = logging.getLogger("mq.consumer")


class Dispatcher:
    """At most `threads` of them are under way. `tell` is called when the leading thread has something to do
    about one that is finished."""

    def __init__(
        self,
        lock: threading.Lock,
        threads: int,
        limits: Limits,
        send_back: SendBack,
        clock: Callable[[], float],
        tell: Callable[[], None],
        is_unsaved: Callable[[], bool],
    ) -> None:
        self.is_suspended = False
        self.limits = limits  # of queues, as of now
        self.more: Callable[[], None] = lambda: None  # has one more thread come and take
        self._lock = lock
        self._threads = threads
        self._send_back = send_back
        self._clock = clock
        self._tell = tell
        self._is_unsaved = is_unsaved
        self._ready: deque[OwnedQueue] = deque()
        self._at_work: set[ConsumeRequest] = set()

    @property
    def may_run(self) -> bool:
        return len(self._at_work) < self._threads and not self.is_suspended

    def offer(self, owned: OwnedQueue, now: float) -> None:
        """See whether a queue has something to take."""
        if not owned.is_listed and owned.can_take(now):
            owned.is_listed = True
            self._ready.append(owned)

    def take_from(self, owned: OwnedQueue, now: float) -> ConsumeRequest | None:
        delivery, claim = owned.delivery, owned.claim
        request = owned.take(delivery.run_count, now)
        if request is None:
            return None
        run = request.run
        run.batch = delivery.batch_size or 1
        run.left, run.is_lost = claim.while_held(run.left), claim.is_lost
        self._at_work.add(request)
        return request

    def take(self) -> ConsumeRequest | None:
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
            request = self.take_from(owned, now)
            if request is not None:
                self.offer(owned, now)
                if ready and len(self._at_work) < self._threads:
                    self.more()
                return request
        return None

    def can_take(self, now: float) -> bool:
        return self.may_run and any(owned.can_take(now) for owned in self._ready)

    def look_at(self, now: float) -> float:
        """When to look whether a listener has been running for long."""
        due = now + NOTE_SECONDS if self._at_work else float("inf")
        starts = [request.run.started for request in list(self._at_work) if request.keeps_others_waiting]
        return min(due, min(starts) + RELIEVE_SECONDS) if starts else due

    def relieve_long(self, now: float) -> None:
        """Let others have what runs have not begun whose listeners take longer than was thought."""
        for request in self._at_work:
            if request.run.started + RELIEVE_SECONDS <= now and request.keeps_others_waiting:
                self.relieve(request)

    def hung(self, now: float) -> Hung:
        """The listeners that have been running for long, and where they stand."""
        long = [request for request in self._at_work if now - request.run.started > NOTE_SECONDS]
        if not long:
            return NOT_HUNG
        threads = len(self._at_work) if len(self._at_work) >= self._threads else 0
        running = [Running(each.owned.queue, each.run.started, each.thread, each.is_wanted) for each in long]
        return Hung(running, threads, now)

    def perform(self, request: ConsumeRequest) -> None:
        """Run a listener, hand back what it did not consume, and commit. Raises nothing."""
        owned, run = request.owned, request.run
        request.thread = get_ident()
        try:
            failures = request.delivery.run(run)
        except BaseException as error:  # noqa: BLE001 - sent to the thread from elsewhere, between two calls
            failures = self._interrupted(request, error)
        unconsumed = self._send_back.settle(request, failures) if failures else ALL_CONSUMED
        with self._lock:
            self._at_work.discard(request)
            must_tell = bool(unconsumed.again) or owned.is_draining or owned.has_note
            if owned.finish(request, unconsumed):
                self._commit(owned)
                must_tell |= owned.is_full and not self.limits.still_full(owned.cache)
                self.offer(owned, self._clock())
            must_tell |= owned.is_restarting or self._is_unsaved()
        if must_tell:
            with suppress(Exception):
                self._tell()

    def _interrupted(self, request: ConsumeRequest, error: BaseException) -> list[Failure]:
        """What failed of a run that ended in the middle; what it had not begun is for others."""
        run = request.run
        with self._lock:
            if not request.is_wanted or run not in request.cache.open:
                return []
            request.cache.cut(run)
            failed = self._unfinished(request)
        return [Failure(failed, error)] if failed else []

    def relieve(self, request: ConsumeRequest) -> None:
        """A run that was thought to be brief is not: let others have what it has not begun."""
        now = self._clock()
        request.is_relieved = True
        request.delivery.slow_down(now - request.run.started)
        if request.is_wanted and request.run in request.cache.open:
            self._isolate(request)
            self._commit(request.owned)  # Nobody else may finish anything here while the listener runs.
            self.offer(request.owned, now)

    def expire(self, request: ConsumeRequest, group: str) -> None:
        """Send back what a listener has had for too long. It goes on, but its result counts no more."""
        owned, run, cache = request.owned, request.run, request.cache
        with self._lock:
            if not request.is_wanted or run not in cache.open or run.is_lost():
                return
            self._isolate(request)
            messages = self._unfinished(request)
        logger.error(
            "group %s: %s has been running for %.1f s with %d messages from %s/%d, queue offset %d on: they"
            " are sent back, and its thread is lost until it returns",
            *(
                group,
                request.delivery.name(next(iter(messages), None)),
                self._clock() - run.started,
                len(messages),
            ),
            *(owned.queue.topic, owned.queue.queue_id, run.begin),
        )
        kept = [each for each in messages if not self._send_back.send_back(each, TIMEOUT_LEVEL, owned.claim)]
        with self._lock:
            if request.is_wanted and run in cache.open:
                owned.finish(request, self._send_back.later(kept))
                run.is_void = True
                owned.commit()

    def _unfinished(self, request: ConsumeRequest) -> list[MessageExt]:
        """Of a run of which all is begun: what failed, and what the listener is at."""
        run = request.run
        in_hand = run.in_hand
        return [each for each in run.failed if each not in in_hand] + in_hand

    def _commit(self, owned: OwnedQueue) -> None:
        try:
            owned.commit()
        except Exception as error:  # noqa: BLE001 - the leader meets it too, and says so
            logger.debug("commit of %s: %s", owned.queue, error)

    def _isolate(self, request: ConsumeRequest) -> None:
        """Leave of a run what its listener is at, and what failed before."""
        request.cache.cut(request.run)
        if not request.run.failed:
            request.cache.settle(request.run, len(request.run.in_hand))
