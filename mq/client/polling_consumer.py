"""What a consumer that asks for messages can do, with asyncio or without it; but the asking itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial

from mq.api.beginning import Beginning, time_in_ms
from mq.api.broker import Broker, MessageQueue, Queue
from mq.client.engine.claimed_queues import AssignmentListener
from mq.client.engine.options import PullOptions, begin_from
from mq.client.engine.poll_loop import PollLoop
from mq.client.engine.queue_assignment import AnyStrategy
from mq.client.listener import check_function
from mq.errors import BrokerClosed
from mq.threads import HandlerLock
from mq.uninterrupted import closed_when_dropped

__all__ = ["AnyQueue", "PollingConsumer"]

AnyQueue = MessageQueue | Queue


class PollingConsumer:
    """See PullConsumer, and mq.aio.Consumer."""

    def __init__(
        self,
        broker: Broker,
        group: str,
        *,
        auto_commit: bool = True,
        consume_from: Beginning | int = "first",
        pull_count: int = 32,
        auto_commit_interval: float = 5.0,
        allocate: AnyStrategy = "averagely",
        assignment_listener: AssignmentListener | None = None,
        client_id: str | None = None,
    ) -> None:
        # Guards all else; nobody waits with it.
        self._lock = HandlerLock(f"using a consumer of {group}", str(getattr(broker, "path", "")))
        told = assignment_listener
        if told is not None:
            check_function("assignment_listener", told)
            told = partial(self._lock.call, told)
        options = PullOptions(
            group=group,
            auto_commit=auto_commit,
            consume_from=begin_from(consume_from),
            pull_count=pull_count,
            auto_commit_interval=auto_commit_interval,
            allocate=allocate,
            assignment_listener=told,
            client_id=client_id,
        )
        self._broker = broker
        self._group = group
        self._loop = PollLoop(broker, options)
        self._is_closed = False
        self._pid = os.getpid()
        self._prepare()

    @property
    def group(self) -> str:
        return self._group

    @property
    def client_id(self) -> str:
        """Its name among the members of the group."""
        return self._loop.client_id

    def subscribe(self, topic: str, expression: str | None = "*", *, sql: str | None = None) -> None:
        """Consume a topic together with the group: by tags ("paid || refunded"), or by sql. Again for the
        same topic: from now on by this expression. The group is joined with the first poll.

        The topic need not exist yet. Raises FilterSyntaxError, SubscriptionConflict (a live member of
        the group subscribes otherwise), ValueError after assign().
        """
        with self._lock.entered():
            self._check_open()
            self._loop.subscribe(topic, expression, sql)
            self._wake()

    def unsubscribe(self, topic: str) -> None:
        """Give up a topic and its queues. What was polled last is committed as if another poll had begun."""
        with self._lock.entered():
            self._check_open()
            self._loop.finish_last_poll()
            self._loop.unsubscribe(topic)

    def assign(
        self, queues: Iterable[AnyQueue], expression: str | None = "*", *, sql: str | None = None
    ) -> None:
        """Consume these queues, all by one expression, and no others; again to change them.

        Nobody is asked: two consumers that are assigned one queue both get its messages. The offsets are
        the group's. Raises TopicNotFound, ValueError for a queue that is not there, and after subscribe().
        """
        wanted = {named(queue) for queue in queues}
        with self._lock.entered():
            self._check_open()
            self._loop.finish_last_poll()
            self._loop.assign(wanted, expression, sql)
            self._wake()

    def commit(self) -> None:
        """Commit all that was handed out: what the last poll returned, and the message that a loop is at,
        included."""
        with self._lock.entered():
            self._check_open()
            self._loop.commit_given()

    def seek(self, queue: AnyQueue, offset: int) -> None:
        """Go on from this offset of a queue that is assigned to this consumer; what it then commits may be
        less than before. Raises ValueError for another queue, and for an offset that the queue does not
        have."""
        with self._lock.entered():
            self._check_open()
            self._loop.at(named(queue)).seek(offset)
            self._wake()

    def seek_to_time(self, queue: AnyQueue, time_ms: int) -> None:
        """Go on from the first message stored at time_ms or later; from the end if there is none. Raises
        TypeError for what is no int."""
        time_ms = time_in_ms("time_ms", time_ms)
        with self._lock.entered():
            self._check_open()
            owned = self._loop.at(named(queue))
            owned.seek(self._broker.offset_at(owned.queue, time_ms))
            self._wake()

    def pause(self, queues: Iterable[AnyQueue]) -> None:
        """Hand out nothing of these queues until resume(). They stay assigned, here and to nobody else; one
        that is not assigned now is paused when it comes."""
        wanted = [named(queue) for queue in queues]
        with self._lock.entered():
            self._check_open()
            self._loop.pause(wanted)

    def resume(self, queues: Iterable[AnyQueue]) -> None:
        """Hand out messages of these queues again."""
        wanted = [named(queue) for queue in queues]
        with self._lock.entered():
            self._check_open()
            self._loop.resume(wanted)
            self._wake()

    def committed(self, queue: AnyQueue) -> int | None:
        """What the group has committed of a queue; None for nothing yet."""
        wanted = named(queue)
        with self._lock.entered():
            self._check_open()
            return self._broker.consumer_groups.assigned(self._group).claim(wanted).committed()

    def position(self, queue: AnyQueue) -> int:
        """The offset from which on messages of a queue that is assigned to this consumer are still to be
        handed out."""
        with self._lock.entered():
            self._check_open()
            return self._loop.position(named(queue))

    def assignment(self) -> set[MessageQueue]:
        """The queues that this consumer has, as of the last poll."""
        with self._lock.entered():
            return self._loop.mine()

    @closed_when_dropped
    def __del__(self) -> Callable[[], object] | None:
        # Also where an interrupt came in the middle of close().
        loop = getattr(self, "_loop", None)
        is_open = loop is not None and loop.membership is not None and not loop.is_closed
        return partial(self._end, failed=True) if is_open else None

    def _check_open(self) -> None:
        """Under the lock, first of all."""
        if self._is_closed:
            raise BrokerClosed("this consumer is closed: make another")
        self._loop.mend()

    def _prepare(self) -> None:
        """Make what this kind of consumer waits with."""
        raise NotImplementedError

    def _wake(self) -> None:
        """Have a call that waits for messages look again."""
        raise NotImplementedError

    def _end(self, *, failed: bool) -> None:
        """Commit what counts as consumed, and leave the group."""
        raise NotImplementedError


def named(queue: AnyQueue) -> MessageQueue:
    """The queue's name, however it was given."""
    name = queue.message_queue if isinstance(queue, Queue) else queue
    if not isinstance(name, MessageQueue):
        raise TypeError(f"a queue is a MessageQueue or a Queue, not {type(queue).__name__}")
    return name
