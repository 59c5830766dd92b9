"""What one process does for all: flush, index, checkpoint, deliver what is due, delete what is too old.

Every broker has a thread for it, and sleeps in it until it is its turn (see mq/store/shared/leader_lock.py):
the leader does the work until it closes or dies, or its lease lapses, and the next one goes on
where the words in shared memory say.

    flush_interval   log to disk                    RocketMQ: flushIntervalCommitLog, 500 ms
    1 s              queue units to disk, index     flushIntervalConsumeQueue
    5 s              checkpoint
    10 s             retention                      cleanResourceInterval

What has times of its own is a Duty, in a thread of its own, since a flush takes long: delayed messages,
messages due at any time, transactions to be asked about.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Protocol

from mq.errors import BrokerClosed, ForkedBroker, InsufficientResources, MQError
from mq.store.shared.leader_lock import LEASE, Turn
from mq.store.shared.lock_guards import time_limit
from mq.store.shared.renewal import Renewals
from mq.store.store import Store
from mq.threads import start

__all__ = ["Duties", "Duty"]

TURN_INTERVAL = 0.25
QUEUES_INTERVAL = 1.0
CHECKPOINT_INTERVAL = 5.0
RETENTION_INTERVAL = 10.0
FIRST_RETENTION = 1.0  # after it began to lead
AGAIN = 1.0
RENEWALS_IN_LEASE = 3
INDEX_WAIT = 2.0

log = logging.getLogger("mq.leader")


class Duty(Protocol):
    """What one process does for all in a thread of its own, as long as it has the duties."""

    @property
    def name(self) -> str:
        """Of the thread."""
        ...

    @property
    def save_interval(self) -> float:
        """How often save() is called, in seconds."""
        ...

    def run(self, stopping: Callable[[], bool], /) -> None:
        """Go on until told to stop, and woken for that. What it raises is an error of the store: it is called
        again."""
        ...

    def wake(self) -> None:
        """Have run() look whether it is to stop."""
        ...

    def save(self) -> None:
        """Write down how far it is; in another thread than run()'s while that runs, and once after it."""
        ...

    def give_up(self) -> None:
        """The duties are another's from now on."""
        ...


