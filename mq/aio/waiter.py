"""One thread for all asyncio consumers of a broker: it sleeps until one of them has something to do.

A task that has nothing to do leaves a request here: where messages would be news, which version of its
membership it has seen if it has one, when to wake it at the latest. The thread waits for all of them as one
(see Broker.waiter), and answers those that are due on their own loops. A request that comes meanwhile wakes
it up. It ends when the last consumer is gone.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from contextlib import suppress
from time import monotonic

from mq.api.broker import Broker
from mq.api.waiter import Versioned
from mq.client.engine.poll_loop import Position
from mq.errors import MQError
from mq.threads import start
from mq.uninterrupted import uninterrupted

waiters: dict[Broker, WaiterThread] = {}  # of the brokers that have consumers
_waiters_lock = threading.Lock()  # before that of a waiter


class Request:
    """A task that waits."""

    __slots__ = ("deadline", "future", "loop", "positions", "version", "watched")

    def __init__(
        self, watched: Versioned | None, positions: list[Position], version: int, deadline: float
    ) -> None:
        self.watched = watched
        self.positions = positions
        self.version = version
        self.deadline = deadline
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()

    def is_due(self, broker: Broker, now: float) -> bool:
        try:
            return (
                now >= self.deadline
                or (self.watched is not None and self.watched.version() != self.version)
                or any(broker.max_offset(queue) > offset for queue, offset, _ in self.positions)
            )
        except (MQError, ValueError):
            return True  # a topic is gone, or the broker closed: the caller finds out

    def answer(self) -> None:
        """From the thread."""
        with suppress(RuntimeError):  # the loop is closed, and the caller with it
            self.loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        """From the loop."""
        if not self.future.done():
            self.future.set_result(None)


class WaiterThread:
    """The thread of one broker, while it has consumers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = threading.Lock()  # guards all below
        self._changed = threading.Condition(self._lock)
        self._requests: list[Request] = []
        self._user_count = 0
        self._looked_at: list[Request] = []  # by the thread
        self._waiter = broker.waiter()
        self._thread: threading.Thread | None = None

    @staticmethod
    def attach(broker: Broker) -> WaiterThread:
        """The waiter of a broker, for one consumer more."""
        with _waiters_lock:
            waiter = waiters.get(broker)
            if waiter is None:
                waiter = waiters[broker] = WaiterThread(broker)
            waiter._user_count += 1
            return waiter

    def detach(self, watched: Versioned | None) -> None:
        """A consumer is gone; what is watched for it is not used here any more when this returns."""
        with _waiters_lock, self._lock:
            self._user_count -= 1
            if self._user_count <= 0:
                waiters.pop(self._broker, None)
            # The thread is not to look at them again: it may be through, and back, before this one is let in.
            gone = [request for request in self._requests if watched and request.watched is watched]
            self._requests = [request for request in self._requests if request not in gone]
            for request in gone:
                request.answer()
            while watched and any(request.watched is watched for request in self._looked_at):
                self._wake_up()
                self._changed.wait(0.01)
            self._changed.notify_all()

    async def wait(self, request: Request) -> None:
        """Until there is something to do for the caller."""
        if self._thread is None:
            uninterrupted(self._start)  # Two of them would use one waiter.
        with self._lock:
            self._requests.append(request)
            self._wake_up()
            self._changed.notify_all()
        try:
            await request.future
        finally:
            with self._lock:
                if request in self._requests:
                    self._requests.remove(request)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="mq-aio-waiter", daemon=True)
                start(thread)
                self._thread = thread
                atexit.register(self._end)

    def _wake_up(self) -> None:
        if self._looked_at:
            self._waiter.wakeup()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._requests and self._user_count > 0:
                    self._changed.wait()
                if self._user_count <= 0:
                    self._thread = None
                    atexit.unregister(self._end)
                    return
                self._looked_at = requests = list(self._requests)
            try:
                self._sleep(requests)
                now = monotonic()
                due = [request for request in requests if request.is_due(self._broker, now)]
            except BaseException:  # noqa: BLE001 - whatever it is, the callers run into it themselves
                due = requests
            with self._lock:
                self._looked_at = []
                self._changed.notify_all()
                self._requests = [request for request in self._requests if request not in due]
            for request in due:
                request.answer()

    def _sleep(self, requests: list[Request]) -> None:
        timeout = min(request.deadline for request in requests) - monotonic()
        positions = {position: None for request in requests for position in request.positions}
        members = [(one.watched, one.version) for one in requests if one.watched is not None]
        self._waiter.wait(list(positions), members, max(0.0, timeout))

    def _end(self) -> None:
        """The interpreter ends: the thread must not sleep in memory that goes."""
        with self._lock:
            self._user_count = 0
            self._requests.clear()
            self._wake_up()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(1.0)
