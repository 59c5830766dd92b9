"""The threads of a transaction producer, which answer for its group what became of transactions.

They know nothing of the producer: one that is dropped without close() is collected, and has them end.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from time import monotonic

from mq.api.transactions import Check, Ender, Transactions, TransactionState
from mq.client.identity import new_client_id
from mq.client.listener import close_unrun
from mq.errors import BrokerClosed, ForkedBroker, MQError, NotPermitted
from mq.message import MessageExt
from mq.threads import start

__all__ = ["Answers"]

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
IDLE_SECONDS = 3600.0  # that a thread waits for a check before it looks again
START_SECONDS = 5.0  # for a check that is under way when there cannot be all threads
ERROR_PAUSE = 1.0  # after a broker that could not tell what to check

logger = logging.getLogger("mq.transactions")


class Answers:
    """The membership of one producer in its group; closing() is called when it ends."""

    def __init__(
        self,
        transactions: Transactions,
        group: str,
        check: Callable[[MessageExt], TransactionState],
        end: Ender,
        thread_count: int,
        closing: Callable[[], object],
    ) -> None:
        self.group = group
        self.has_left = False
        self._transactions = transactions
        self._end = end
        self._check = check
        self._thread_count = thread_count
        self._closing = closing
        self._closed = threading.Event()
        self._turn = threading.Lock()  # of the one thread that waits to be asked
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Join the group. Where there can be no more threads it leaves, and raises InsufficientResources."""
        self._checker = self._transactions.enlist(self.group, new_client_id())
        try:
            for number in range(self._thread_count):
                name = f"mq-check-{self.group}-{number}"
                thread = threading.Thread(target=self._answer_all, name=name, daemon=True)
                start(thread)
                self._threads.append(thread)
        except BaseException:
            self.close(START_SECONDS)
            raise

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    @property
    def is_at_work(self) -> bool:
        """Whether it answers; not once its broker is closed."""
        return not self.has_left and any(thread.is_alive() for thread in self._threads)

    def close(self, timeout: float | None) -> None:
        """Wait for checks under way, up to so many seconds, and leave. Twice is fine."""
        self._closed.set()
        self._closing()
        self._checker.wakeup()
        timeout = None if timeout == math.inf else timeout
        deadline = None if timeout is None else monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(None if deadline is None else max(0.0, deadline - monotonic()))
        self.has_left = True
        self._checker.leave()
        running = [thread for thread in self._threads if thread.is_alive()]
        if running and threading.current_thread() not in running:
            logger.error(
                "transaction producer of group %s is closed after %g s without waiting longer for %d checks",
                *(self.group, timeout, len(running)),
            )

    def _answer_all(self) -> None:
        """What each thread does: one of them waits to be asked, the others work, or wait for their turn."""
        while not self.is_closed:
            try:
                with self._turn:
                    asked = None if self.is_closed else self._checker.next(IDLE_SECONDS)
                if asked is not None:
                    self._answer(asked)
            except (BrokerClosed, ForkedBroker):
                return
            except Exception:
                logger.exception("checks of group %s: go on in %g s", self.group, ERROR_PAUSE)
                self._closed.wait(ERROR_PAUSE)

    def _answer(self, asked: Check) -> None:
        message = asked.message
        state: object
        try:
            state = self._check(message)
        except BaseException:  # This thread is the producer's: nothing else may end it.
            logger.exception("transaction %s of group %s: check failed", message.msg_id, self.group)
            return
        if state is COMMIT or state is ROLLBACK:
            try:
                self._end(asked.log_offset, asked.queue_offset, state, True, asked)
            except NotPermitted as error:
                # Its own producer, or another check, was faster, and of another opinion.
                logger.warning(
                    "transaction %s of group %s: check says %s, but %s",
                    *(message.msg_id, self.group, state.name, error),
                )
            except (BrokerClosed, ForkedBroker):
                raise
            except (MQError, OSError):
                logger.warning(
                    "transaction %s of group %s: the answer of check, %s, did not get through",
                    *(message.msg_id, self.group, state.name),
                    exc_info=True,
                )
        elif state is not UNKNOWN:
            close_unrun(state)
            logger.error(
                "transaction %s of group %s: check returned %r, which is no TransactionState",
                *(message.msg_id, self.group, state),
            )
