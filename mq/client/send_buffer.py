"""The messages of send_async that the broker does not have yet.

The buffer is bounded by messages and bytes; a caller waits while it is full. One thread sends them in order,
many at a time. The first message starts the thread. It ends when the buffer is closed and empty, so close(),
and the end of the interpreter, lose no message.

put() holds no lock, and adds a message by one call of C: an interrupt comes before or after it, and a signal
handler that sends waits for nobody. All counts are derived from what the buffer has, so none can be wrong.
Threads that put at the same time may find the same room: each may exceed the limits by one message.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic

from mq.api.broker import MessageQueue, SendResult
from mq.errors import BrokerClosed, ForkedBroker, RequestTimeout
from mq.message import Message
from mq.threads import start
from mq.uninterrupted import uninterrupted

TAKEN_MAX = 256  # at a time, so that the first of many is not answered with the last


class PendingSend:
    """A message to be sent. is_bound: the caller chose the queue, so no other one is tried."""

    __slots__ = ("deadline", "future", "is_bound", "message", "queue", "timeout")

    def __init__(self, message: Message, queue: MessageQueue, is_bound: bool, timeout: float) -> None:
        self.message = message
        self.queue = queue
        self.is_bound = is_bound
        self.timeout = timeout
        self.deadline = monotonic() + timeout
        self.future: Future[SendResult] = Future()


class SendBuffer:
    """One thread calls `send_all` with pending sends; `send_all` completes the future of each."""

    def __init__(
        self, name: str, send_all: Callable[[list[PendingSend]], None], count_max: int, size_max: int
    ) -> None:
        self._name = name
        self._send_all = send_all
        self._count_max = count_max
        self._size_max = size_max
        self._small_max = size_max // count_max  # as many messages as may wait are not too many bytes
        self._pid = os.getpid()
        self._sends: deque[PendingSend] = deque()
        self._has_large = False  # a message over _small_max may be among them
        self._taken_count = self._taken_size = 0  # of the sends in progress; the thread alone writes them
        self._is_idle = False  # the thread waits, or is about to
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._waiting: deque[threading.Lock] = deque()  # released when there is room, or will be none
        self._starting = threading.Lock()  # guards what follows; the main thread takes it in another thread
        self._closed = False
        self._thread: threading.Thread | None = None

    def put(self, pending: PendingSend) -> None:
        """Add a send. Raises RequestTimeout if there is no room before its deadline."""
        if os.getpid() != self._pid:
            raise ForkedBroker("this producer was made before the fork: make one in the child")
        size = len(pending.message.body)
        # A future's callback runs on the sending thread: it must not wait for room.
        if not self._has_room(size) and threading.current_thread() is not self._thread:
            self._wait_for_room(pending, size)
        if self._thread is None or self._closed:
            uninterrupted(self._start)
        if size > self._small_max:
            self._has_large = True
        self._sends.append(pending)
        if size > self._small_max:
            self._has_large = True  # The thread may have looked before it was there.
        if self._is_idle:
            # Where an interrupt comes before this, the next call wakes the thread.
            self._wakeups.put(None)
        if self._closed:
            # The thread may have ended before it was there.
            with suppress(ValueError):  # It was taken.
                self._sends.remove(pending)
                raise _closed()

    def close(self) -> None:
        """Accept no more sends, and wait until all are completed."""
        if os.getpid() != self._pid:
            return
        with self._starting:
            self._closed = True
            thread = self._thread
        self._wakeups.put(None)
        self._let_in()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            atexit.unregister(self.close)

    def _start(self) -> None:
        with self._starting:
            if self._closed:
                raise _closed()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                start(thread)
                self._thread = thread
                atexit.register(self.close)

    def _wait_for_room(self, pending: PendingSend, size: int) -> None:
        self._wakeups.put(None)  # An interrupted call may not have come so far.
        while True:
            waiting = threading.Lock()
            waiting.acquire()
            self._waiting.append(waiting)
            # After it is there: room that is made from now on is told.
            if self._closed or self._has_room(size):
                return
            left = min(max(pending.deadline - monotonic(), 0.0), threading.TIMEOUT_MAX)
            if not waiting.acquire(timeout=left):
                break
        with suppress(ValueError):
            self._waiting.remove(waiting)
        sends = list(self._sends)
        raise RequestTimeout(
            f"no room for a message within {pending.timeout:g} s: {self._taken_count + len(sends):,} messages"
            f" of {self._taken_size + _size(sends):,} bytes are waiting to be sent"
        )

    def _has_room(self, size: int) -> bool:
        count = self._taken_count + len(self._sends)
        if not count:
            return True  # Also for a message over the limit.
        if count >= self._count_max:
            return False
        if size <= self._small_max and not self._has_large:
            return True
        return self._taken_size + _size(list(self._sends)) + size <= self._size_max

    def _let_in(self) -> None:
        """Have all that wait for room look again."""
        for _ in range(len(self._waiting)):
            with suppress(IndexError):  # One gave up.
                self._waiting.popleft().release()

    def _run(self) -> None:
        while taken := self._take():
            wanted = [pending for pending in taken if pending.future.set_running_or_notify_cancel()]
            try:
                self._send_all(wanted)
            except BaseException as error:  # noqa: BLE001 - the thread goes on, and the callers learn of it
                for pending in wanted:
                    if not pending.future.done():
                        pending.future.set_exception(error)
            self._taken_count = self._taken_size = 0
            if self._has_large:
                self._has_large = False
                self._has_large = any(len(each.message.body) > self._small_max for each in list(self._sends))
            self._let_in()

    def _take(self) -> list[PendingSend]:
        """The sends that come next; none where there will be no more."""
        sends = self._sends
        while True:
            is_closed = self._closed  # First: what is added after a look in vain is taken back by put().
            if not sends:
                if is_closed:
                    return []
                self._is_idle = True
                if not sends and not self._closed:
                    self._wakeups.get()
                self._is_idle = False
                continue
            next_ones = list(sends)[:TAKEN_MAX]
            # First: meanwhile some count twice, and none is left out.
            self._taken_count, self._taken_size = len(next_ones), _size(next_ones)
            taken: list[PendingSend] = []
            with suppress(IndexError):  # One was taken back.
                for _ in next_ones:
                    taken.append(sends.popleft())  # noqa: PERF401 - keeps what was taken before
            if taken:
                return taken


def _size(sends: list[PendingSend]) -> int:
    return sum([len(pending.message.body) for pending in sends])


def _closed() -> BrokerClosed:
    return BrokerClosed("this producer is closed: make another")
