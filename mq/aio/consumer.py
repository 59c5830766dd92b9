"""The consumer of asyncio: a loop over messages, or a coroutine that is called with them.

The same queues, offsets and rules as those of a PullConsumer (mq/client/pull_consumer.py), whose words this
one has. It looks for messages on the loop, which takes microseconds, and where there are none waits for the
thread that all consumers of a broker share.

With `run` it does what a PushConsumer does: the group's retry topic is consumed as well, what a listener
fails at is sent back to come again later, and offsets are committed after each message.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from mq.aio.delivery import Delivery, Listener
from mq.aio.waiter import Request, Waiter
from mq.api.broker import Broker, MessageQueue
from mq.client.engine.held_queue import HeldQueue
from mq.client.engine.holdings import ROUND_SECONDS, AssignmentListener, Holdings
from mq.client.engine.limits import check_count
from mq.client.engine.rebalance import AnyStrategy
from mq.client.pull_consumer import AnyQueue, named
from mq.errors import BrokerClosed
from mq.message import MessageExt
from mq.uninterrupted import left_open, uninterrupted

if TYPE_CHECKING:
    from typing_extensions import Self

YIELD_SECONDS = 0.001  # after so long other tasks have their turn


class Consumer:
    """Messages for the tasks of one loop. The options are those of PullConsumer.

    One task at a time asks for messages: by `async for`, by `poll`, or by `run`, which hands them to several.
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
        self._waiter: Waiter | None = None
        self._request: Request | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._is_asked = self._closing = self._closed = False
        self._yielded_at = 0.0
        self._pid = os.getpid()

    @property
    def group(self) -> str:
        return self._holdings.group

    @property
    def client_id(self) -> str:
        """Its name among the members of the group."""
        return self._holdings.client_id

    def subscribe(self, topic: str, expression: str | None = "*", *, sql: str | None = None) -> None:
        """Consume a topic together with the group: see PullConsumer.subscribe."""
        self._check_open()
        self._holdings.subscribe(topic, expression, sql)
        self._wake()

    def unsubscribe(self, topic: str) -> None:
        """Give up a topic and its queues."""
        self._check_open()
        self._holdings.unsubscribe(topic)

    def assign(
        self, queues: Iterable[AnyQueue], expression: str | None = "*", *, sql: str | None = None
    ) -> None:
        """Consume these queues and no others: see PullConsumer.assign."""
        self._check_open()
        self._holdings.assign({named(queue) for queue in queues}, expression, sql)
        self._wake()

    async def poll(
        self,
        timeout: float = 1.0,
        *,
        count_max: int = 32,
    ) -> list[MessageExt]:
        """The next messages, of one queue and in its order; none if there are none within the timeout.

        What the poll before returned counts as consumed from now on. A poll that is cancelled has taken
        nothing.
        """
        if timeout < 0:
            raise ValueError(f"timeout is {timeout} s, must be 0 or more")
        check_count("count_max", count_max)
        return await self._ask(count_max, monotonic() + timeout, in_loop=False)

    def __aiter__(self) -> AsyncIterator[MessageExt]:
        """One message after the other, until the consumer is closed. A message counts as consumed when the
        loop asks for the next one, and not if it is left before: unless commit() is called, it comes again,
        in the next loop or to who has the queue then."""
        self._check_open()
        self._holdings.begin_loop()
        return _Messages(self)

    async def run(
        self,
        listener: Listener,
        *,
        concurrency: int = 20,
        batch_size: int | None = None,
        max_reconsume_times: int = 16,
    ) -> None:
        """Call a function with each message, until the consumer is closed: an async one, or a plain one,
        which keeps the loop from anything else while it runs.

        At most `concurrency` calls run at a time; with `batch_size` each gets a list of up to so many
        messages of one queue. A call that returns has consumed. One that raises has not: it is logged, and
        the message (from mq.Retry(from_index=k) on) comes again after a time, at most max_reconsume_times
        times, then goes to the dead letters; a Retry may be returned as well. Cancelled, it cancels the
        calls: what they had comes again. Raises TypeError for a generator function, which would not run.
        """
        check_count("concurrency", concurrency)
        if batch_size is not None:
            check_count("batch_size", batch_size)
        delivery = Delivery(self._holdings, listener, batch_size, max_reconsume_times)
        with self._asking():
            self._holdings.finish_last()
            self._holdings.take_retries()
            turn = asyncio.Lock()
            self._workers = {
                asyncio.create_task(self._work(turn, delivery), name=f"mq-{self.group}-{number}")
                for number in range(concurrency)
            }
            try:
                done, _ = await asyncio.wait(self._workers, return_when=asyncio.FIRST_EXCEPTION)
                for worker in done:
                    worker.result()
            finally:
                delivery.is_ending = True
                for worker in self._workers:
                    worker.cancel()
                await asyncio.gather(*self._workers, return_exceptions=True)
                self._workers.clear()
                if self._closing:
                    self._end(failed=False)
                else:
                    self._holdings.put_back()

    def commit(self) -> None:
        """Commit all that was handed out, the message that a loop is at included."""
        self._check_open()
        self._holdings.commit_given()

    def seek(self, queue: AnyQueue, offset: int) -> None:
        """Go on from this offset of a queue that is assigned to this consumer."""
        self._held(queue).seek(offset)
        self._wake()

    def seek_to_time(self, queue: AnyQueue, time_ms: int) -> None:
        """Go on from the first message stored at time_ms or later; from the end if there is none."""
        held = self._held(queue)
        held.seek(self._holdings.broker.offset_at(held.queue, time_ms))
        self._wake()

    def pause(self, queues: Iterable[AnyQueue]) -> None:
        """Hand out nothing of these queues until resume()."""
        self._check_open()
        self._holdings.pause([named(queue) for queue in queues])

    def resume(self, queues: Iterable[AnyQueue]) -> None:
        """Hand out messages of these queues again."""
        self._check_open()
        self._holdings.resume([named(queue) for queue in queues])
        self._wake()

    def committed(self, queue: AnyQueue) -> int | None:
        """What the group has committed of a queue; None for nothing yet."""
        self._check_open()
        return self._holdings.broker.committed(self.group, named(queue))

    def position(self, queue: AnyQueue) -> int:
        """The offset from which on messages of a queue are still to be handed out."""
        return self._held(queue).given

    def assignment(self) -> set[MessageQueue]:
        """The queues that this consumer has now."""
        return set(self._holdings.held)

    async def close(self) -> None:
        """Wait for the listeners that run, commit what counts as consumed, and leave the group.

        Twice is fine. A listener may call it: its consumer then ends once the listener has. Cancelled while
        it waits, it closes without the listeners.
        """
        await self._close(failed=sys.exc_info()[1] is not None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(failed=error is not None)

    def __repr__(self) -> str:
        return f"aio.Consumer({self.group!r}, {self.client_id!r}{', closed' if self._closing else ''})"

    async def _work(self, turn: asyncio.Lock, delivery: Delivery) -> None:
        """One of the callers of the listener: takes what is next, and sees it through."""
        while not self._closing:
            now = monotonic()
            taken = None
            if now - self._yielded_at <= YIELD_SECONDS:
                taken = self._holdings.look(delivery.count_max, now)
            if taken is None:
                async with turn:
                    taken = await self._take(delivery.count_max, None)
                if taken is None:
                    return
            await delivery.deliver(*taken)
            if self._holdings.release_what_is_finished():
                self._wake()

    async def _ask(self, count_max: int, deadline: float, *, in_loop: bool) -> list[MessageExt]:
        with self._asking():
            self._holdings.finish_last()
            taken = await self._take(count_max, deadline)
            if taken is None:
                return []
            held, messages = taken
            self._holdings.hand_out(held, messages[0], in_loop=in_loop)
            return messages

    def _advance(self) -> MessageExt | None:
        """The next message of a loop, where that takes no look."""
        now = monotonic()
        if self._closing or self._is_asked or now - self._yielded_at > YIELD_SECONDS:
            return None
        return self._holdings.advance(now)

    async def _take(
        self, count_max: int, deadline: float | None
    ) -> tuple[HeldQueue, list[MessageExt]] | None:
        """The next batch. None when the deadline is over, or the consumer closes."""
        while not self._closing:
            now = monotonic()
            if now - self._yielded_at > YIELD_SECONDS:
                await asyncio.sleep(0)
                self._yielded_at = monotonic()
                continue
            found = self._holdings.look(count_max, now)
            if found is not None:
                return found
            if self._holdings.at_end:
                left = self._holdings.due() - now
                if deadline is not None:
                    if now >= deadline:
                        return None
                    left = min(left, deadline - now)
                await self._wait(left, now)
        return None

    async def _wait(self, seconds: float, now: float) -> None:
        watched = self._holdings.watched
        positions = self._holdings.positions(now)
        if self._waiter is None:
            self._waiter = Waiter.attach(self._holdings.broker)
        self._request = Request(watched, positions, self._holdings.version, now + seconds)
        try:
            await self._waiter.wait(self._request)
        finally:
            self._request = None
        self._yielded_at = monotonic()

    def _wake(self) -> None:
        """Have who waits for messages look again."""
        if self._request is not None:
            self._request.wake()

    def _held(self, queue: AnyQueue) -> HeldQueue:
        self._check_open()
        self._holdings.enter()
        return self._holdings.at(named(queue))

    def _check_open(self) -> None:
        if self._closing:
            raise BrokerClosed("this consumer is closed: make another")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """While one task asks for messages, no other does."""
        self._check_open()
        self._holdings.check_told()
        if self._is_asked:
            raise RuntimeError(
                "another task is asking this consumer for messages: give each task a consumer, or let"
                " run(listener, concurrency=...) call a coroutine from several"
            )
        self._is_asked = True
        try:
            yield
        finally:
            self._is_asked = False

    async def _close(self, *, failed: bool) -> None:
        self._closing = True
        self._wake()
        if asyncio.current_task() in self._workers:
            return  # run ends it
        try:
            while self._workers:
                await asyncio.wait(self._workers)
                await asyncio.sleep(0)  # run clears up
        finally:
            for worker in self._workers:
                worker.cancel()
            uninterrupted(lambda: self._end(failed=failed))

    def __del__(self) -> None:
        holdings = getattr(self, "_holdings", None)
        if holdings is not None and holdings.membership is not None and not holdings.is_closed:
            left_open(lambda: self._end(failed=True), self, self._pid)

    def _end(self, *, failed: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if self._waiter is not None:
            self._waiter.detach(self._holdings.watched)
        self._holdings.close(failed=failed)


class _Messages:
    """A loop over messages. One that is cancelled while it waits may be asked again."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> MessageExt:
        try:
            while True:
                message = self._consumer._advance()
                if message is not None:
                    return message
                deadline = monotonic() + ROUND_SECONDS
                for message in await self._consumer._ask(1, deadline, in_loop=True):
                    return message
        except BrokerClosed:
            raise StopAsyncIteration from None
