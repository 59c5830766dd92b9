"""The consumer of asyncio: a loop over messages, or a coroutine that is called with them.

The same queues, offsets and rules as those of a PullConsumer (mq/client/pull_consumer.py), whose words this
one has. It looks for messages on the loop, which takes microseconds, and where there are none waits for the
thread that all consumers of a broker share.

With `run` it does what a PushConsumer does: the group's retry topic is consumed as well, what a listener
fails at is sent back to come again later, and offsets are committed after each message. With assigned queues
it has no share of the retry topic, and keeps what failed until it is due: see mq/client/engine/send_back.py.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mq.aio.delivery import AsyncDelivery, Listener
from mq.aio.waiter import Request, WaiterThread
from mq.client.engine.options import INT_MAX, check_count, check_int
from mq.client.engine.owned_queue import ALL_CONSUMED, ConsumeRequest
from mq.client.engine.poll_loop import LOCK_SECONDS, ROUND_SECONDS
from mq.client.engine.send_back import SendBack
from mq.client.polling_consumer import PollingConsumer
from mq.errors import BrokerClosed
from mq.fastpath import time_guard
from mq.message import MessageExt
from mq.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from typing_extensions import Self

YIELD_SECONDS = 0.001  # after so long other tasks have their turn
TIME_MAX = 86_400.0


class Consumer(PollingConsumer):
    """Messages for the tasks of one loop. The options are those of PullConsumer.

    One task at a time asks for messages: by `async for`, by `poll`, or by `run`, which hands them to several.
    """

    def _prepare(self) -> None:
        self._waiter: WaiterThread | None = None
        self._request: Request | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._is_ended = False
        self._asked_by: asyncio.Task[Any] | None = None
        self._yielded_at = 0.0

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
        if not timeout >= 0:  # Not a number is neither.
            raise ValueError(f"timeout is {timeout} s, must be 0 or more")
        check_count("count_max", count_max)
        self._check_turn()
        try:
            return await self._ask(count_max, monotonic() + timeout, in_loop=False)
        except BaseException:
            self._loop.is_cut_short = True
            raise

    def __aiter__(self) -> AsyncIterator[MessageExt]:
        """One message after the other, until the consumer is closed. A message counts as consumed when the
        loop asks for the next one, and not if it is left before: unless commit() is called, it comes again,
        by the next poll or loop, or to the owner of the queue then."""
        with self._lock.entered():
            self._check_open()
            self._loop.begin_loop()
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
        calls: what they had comes again. Of assigned queues, what failed waits here, uncommitted. Raises
        TypeError for a generator function, which would not run.
        """
        check_count("concurrency", concurrency)
        if batch_size is not None:
            check_count("batch_size", batch_size)
        check_int("max_reconsume_times", max_reconsume_times, 0, INT_MAX)
        delivery = AsyncDelivery(listener, batch_size)
        is_assigned = self._loop.assigned is not None
        send_back = SendBack(self._group, max_reconsume_times=max_reconsume_times, is_assigned=is_assigned)
        with self._asking():
            with self._lock.entered():
                self._loop.finish_last()
                self._loop.listen(listener)
            turn = asyncio.Lock()
            self._workers = {
                asyncio.create_task(self._work(turn, delivery, send_back), name=f"mq-{self.group}-{number}")
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
                if self._is_closed:
                    uninterrupted(lambda: self._end(failed=False))
                else:
                    with self._lock.entered():
                        self._loop.put_back()

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
        return f"aio.Consumer({self.group!r}, {self.client_id!r}{', closed' if self._is_closed else ''})"

    async def _work(self, turn: asyncio.Lock, delivery: AsyncDelivery, send_back: SendBack) -> None:
        """One of the callers of the listener: takes what is next, and sees it through."""
        loop = self._loop
        while not self._is_over:
            now = monotonic()
            request = None
            if now - self._yielded_at <= YIELD_SECONDS:
                with self._lock.entered():
                    request = loop.look(delivery.count_max, now)
            if request is None:
                async with turn:
                    request = await self._take(delivery.count_max, None)
                if request is None:
                    return
            failures = await delivery.failures(list(request.run.left))
            with self._lock.entered():
                unconsumed = send_back.settle(request, failures) if failures else ALL_CONSUMED
                loop.finish(request, unconsumed)
                if loop.release_what_is_finished() or unconsumed.again:
                    self._wake()  # It knows neither of the queue nor of what is due.

    @property
    def _is_over(self) -> bool:
        """Closed, and nothing waits for another attempt to send it back."""
        return self._is_closed and not (self._workers and self._loop.holds_back)

    async def _ask(self, count_max: int, deadline: float, *, in_loop: bool) -> list[MessageExt]:
        messages = self._advance(count_max, in_loop=in_loop)
        if messages:
            return messages
        with self._asking():
            with self._lock.entered():
                self._loop.finish_last()
            request = await self._take(count_max, deadline)
            if request is None:
                return []
            with self._lock.entered():
                return self._loop.hand_out(request, count_max, in_loop=in_loop)

    def _advance(self, count_max: int, *, in_loop: bool) -> list[MessageExt]:
        """The next messages, where that takes no look, and other tasks need not have their turn first."""
        now = monotonic()
        if self._asked_by is not None or self._is_closed or now - self._yielded_at > YIELD_SECONDS:
            return []
        with self._lock.entered():
            self._loop.mend()
            return self._loop.advance(count_max, now, in_loop=in_loop)

    async def _take(self, count_max: int, deadline: float | None) -> ConsumeRequest | None:
        """The next batch, without a deadline for one of several. None when the deadline is over, or the
        consumer closes."""
        while not self._is_over:
            now = monotonic()
            if now - self._yielded_at > YIELD_SECONDS:
                await asyncio.sleep(0)
                self._yielded_at = monotonic()
                continue
            seconds = TIME_MAX if deadline is None else max(deadline - now, LOCK_SECONDS)
            with self._lock.entered(), time_guard(seconds):
                found = self._loop.look(count_max, now, for_one=deadline is not None)
            if found is not None:
                return found
            if self._loop.at_end:
                left = self._loop.due() - now
                if deadline is not None:
                    if now >= deadline:
                        return None
                    left = min(left, deadline - now)
                await self._wait(left, now)
        return None

    async def _wait(self, seconds: float, now: float) -> None:
        watched = self._loop.watched
        positions = self._loop.positions(now)
        if self._waiter is None:
            self._waiter = WaiterThread.attach(self._broker)
        self._request = Request(watched, positions, self._loop.version, now + seconds)
        try:
            await self._waiter.wait(self._request)
        finally:
            self._request = None
        self._yielded_at = monotonic()

    def _wake(self) -> None:
        """Have the call that waits for messages look again."""
        if self._request is not None:
            self._request.wake()

    def _check_turn(self) -> None:
        """Before all else: one that is refused within or beside another call has cut nothing short. A task
        that a signal handler cut short asks no more, whatever it had no time to take back."""
        self._lock.entered()
        asking = self._asked_by
        if asking is not None and not asking.done() and not self._is_closed:
            raise RuntimeError(
                "another task is asking this consumer for messages: give each task a consumer, or let"
                " run(listener, concurrency=...) call a coroutine from several"
            )

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """While one task asks for messages, no other does."""
        self._check_open()
        self._loop.check_told()
        self._check_turn()
        self._asked_by = task = asyncio.current_task()
        try:
            yield
        finally:
            if self._asked_by is task:
                self._asked_by = None

    async def _close(self, *, failed: bool) -> None:
        self._is_closed = True
        if self._workers:
            self._loop.drain()
        self._wake()
        if asyncio.current_task() in self._workers:
            return  # run ends it
        try:
            while self._workers:
                await asyncio.wait(self._workers)
                await asyncio.sleep(0)  # run clears up
                run = self._asked_by
                if run is None or run.done() or run is asyncio.current_task():
                    break  # It was cut short doing so.
        finally:
            for worker in self._workers:
                worker.cancel()
            uninterrupted(lambda: self._end(failed=failed))

    def _end(self, *, failed: bool) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        if self._waiter is not None:
            self._waiter.detach(self._loop.watched)
        self._loop.close(failed=failed)


class _Messages:
    """A loop over messages. One that is cancelled while it waits may be asked again."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> MessageExt:
        consumer = self._consumer
        while True:
            consumer._check_turn()
            try:
                for message in consumer._advance(1, in_loop=True):
                    return message
                for message in await consumer._ask(1, monotonic() + ROUND_SECONDS, in_loop=True):
                    return message
            except BrokerClosed:
                raise StopAsyncIteration from None
            except BaseException:
                consumer._loop.is_cut_short = True
                raise

    def __del__(self) -> None:
        self._consumer._loop.handed_out.is_left = True
