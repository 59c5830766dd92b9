"""Calls of other threads and processes that wait: started here, and found to sleep."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["AT_ONCE", "Waiting", "asleep"]

AT_ONCE = 45.0  # seconds: room for a machine that halts, and far from any wait that nothing wakes
FUTEX, FUTEX_WAITV = {"202", "98"}, "449"  # by their numbers on x86-64 and ARM 64
PRIVATE = 0x80  # of a futex of one process alone: what Python's own locks sleep on, and no wait of ours


def asleep(pid: int, thread: int | None = None) -> None:
    """Return once this thread of the process sleeps on a futex that processes share: not where it waits for
    the interpreter."""
    deadline = time.monotonic() + 120
    path = Path(f"/proc/{pid}/task/{thread or pid}")
    while True:
        try:
            call, *arguments = (path / "syscall").read_text().split()
        except PermissionError:  # Then nothing tells one futex from another.
            if "futex" in (path / "wchan").read_text():
                return
        else:
            if call == FUTEX_WAITV or (call in FUTEX and not int(arguments[1], 16) & PRIVATE):
                return
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Waiting:
    """A thread of this process in a call that waits."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()
        self.goes_on()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.result = call()
        except BaseException as error:  # noqa: BLE001 - handed over to the test
            self.error = error

    @property
    def thread(self) -> int:
        """Its number among the threads of this machine."""
        assert self._thread.native_id is not None
        return self._thread.native_id

    def goes_on(self) -> None:
        """It sleeps, or does so again."""
        asleep(os.getpid(), self._thread.native_id)

    def end(self) -> Any:
        self._thread.join(AT_ONCE)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.result
