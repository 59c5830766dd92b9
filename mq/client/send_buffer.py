"""What send_async has taken and the broker does not have yet.

At most so many messages and bytes are in here; a sender with more waits. One thread takes them out
in the order in which they came, as many at a time as there are. The first message starts it; it ends when
the outbox is closed and empty, so that close(), and the end of the interpreter, forget nothing.
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


class Letter:
    """A message on its way. Where the caller chose the queue, it goes there or nowhere."""

    __slots__ = ("deadline", "future", "is_bound", "message", "queue", "timeout")

    def __init__(self, message: Message, queue: MessageQueue, is_bound: bool, timeout: float) -> None:
        self.message = message
        self.queue = queue
        self.is_bound = is_bound
        self.timeout = timeout
        self.deadline = monotonic() + timeout
        self.future: Future[SendResult] = Future()


class Outbox:
    """`post` is called with letters, by one thread, and answers the future of each of them."""

    def __init__(
        self, name: str, post: Callable[[list[Letter]], None], count_max: int, size_max: int
    ) -> None:
        self._name = name
        self._post = post
        self._count_max = count_max
        self._size_max = size_max
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards all below
        self._filled = threading.Condition(self._lock)  # there are letters, or there will be no more
        self._emptied = threading.Condition(self._lock)  # there is room, or there will be none
        self._letters: deque[Letter] = deque()
        self._count = 0  # of the letters being posted too
        self._size = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def put(self, letter: Letter) -> None:
        """Take a letter. Raises RequestTimeout where there is no room for it before its deadline."""
        if os.getpid() != self._pid:
            raise ForkedBroker("this producer was made before the fork: make one in the child")
        size = len(letter.message.body)
        with self._lock:
            # The callback of a future runs on the thread that makes the room: it must not wait for it.
            if not self._has_room(size) and threading.current_thread() is not self._thread:
                self._wait_for_room(letter, size)
            if self._closed:
                raise BrokerClosed("this producer is closed: make another")
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                start(thread)
                self._thread = thread
                atexit.register(self.close)
            self._letters.append(letter)
            self._count += 1
            self._size += size
            if len(self._letters) == 1:
                self._filled.notify()

    def close(self) -> None:
        """Take nothing more, and wait until all that was taken is answered."""
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

    def _wait_for_room(self, letter: Letter, size: int) -> None:
        if not self._emptied.wait_for(
            lambda: self._closed or self._has_room(size), letter.deadline - monotonic()
        ):
            raise RequestTimeout(
                f"no room for a message within {letter.timeout:g} s: {self._count:,} messages of"
                f" {self._size:,} bytes are waiting to be sent"
            )

    def _has_room(self, size: int) -> bool:
        # A single message over the limit is let through when it is alone.
        return self._count < self._count_max and (self._size + size <= self._size_max or not self._count)

    def _run(self) -> None:
        letters = self._letters
        while True:
            with self._lock:
                self._filled.wait_for(lambda: letters or self._closed)
                if not letters:
                    return
                taken = [letters.popleft() for _ in range(min(len(letters), TAKEN_MAX))]
            wanted = [letter for letter in taken if letter.future.set_running_or_notify_cancel()]
            try:
                self._post(wanted)
            except BaseException as error:  # noqa: BLE001 - the thread goes on, and the callers learn of it
                for letter in wanted:
                    if not letter.future.done():
                        letter.future.set_exception(error)
            with self._lock:
                self._count -= len(taken)
                self._size -= sum(len(letter.message.body) for letter in taken)
                self._emptied.notify_all()
