"""The pull consumer: asks for messages when it wants some, and has no thread of its own.

Everything happens within poll: queues come and go, messages are pulled, offsets committed. Between two polls
the consumer stays a member of its group and keeps its queues, however long that takes; another member that
is to have one of them gets it at the next poll.

What a poll returned counts as consumed when the next poll begins, or when the consumer is closed other than
by an exception; a message of a loop, when the loop asks for the next one. Auto-commit commits what counts as
consumed, and nothing else: every 5 s within poll, before a queue is given up, and at close. What was handed
out and not committed comes again, to the next owner of the queue.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from mq.api.waiter import Versioned
from mq.client.engine.options import check_count
from mq.client.engine.poll_loop import LOCK_SECONDS, ROUND_SECONDS, Position
from mq.client.polling_consumer import PollingConsumer
from mq.errors import BrokerClosed
from mq.fastpath import time_guard
from mq.message import MessageExt
from mq.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from typing_extensions import Self


class PullConsumer(PollingConsumer):
    """Messages on demand, for one thread at a time; close() and wakeup() may come from any other.

    `consume_from` says where a group begins that has no offset of a topic yet: "first", "last", or a time
    in ms. `pull_count` messages are read at a time, and kept until they are polled. `allocate` shares out the
    queues: see mq.client.engine.queue_assignment. `assignment_listener(topic, queues, mine)` is told, within
    poll, of what this consumer has from now on; what it has no more is still held then, and may be committed.
    """

    def _prepare(self) -> None:
        self._waiter = self._broker.waiter()
        self._woken = False

    def poll(self, timeout: float = 1.0, *, count_max: int = 32) -> list[MessageExt]:
        """The next messages, of one queue and in its order; none if there are none within the timeout.

        With a timeout of 0, what is there now. It returns early, with nothing, when another thread closes
        the consumer or calls wakeup(). What the poll before returned counts as consumed from now on.
        """
        if not timeout >= 0:  # Not a number is neither.
            raise ValueError(f"timeout is {timeout} s, must be 0 or more")
        check_count("count_max", count_max)
        self._lock.entered()  # A poll that is refused within another call has cut nothing short.
        try:
            return self._next(timeout, count_max, in_loop=False)
        except BaseException:
            self._loop.is_cut_short = True
            raise

    def __iter__(self) -> Iterator[MessageExt]:
        """One message after the other, until the consumer is closed. A message counts as consumed when the
        loop asks for the next one, and not if it is left before: unless commit() is called, it comes again,
        by the next poll or loop, or to the member that has the queue then."""
        with self._lock.entered():
            self._check_open()
            self._loop.begin_loop()
        try:
            while not self._is_closed:
                lock = self._lock.entered()  # Refused here, it has cut nothing short.
                try:
                    with lock:
                        self._loop.mend()
                        messages = self._loop.advance(1, monotonic(), in_loop=True)
                    yield from messages or self._next(ROUND_SECONDS, 1, in_loop=True)
                except GeneratorExit:
                    self._loop.handed_out.is_left = True
                    raise
                except BaseException:
                    self._loop.is_cut_short = True
                    raise
        except BrokerClosed:
            if not self._is_closed:
                raise

    def _next(self, timeout: float, count_max: int, *, in_loop: bool) -> list[MessageExt]:
        now, loop = monotonic(), self._loop
        deadline = now + timeout
        with self._lock.entered():
            self._check_open()
            messages = [] if self._woken else loop.advance(count_max, now, in_loop=in_loop)
            if messages:
                return messages
            loop.check_told()
            loop.finish_last()
        while True:
            with self._lock.entered():
                if self._is_closed or self._woken:
                    self._woken = False
                    return []
                with time_guard(max(deadline - now, LOCK_SECONDS)):
                    request = loop.look(count_max, now, for_one=True)
                if request is not None:
                    return loop.hand_out(request, count_max, in_loop=in_loop)
                at_end = loop.at_end
                now = monotonic()
                if now >= deadline and (at_end or timeout > 0):
                    return []
                if at_end:
                    positions = loop.positions(now)
                    left = max(0.0, min(deadline, loop.due()) - now)
                    watched, version = loop.watched, loop.version
            if at_end:
                self._wait(watched, positions, version, left)
                now = monotonic()

    def wakeup(self) -> None:
        """Have the poll that waits in another thread return with nothing; if none does, the next one."""
        self._woken = True
        self._wake()

    def close(self) -> None:
        """Commit what counts as consumed, with auto_commit; give up the queues and leave the group.

        What the last poll returned counts too, unless an exception is on its way, as in a finally clause.
        Twice is fine.
        """
        self._end(failed=sys.exc_info()[1] is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(failed=error is not None)

    def __repr__(self) -> str:
        return f"PullConsumer({self.group!r}, {self.client_id!r}{', closed' if self._is_closed else ''})"

    def _end(self, *, failed: bool) -> None:
        if os.getpid() != self._pid:
            return  # It is the parent's.
        lock = self._lock.entered()
        self._is_closed = True
        self._wake()
        with lock:
            uninterrupted(lambda: self._loop.close(failed=failed))

    def _wake(self) -> None:
        self._waiter.wakeup()

    def _wait(
        self, watched: Versioned | None, positions: list[Position], version: int, timeout: float
    ) -> None:
        members = () if watched is None else ((watched, version),)
        self._waiter.wait(positions, members, timeout)
