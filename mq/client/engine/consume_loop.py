"""What a push consumer does between start and close, by whichever of its threads leads.

The leader goes round the queues that the consumer has: pulls from each, and has what came run, by itself
where the listener is brief and by the pool otherwise. Between the rounds it rebalances when the membership
says that something changed, gives up queues once their listeners have ended, and waits when there is nothing
to do. Every thread that has run something finishes it: sends back what failed, and commits.

One lock guards the queues, their caches and the pool. Neither a listener nor a pull nor a send-back runs
under it; commits and notes, which are stores into memory, do.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Final

from mq.api.group import Membership
from mq.api.results import MessageQueue
from mq.api.waiter import SWEEP_MAX, Waiter
from mq.client.engine.claimed_queues import ClaimedQueues
from mq.client.engine.dispatcher import Dispatcher
from mq.client.engine.options import PushOptions
from mq.client.engine.owned_queue import ConsumeRequest, OwnedQueue, Pulled
from mq.client.engine.send_back import RETRY_SECONDS, SendBack
from mq.client.engine.thread_pool import ThreadPool, Worker
from mq.errors import BrokerClosed, ForkedBroker, MQError, StoreCorrupted

logger = logging.getLogger("mq.consumer")

ROUND_SECONDS = 20.0  # at which a rebalance is made that nothing asked for
# What a filter leaves out wakes nobody; so often it is looked at, for its offsets to be committed.
FILTERED_SECONDS = 5.0
LOOK_SECONDS = 0.05  # between two looks at the times of queues while there is work all along
ERROR_PAUSE = 1.0


class ConsumeLoop:
    """Started once, ended once. `closed` is set when every queue is given up and the group is left."""

    def __init__(
        self,
        options: PushOptions,
        waiter: Waiter,
        membership: Membership,
        claimed: ClaimedQueues,
        send_back: SendBack,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.closed: Final = threading.Event()
        self._options = options
        self._claimed = claimed
        self._waiter = waiter
        self._membership = membership
        self._clock = clock
        self._lock: Final = claimed.lock
        self._owned: Mapping[MessageQueue, OwnedQueue] = claimed.owned
        self._is_closing = self._is_ending = False
        self._when_closed: list[Callable[[], object]] = []
        self._rebalance_at = 0.0
        self._must_look = True  # at all that depends on time,
        self._look_at = 0.0  # or then, while there is work all along,
        self._due = 0.0  # or then, by what is known
        self._version = -1
        self._trouble = ""  # why the last rebalance failed
        self._must_pull = True  # a queue may have got something since none had anything
        self._hint: OwnedQueue | None = None  # which is known to have something
        self._round: list[OwnedQueue] = []  # the queues, the one that had something last in front
        self._dispatcher: Final = Dispatcher(
            self._lock,
            options.threads,
            options.limits(1),
            send_back,
            clock,
            tell=self._look_now,
            is_unsaved=claimed.is_unsaved,
        )
        self._pool: Final[ThreadPool[ConsumeRequest]] = ThreadPool(
            options.group,
            options.threads,
            self._lock,
            lead=self._lead,
            take=self._dispatcher.take,
            perform=self._dispatcher.perform,
            stuck=self._dispatcher.relieve,
        )
        self._dispatcher.more = self._pool.wake

    # Asked for by the user, from any thread.

    def start(self) -> None:
        self._pool.start()

    def suspend(self, is_suspended: bool) -> None:
        with self._lock:
            self._dispatcher.is_suspended = is_suspended
            if is_suspended:
                for owned in self._owned.values():
                    for run in list(owned.cache.open):
                        owned.cache.cut(run)
        self.look_again()

    def look_again(self) -> None:
        """Have the leader rebalance: something changed that the membership does not know of."""
        self._rebalance_at = 0.0
        self._look_now()

    def _look_now(self) -> None:
        """Have the leader look after what depends on time."""
        self._must_look = True
        self._waiter.wakeup()

    def close(self, timeout: float | None) -> list[str]:
        """Begin nothing more, and wait until everything has ended. Returns what had not in time. From a
        listener it does not wait: the rest happens after that listener."""
        with self._lock:
            self._is_closing = True
            for owned in self._owned.values():
                owned.is_draining = True
                owned.cache.drain()
        self.look_again()
        if self._pool.is_member():
            return []
        timeout = None if timeout == math.inf else timeout
        deadline = None if timeout is None else self._clock() + timeout
        if not self.closed.wait(timeout):
            running = self._listeners_running()
            self._abandon()
            return running or ["its threads"]
        self._pool.join(lambda: 5.0 if deadline is None else deadline - self._clock())
        return []

    def when_closed(self, call: Callable[[], object]) -> None:
        """Have this called once everything has ended, or now."""
        self._when_closed.append(call)
        if self.closed.is_set():
            call()

    def _listeners_running(self) -> list[str]:
        """Each listener that runs now: its name, what it has, and for how long."""
        now = self._clock()
        with self._lock:
            return [
                f"{owned.delivery.name(next(iter(run.messages), None))} with {owned.queue.topic}/"
                f"{owned.queue.queue_id} from queue offset {run.begin} on, for {now - run.started:.1f} s"
                for owned in self._owned.values()
                for run in owned.cache.open
            ]

    def queues(self) -> set[MessageQueue]:
        return self._claimed.mine()

    # The leader.

    def _lead(self, worker: Worker) -> ConsumeRequest | None:
        """Lead until there is something to run that another thread must not wait for; that is returned.
        None: somebody else leads, or everything is over."""
        pool, clock, membership = self._pool, self._clock, self._membership
        while True:
            try:
                now = clock()
                version = membership.version()
                if version != self._version or now >= self._rebalance_at:
                    self._rebalance(version, now)
                found_any = self._must_pull and self._go_round(now)
                if not pool.leads(worker):
                    return None
                with self._lock:
                    request = self._dispatcher.take()
                    if request is not None:
                        pool.yield_lead()
                        return request
                if self._must_look or now >= self._look_at:
                    self._look_after(now)
                    if self.closed.is_set():
                        return None
                if not found_any:
                    self._wait(version)
            except (BrokerClosed, ForkedBroker) as error:
                self._give_up(error)
                return None
            except Exception:
                logger.exception("consumer %s: goes on in %g s", self._claimed.client_id, ERROR_PAUSE)
                if self.closed.wait(ERROR_PAUSE):
                    return None

    def _go_round(self, now: float) -> bool:
        """Pull from each queue once, and run what is brief. Whether anything was found, and may be again."""
        self._must_pull = found_any = is_partial = False
        hint, self._hint = self._hint, None
        if self._is_paused():
            return False
        pull_count, pool = self._options.pull_count, self._pool
        queues: Sequence[OwnedQueue] = self._round
        if hint is not None:
            others = () if len(queues) > SWEEP_MAX else queues
            queues = (hint, *(each for each in others if each is not hint))
        for at, owned in enumerate(queues):
            if now < owned.cold_until:
                continue
            if not owned.may_pull(now, self._dispatcher.limits):
                self._must_pull = True  # It may have room at any moment.
                continue
            delivery = owned.delivery
            pulled = self._pull(owned, max(pull_count, delivery.batch_size or 1), now)
            if pulled is None:
                continue
            if at and not found_any and hint is None:
                self._round = [owned, *self._round[:at], *self._round[at + 1 :]]
            found_any = True
            is_partial = len(pulled[1]) < pull_count
            with self._lock:
                owned.take_in(pulled)
                request = self._brief_of(owned, now)
            while request is not None:
                if not pool.perform_while_leading(request) or self._is_paused():
                    self._must_pull = True
                    return True
                if not owned.cache.ready:
                    break
                with self._lock:
                    request = self._brief_of(owned, self._clock())
        # Where only one of many queues was looked at, waiting names the next one, if there is one.
        is_more = found_any and not (is_partial and len(queues) == 1 < len(self._round))
        self._must_pull = self._must_pull or is_more
        return is_more

    def _brief_of(self, owned: OwnedQueue, now: float) -> ConsumeRequest | None:
        """What the leader may run of a queue by itself; if nothing, the queue is offered to other threads.
        Under the lock."""
        dispatcher = self._dispatcher
        if owned.delivery.is_brief and dispatcher.may_run:
            request = dispatcher.take_from(owned, now)
            if request is not None:
                return request
        dispatcher.offer(owned, now)
        return None

    def _pull(self, owned: OwnedQueue, count_max: int, now: float) -> Pulled | None:
        """What comes next in a queue; None where there is nothing, or it cannot be read now.

        A record that cannot be read is lost, and consumption goes on after it: the person on call needs one
        line about it, and not a queue that stands still behind it. One queue's trouble is not the others'.
        """
        try:
            try:
                return owned.pull(count_max, now)
            except StoreCorrupted as error:
                return owned.pass_over(error)
        except (BrokerClosed, ForkedBroker):
            raise
        except Exception as error:  # noqa: BLE001 - one queue's trouble is not the others'
            owned.hold_off(self._clock(), error)
            self._must_look = True
            return None

    def _wait(self, version: int) -> None:
        now = self._clock()
        due = self._rebalance_at
        positions = []
        if not self._is_paused():
            for owned in self._round:
                owned.cold_until = 0.0
                if owned.may_pull(now, self._dispatcher.limits):
                    wakes = owned.delivery.selection.wakes
                    positions.append((owned.queue, owned.cache.next, wakes))
                    if wakes is not None:
                        due = min(due, now + FILTERED_SECONDS)
                elif owned.is_full:
                    self._must_look = True
        with self._lock:
            self._dispatcher.relieve_long(now)
            if self._dispatcher.can_take(now):
                return
        if self._must_look or now >= self._look_at:
            self._look_after(now)
            if self.closed.is_set():
                return
        if not self._must_look:
            due = min(due, self._due, self._dispatcher.look_at(now))
            members = ((self._membership, version),)
            self._must_pull = True
            found = self._waiter.wait(positions, members, max(0.0, due - now))
            if found is not None:
                self._hint = self._owned.get(found)

    def _rebalance(self, version: int, now: float) -> None:
        self._must_look = self._must_pull = True
        self._rebalance_at = now + ROUND_SECONDS
        self._version = version
        if not self._rebalanced():
            self._rebalance_at = self._clock() + ERROR_PAUSE
        with self._lock:
            known = set(self._round)
            mine = set(self._owned.values())
            if known != mine:
                self._round = [owned for owned in self._round if owned in mine]
                self._round += [owned for owned in self._owned.values() if owned not in known]
            self._dispatcher.limits = self._options.limits(len(self._round))

    def _rebalanced(self) -> bool:
        """Whether every queue that is this member's was claimed. A cluster's trouble is one line in the log:
        the consumer goes on with the queues of the brokers that answer."""
        try:
            is_complete = self._claimed.rebalance(self._membership, self._is_closing)
        except (BrokerClosed, ForkedBroker):
            raise
        except MQError as error:
            if str(error) != self._trouble:
                logger.error(
                    "consumer %s of group %s cannot rebalance, keeps its queues, and tries again in %g s: %s",
                    *(self._claimed.client_id, self._claimed.group, ERROR_PAUSE, error),
                )
            self._trouble = str(error)
            return False
        self._trouble = ""
        return is_complete

    def _look_after(self, now: float) -> None:
        """All that depends on time: expired listeners, suspensions, hand-overs, notes."""
        self._must_look = False
        due, dispatcher = self._claimed.save(now), self._dispatcher
        expired: list[ConsumeRequest] = []
        with self._lock:
            dispatcher.relieve_long(now)
            hung = dispatcher.hung(now)
            for owned in list(self._owned.values()):
                if owned.is_draining:
                    if owned.is_drained():
                        owned.commit()
                        self._claimed.give_up(owned)
                        self._round = [each for each in self._round if each is not owned]
                        if owned.claim.is_lost():
                            self._rebalance_at = 0.0
                        continue
                elif owned.is_restarting:
                    self._restart(owned, now)
                dispatcher.offer(owned, now)
                owned.set_status(owned.reason(dispatcher.limits, now, dispatcher.is_suspended, hung))
                due = min(due, self._next_look(owned, now, expired))
            is_over = self._is_closing and not self._owned
        for request in expired:
            dispatcher.expire(request, self._claimed.group)
        if is_over:
            self._finish()
        self._due = due
        self._look_at = min(due, now + LOOK_SECONDS)

    def _restart(self, owned: OwnedQueue, now: float) -> None:
        if owned.claim.is_lost():
            self._rebalance_at = 0.0  # which gives it up
        elif now >= owned.pull_after:
            try:
                owned.restart()
            except (BrokerClosed, ForkedBroker):
                raise
            except Exception as error:  # noqa: BLE001 - of a topic that was deleted, say
                owned.hold_off(self._clock(), error)

    def _next_look(self, owned: OwnedQueue, now: float, expired: list[ConsumeRequest]) -> float:
        due, cache = float("inf"), owned.cache
        for time in (owned.suspended_until, owned.pull_after, cache.due or 0.0):
            if time > now:
                due = min(due, time)
        for run in cache.open:
            if not owned.delivery.ordered and not self._options.is_broadcasting:
                expires_at = run.started + self._options.consume_timeout
                if expires_at <= now:
                    expired.append(ConsumeRequest(owned, run))
                    expires_at = now + RETRY_SECONDS
                due = min(due, expires_at)
        return due

    def _is_paused(self) -> bool:
        return self._dispatcher.is_suspended or self._is_closing

    # The end.

    def _finish(self) -> None:
        with self._lock:
            if self._is_ending:  # close() has lost patience, and does it.
                return
            self._is_ending = True
        try:
            self._claimed.leave(self._membership)
        except (BrokerClosed, ForkedBroker):
            pass
        except MQError as error:
            logger.error("consumer %s could not leave its group: %s", self._claimed.client_id, error)
        except Exception:
            logger.exception("consumer %s could not leave its group", self._claimed.client_id)
        with self._lock:
            self._pool.end()
        self.closed.set()
        self._look_now()  # The leader may be another thread.
        for call in list(self._when_closed):
            call()

    def _give_up(self, error: Exception) -> None:
        """The broker is gone: nothing can be consumed or committed any more."""
        if not self._is_closing:
            # Closed by the application, or left behind by a fork: either is its own doing.
            logger.info("consumer %s stops: %s", self._claimed.client_id, error)
        self._is_closing = True
        self._finish()

    def _abandon(self) -> None:
        """Leave with listeners still running: what they have is for the other members now."""
        with self._lock:
            for owned in list(self._owned.values()):
                for run in owned.cache.open:
                    run.is_void = True
                with suppress(Exception):  # Whatever happens, it is left now.
                    owned.commit()
                    self._claimed.give_up(owned)
            self._round = []
        self._finish()
