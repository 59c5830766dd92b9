"""The messages of send_async that the broker does not have yet.

The buffer is bounded by messages and bytes; a caller waits while it is full. One thread sends them in order,
many at a time. The first message starts the thread. It ends when the buffer is closed and empty, so close(),
and the end of the interpreter, lose no message.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic

from mq.api.broker import MessageQueue, SendResult
from mq.errors import BrokerClosed, ForkedBroker, RequestTimeout
from mq.message import Message
from mq.threads import start

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
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards all below
        self._filled = threading.Condition(self._lock)  # there are sends, or there will be no more
        self._emptied = threading.Condition(self._lock)  # there is room, or there will be none
        self._sends: deque[PendingSend] = deque()
        self._count = 0  # includes the sends in progress
        self._size = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def put(self, pending: PendingSend) -> None:
        """Add a send. Raises RequestTimeout if there is no room before its deadline."""
        if os.getpid() != self._pid:
            raise ForkedBroker("this producer was made before the fork: make one in the child")
        size = len(pending.message.body)
        with self._lock:
            # A future's callback runs on the sending thread: it must not wait for room.
            if not self._has_room(size) and threading.current_thread() is not self._thread:
                self._wait_for_room(pending, size)
            if self._closed:
                raise BrokerClosed("this producer is closed: make another")
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                start(thread)
                self._thread = thread
                atexit.register(self.close)
            self._sends.append(pending)
            self._count += 1
            self._size += size
            if len(self._sends) == 1:
                self._filled.notify()

    def close(self) -> None:
        """Accept no more sends, and wait until all are completed."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            self._filled.notify()
            self._emptied.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            atexit.unregister(self.close)

    def _wait_for_room(self, pending: PendingSend, size: int) -> None:
        if not self._emptied.wait_for(
            lambda: self._closed or self._has_room(size), pending.deadline - monotonic()
        ):
            raise RequestTimeout(
                f"no room for a message within {pending.timeout:g} s: {self._count:,} messages of"
                f" {self._size:,} bytes are waiting to be sent"
            )

    def _has_room(self, size: int) -> bool:
        # A message over the limit is accepted when the buffer is empty.
        return self._count < self._count_max and (self._size + size <= self._size_max or not self._count)

    def _run(self) -> None:
        sends = self._sends
        while True:
            with self._lock:
                self._filled.wait_for(lambda: sends or self._closed)
                if not sends:
                    return
                taken = [sends.popleft() for _ in range(min(len(sends), TAKEN_MAX))]
            wanted = [pending for pending in taken if pending.future.set_running_or_notify_cancel()]
            try:
                self._send_all(wanted)
            except BaseException as error:  # noqa: BLE001 - the thread goes on, and the callers learn of it
                for pending in wanted:
                    if not pending.future.done():
                        pending.future.set_exception(error)
            with self._lock:
                self._count -= len(taken)
                self._size -= sum(len(pending.message.body) for pending in taken)
                self._emptied.notify_all()
