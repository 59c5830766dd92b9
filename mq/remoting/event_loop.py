"""One thread with an event loop for all connections of a broker object. It uses uvloop if that is
installed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from mq.errors import BrokerClosed, RequestTimeout
from mq.threads import start

__all__ = ["EventLoop"]

Result = TypeVar("Result")
CLOSE_SECONDS = 10.0


class EventLoop:
    """Runs until close(). Raises InsufficientResources if no more threads can be started."""

    def __init__(self, name: str) -> None:
        self.loop = new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        start(self._thread)

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the loop's, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        """Schedule a call in the loop; ignored once the loop is closed."""
        try:
            self.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def wait_for(
        self,
        work: Coroutine[Any, Any, Result],
        timeout: float,
        what: str,
        address: str | None = None,
    ) -> Result:
        """Run a coroutine in the loop and return its result. Raises RequestTimeout, with this address, after
        `timeout` seconds."""
        assert not self.is_current
        running = _Running(work)
        try:
            self.loop.call_soon_threadsafe(running.start)
            is_done = running.done.acquire(timeout=max(timeout, 0))
        except BaseException as error:
            if isinstance(error, RuntimeError) and self.loop.is_closed():
                work.close()
                raise BrokerClosed(f"{what}: the broker is closed") from None
            self.post(running.cancel)
            raise
        if not is_done:
            self.post(running.cancel)
            raise RequestTimeout(f"{what}: not done within {timeout:.1f} s", address=address)
        try:
            return running.result()
        except asyncio.CancelledError:
            raise BrokerClosed(f"{what}: the broker was closed") from None

    def close(self) -> None:
        """End the thread. Running tasks are cancelled."""
        self.post(self.loop.stop)
        if not self.is_current:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(asyncio.sleep(0))  # run the calls posted meanwhile
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()


class _Running(Generic[Result]):
    """A coroutine that the loop runs while another thread waits for `done`. No Future: an interrupt in one of
    its methods leaves its lock taken, and the loop would wait for that lock for ever."""

    def __init__(self, work: Coroutine[Any, Any, Result]) -> None:
        self.done = threading.Lock()
        self.done.acquire()
        self._work = work
        self._task: asyncio.Task[Result] | None = None
        self._results: list[Result] = []
        self._error: BaseException | None = None

    def start(self) -> None:
        """Called by the loop."""
        self._task = asyncio.ensure_future(self._work)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        """Called by the loop, after start() unless an interrupt came before that was posted."""
        if self._task is None:
            self._work.close()
        else:
            self._task.cancel()

    def _end(self, task: asyncio.Task[Result]) -> None:
        try:
            self._results.append(task.result())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error
        self.done.release()

    def result(self) -> Result:
        """What it returned, or raises what it raised. Once, when it is done."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._results[0]


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
