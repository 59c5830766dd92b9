"""The pull consumer: asks for messages when it wants some, and has no thread of its own.

Everything happens within poll: queues come and go, messages are pulled, offsets committed. Between two polls
the consumer stays a member of its group and keeps its queues, however long that takes; another member that
is to have one of them gets it at the next poll.

What a poll returned counts as consumed when the next poll begins, or when the consumer is closed other than
by an exception; a message of a loop, when the loop asks for the next one. Auto-commit commits what counts as
consumed, and nothing else: every 5 s within poll, before a queue is given up, and at close. What was handed
out and not committed comes again, to whoever has the queue next.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from mq.api.broker import Broker, MessageQueue, Queue
from mq.api.group import Versioned
from mq.client.engine.held_queue import HeldQueue
from mq.client.engine.holdings import ROUND_SECONDS, AssignmentListener, Holdings, Position
from mq.client.engine.limits import check_count
from mq.client.engine.rebalance import AnyStrategy
from mq.errors import BrokerClosed
from mq.message import MessageExt
from mq.uninterrupted import left_open, uninterrupted

if TYPE_CHECKING:
    from typing_extensions import Self


AnyQueue = MessageQueue | Queue


class PullConsumer:
    """Messages on demand, for one thread at a time; close() and wakeup() may come from any other.

    `consume_from` says where a group begins that has no offset of a topic yet: "first", "last", or a time
    in ms. `pull_count` messages are read at a time, and kept until they are polled. `allocate` shares out the
    queues: see mq.client.engine.rebalance. `assignment_listener(topic, queues, mine)` is told, within poll,
    of what this consumer has from now on; what it has no more is still held then, and may be committed.
    """

    def __init__(
        self,
        broker: Broker,
        group: str,
        *,
        auto_commit: bool = True,
        consume_from: str | int = "first",
        pull_count: int = 32,
        auto_commit_interval: float = 5.0,
        allocate: AnyStrategy = "averagely",
        assignment_listener: AssignmentListener | None = None,
        client_id: str | None = None,
    ) -> None:
        self._lookout = broker.lookout()
        self._lock = threading.RLock()  # guards all below; nobody waits with it
        self._holdings = Holdings(
            broker,
            group,
            auto_commit=auto_commit,
            consume_from=consume_from,
            pull_count=pull_count,
            auto_commit_interval=auto_commit_interval,
            strategy=allocate,
            listener=assignment_listener,
            client_id=client_id,
        )
        self._pid = os.getpid()
        self._closed = self._woken = False

    @property
    def group(self) -> str:
        return self._holdings.group

    @property
    def client_id(self) -> str:
        """Its name among the members of the group."""
        return self._holdings.client_id

    def subscribe(self, topic: str, expression: str | None = "*", *, sql: str | None = None) -> None:
        """Consume a topic together with the group: by tags ("paid || refunded"), or by sql. Again for the
        same topic: from now on by this expression. The group is joined with the first poll.

        The topic need not exist yet. Raises FilterSyntaxError, SubscriptionConflict (a live member of
        the group subscribes otherwise), ValueError after assign().
        """
        with self._lock:
            self._check_open()
            self._holdings.subscribe(topic, expression, sql)

    def unsubscribe(self, topic: str) -> None:
        """Give up a topic and its queues. What was polled last is committed as if another poll had begun."""
        with self._lock:
            self._check_open()
            self._holdings.finish_last()
            self._holdings.unsubscribe(topic)

    def assign(
        self, queues: Iterable[AnyQueue], expression: str | None = "*", *, sql: str | None = None
    ) -> None:
        """Consume these queues, all by one expression, and no others; again to change them.

        Nobody is asked: two consumers that are assigned one queue both get its messages. The offsets are
        the group's. Raises TopicNotFound, ValueError for a queue that is not there, and after subscribe().
        """
        wanted = {named(queue) for queue in queues}
        with self._lock:
            self._check_open()
            self._holdings.finish_last()
            self._holdings.assign(wanted, expression, sql)

    def poll(self, timeout: float = 1.0, *, count_max: int = 32) -> list[MessageExt]:
        """The next messages, of one queue and in its order; none if there are none within the timeout.

        With a timeout of 0, what is there now. It returns early, with nothing, when another thread closes
        the consumer or calls wakeup(). What the poll before returned counts as consumed from now on.
        """
        if timeout < 0:
            raise ValueError(f"timeout is {timeout} s, must be 0 or more")
        check_count("count_max", count_max)
        return self._next(timeout, count_max, in_loop=False)

    def __iter__(self) -> Iterator[MessageExt]:
        """One message after the other, until the consumer is closed. A message counts as consumed when the
        loop asks for the next one, and not if it is left before: unless commit() is called, it comes again,
        in the next loop or to who has the queue then."""
        with self._lock:
            self._check_open()
            self._holdings.begin_loop()
        while not self._closed:
            with self._lock:
                message = self._holdings.advance(monotonic())
            if message is not None:
                yield message
            else:
                yield from self._next(ROUND_SECONDS, 1, in_loop=True)

    def _next(self, timeout: float, count_max: int, *, in_loop: bool) -> list[MessageExt]:
        now = monotonic()
        deadline = now + timeout
        with self._lock:
            self._check_open()
            self._holdings.check_told()
            self._holdings.finish_last()
        while True:
            with self._lock:
                if self._closed or self._woken:
                    self._woken = False
                    return []
                found = self._holdings.look(count_max, now)
                if found is not None:
                    held, messages = found
                    self._holdings.hand_out(held, messages[0], in_loop=in_loop)
                    return messages
                at_end = self._holdings.at_end
                now = monotonic()
                if now >= deadline and (at_end or timeout > 0):
                    return []
                if at_end:
                    positions = self._holdings.positions(now)
                    left = max(0.0, min(deadline, self._holdings.due()) - now)
                    watched, version = self._holdings.watched, self._holdings.version
            if at_end:
                self._wait(watched, positions, version, left)
                now = monotonic()

    def commit(self) -> None:
        """Commit all that was handed out, what the last poll returned included."""
        with self._lock:
            self._check_open()
            self._holdings.commit_given()

    def seek(self, queue: AnyQueue, offset: int) -> None:
        """Go on from this offset of a queue that is assigned to this consumer; what it then commits may be
        less than before. Raises ValueError for another queue, and for an offset that the queue does not
        have."""
        with self._lock:
            self._held(queue).seek(offset)

    def seek_to_time(self, queue: AnyQueue, time_ms: int) -> None:
        """Go on from the first message stored at time_ms or later; from the end if there is none."""
        with self._lock:
            held = self._held(queue)
            held.seek(self._holdings.broker.offset_at(held.queue, time_ms))

    def pause(self, queues: Iterable[AnyQueue]) -> None:
        """Hand out nothing of these queues until resume(). They stay assigned, here and to nobody else; one
        that is not assigned now is paused when it comes."""
        wanted = [named(queue) for queue in queues]
        with self._lock:
            self._check_open()
            self._holdings.pause(wanted)

    def resume(self, queues: Iterable[AnyQueue]) -> None:
        """Hand out messages of these queues again."""
        wanted = [named(queue) for queue in queues]
        with self._lock:
            self._check_open()
            self._holdings.resume(wanted)
            self._lookout.poke()

    def committed(self, queue: AnyQueue) -> int | None:
        """What the group has committed of a queue; None for nothing yet."""
        wanted = named(queue)
        with self._lock:
            self._check_open()
            return self._holdings.broker.committed(self.group, wanted)

    def position(self, queue: AnyQueue) -> int:
        """Where the next poll goes on in a queue that is assigned to this consumer."""
        with self._lock:
            return self._held(queue).given

    def assignment(self) -> set[MessageQueue]:
        """The queues that this consumer has, as of the last poll."""
        with self._lock:
            return set(self._holdings.held)

    def wakeup(self) -> None:
        """Have the poll that waits in another thread return with nothing; if none does, the next one."""
        self._woken = True
        self._lookout.poke()

    def close(self) -> None:
        """Commit what counts as consumed, with auto_commit; give up the queues and leave the group.

        What the last poll returned counts too, unless an exception is on its way, as in a finally clause.
        Twice is fine.
        """
        self._close(failed=sys.exc_info()[1] is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(failed=error is not None)

    def __repr__(self) -> str:
        return f"PullConsumer({self.group!r}, {self.client_id!r}{', closed' if self._closed else ''})"

    def _close(self, *, failed: bool) -> None:
        self._closed = True
        self._lookout.poke()
        with self._lock:
            uninterrupted(lambda: self._holdings.close(failed=failed))

    def __del__(self) -> None:
        # Also where an interrupt came in the middle of close().
        holdings = getattr(self, "_holdings", None)
        if holdings is not None and holdings.membership is not None and not holdings.is_closed:
            left_open(partial(self._close, failed=True), self, self._pid)

    def _held(self, queue: AnyQueue) -> HeldQueue:
        self._check_open()
        self._holdings.enter()
        return self._holdings.at(named(queue))

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerClosed("this consumer is closed: make another")

    def _wait(
        self, watched: Versioned | None, positions: list[Position], version: int, timeout: float
    ) -> None:
        members = () if watched is None else ((watched, version),)
        self._lookout.wait(positions, members, timeout)


def named(queue: AnyQueue) -> MessageQueue:
    """The queue's name, however it was given."""
    name = queue.message_queue if isinstance(queue, Queue) else queue
    if not isinstance(name, MessageQueue):
        raise TypeError(f"a queue is a MessageQueue or a Queue, not {type(queue).__name__}")
    return name
