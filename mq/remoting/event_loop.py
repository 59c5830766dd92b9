"""One thread with an event loop for all connections of a broker object. It uses uvloop if that is
installed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

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
        try:
            future: Future[Result] = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            work.close()
            raise BrokerClosed(f"{what}: the broker is closed") from None
        try:
            return future.result(timeout)
        except FutureTimeout as error:
            if future.done() and future.exception() is error:
                raise  # The coroutine itself raised it: RequestTimeout is a TimeoutError.
            future.cancel()
            raise RequestTimeout(f"{what}: not done within {timeout:.1f} s", address=address) from None
        except CancelledError:
            raise BrokerClosed(f"{what}: the broker was closed") from None
        except BaseException:
            future.cancel()
            raise

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


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