class Duties:
    """The thread of one broker that does the duties, or waits for its turn.

    flush_interval() is asked when it is this broker's turn. others: what else is to be done, each with its
    interval in seconds. lease: see Turn. A process that was stopped for longer than that finds another one in
    charge when it goes on: it does nothing more of what it was at, and waits for its turn again.
    """

    def __init__(
        self,
        store: Store,
        flush_interval: Callable[[], float],
        expire: Callable[[], object],
        threaded: Sequence[Duty],
        others: Sequence[tuple[float, Callable[[], object]]] = (),
        *,
        lease: float = LEASE,
        renewals: Renewals | None = None,
    ) -> None:
        self._store = store
        self.flush_interval = flush_interval
        self._expire = expire
        self._threaded = threaded
        self._others = others
        self._renewals = renewals or Renewals()
        self.last_error: BaseException | None = None
        self._troubles: dict[object, type[BaseException]] = {}  # by what failed last time
        self._stopping = threading.Event()
        self._over = threading.Event()  # the term, if not this broker
        self._turn = Turn(store, lease)
        self._thread = threading.Thread(target=self._run, name="mq-duties", daemon=True)
        start(self._thread)

    def _run(self) -> None:
        turn = self._turn
        while True:
            # Before anything is looked at: close() notifies once.
            heard = turn.event.heard()
            if self._stopping.is_set():
                return
            if not self._store.is_replica and turn.take():
                log.info("%s: this process leads from now on", self._store.root)
                try:
                    self._work()
                    pause = 0.0
                except InsufficientResources as error:  # There can be no more threads.
                    self._note(self._work, error)
                    pause = AGAIN
                finally:
                    log.info("%s: this process leads no more", self._store.root)
                    turn.give_up()
                self._stopping.wait(pause)
            else:
                turn.wait(heard, TURN_INTERVAL)

    def _work(self) -> None:
        """Do the duties until the broker closes, or another process has them."""
        self._over.clear()
        if self._stopping.is_set():  # In this order: close() sets the one, then the other.
            return
        threads = [
            threading.Thread(target=self._serve, args=(duty,), name=duty.name, daemon=True)
            for duty in self._threaded
        ]
        # Apart from the flush: what holds up the index or the offsets of groups does not hold up that.
        upkeep = threading.Thread(target=self._keep_up, name="mq-upkeep", daemon=True)
        with ExitStack() as stack:
            stack.callback(self._end_term, [*zip(self._threaded, threads, strict=True)], upkeep)
            stack.callback(self._renewals.add(self._turn.lease / RENEWALS_IN_LEASE, self._renew))
            for thread in (*threads, upkeep):
                start(thread)
            self._go_round(
                [(self.flush_interval(), self._store.flush_log), (QUEUES_INTERVAL, self._store.flush_queues)]
            )

    def _end_term(self, threads: Sequence[tuple[Duty, threading.Thread]], upkeep: threading.Thread) -> None:
        """Have all threads end, as far as they were started."""
        self._over.set()
        for duty, _ in threads:
            duty.wake()
        if upkeep.ident is not None:
            upkeep.join()
        for duty, thread in threads:
            if thread.ident is not None:
                thread.join()
                if self._turn.holds():
                    self._attempt(duty.save)
            duty.give_up()

    def _renew(self) -> bool:
        if self._turn.renew():
            return True
        log.warning(
            "%s: process %d has taken over the duties: this one was stopped, or did not run, for %g s",
            *(self._store.root, self._turn.leader_pid, self._turn.lease),
        )
        self._over.set()
        return False

    def _keep_up(self) -> None:
        rounds: list[tuple[float, Callable[[], object]]] = [
            (QUEUES_INTERVAL, self._bring_index_up),
            (CHECKPOINT_INTERVAL, self._checkpoint),
            (RETENTION_INTERVAL, self._expire),
            *((duty.save_interval, duty.save) for duty in self._threaded),
            *self._others,
        ]
        # A program that runs for seconds each time has its old messages deleted, too; transactions that were
        # left behind are asked about before that, which stores them again.
        if not self._over.wait(FIRST_RETENTION) and self._attempt(self._turn.check):
            self._attempt(self._expire)
        self._go_round(rounds)

    def _go_round(self, rounds: Sequence[tuple[float, Callable[[], object]]]) -> None:
        due = [time.monotonic() + interval for interval, _ in rounds]
        while not self._over.wait(max(0.0, min(due) - time.monotonic())):
            now = time.monotonic()
            for place, (interval, duty) in enumerate(rounds):
                if due[place] > now or self._over.is_set():
                    continue
                if not self._attempt(self._turn.check):
                    self._over.set()  # Before anything is done that another process does by now.
                    break
                self._attempt(duty)
                due[place] = time.monotonic() + interval

    def _attempt(self, duty: Callable[[], object]) -> bool:
        try:
            duty()
        except (MQError, OSError) as error:
            # A full disk, a damaged record: senders and readers meet it themselves. Duties go on.
            self._note(duty, error)
            return False
        self._troubles.pop(duty, None)
        return True

    def _note(self, duty: object, error: MQError | OSError) -> None:
        """Log an error the first time that it comes: a full disk is met twice a second."""
        self.last_error = error
        if isinstance(error, (BrokerClosed, ForkedBroker)) or self._troubles.get(duty) is type(error):
            return
        if not self._turn.holds():
            return  # Another process has the duties by now, and _renew() says so.
        self._troubles[duty] = type(error)
        name = getattr(duty, "name", None) or getattr(duty, "__qualname__", duty)
        log.warning("%s: %s failed, and is tried again: %s", self._store.root, name, error)

    def _serve(self, duty: Duty) -> None:
        while not self._over.is_set():
            try:
                duty.run(self._over.is_set)
            except (BrokerClosed, ForkedBroker):
                return
            except (MQError, OSError) as error:
                self._note(duty, error)
                self._over.wait(AGAIN)

    def _bring_index_up(self) -> None:
        # A process may be stopped while it holds the index lock. The other upkeep waits for it no longer.
        with time_limit(INDEX_WAIT):
            self._store.bring_index_up()

    def _checkpoint(self) -> None:
        # By a process that was stopped, it tells of less than another one has told: then the next recovery
        # has more to look at, and finds the same.
        self._store.sync_index()
        self._store.write_checkpoint(sync=True)

    def close(self) -> None:
        self._stopping.set()
        self._over.set()
        with suppress(BrokerClosed, ForkedBroker):  # Closed before, or the parent's, whose threads go on.
            self._turn.event.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self._turn.close()
