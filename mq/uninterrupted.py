"""Calls that an interrupt cannot cut short: opening, closing, joining, leaving.

A signal handler runs in the main thread, between any two instructions of Python, and may raise there: Ctrl-C,
or a time limit by SIGALRM. What is half open or half closed then belongs to nobody. So the main thread has
such work done by another thread and waits for it: the exception ends the wait, and the work goes on. The
other thread has the time limit for locks that the main thread has.
"""

from __future__ import annotations

import _thread
import os
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from time import monotonic, sleep
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from mq.fastpath import time_guard, time_left

__all__ = ["close_all", "left_open", "uninterrupted", "wait_for_calls"]

DROPPED_SECONDS = 1.0  # for the closing of what nobody has any more
CALLS_SECONDS = 10.0  # for calls that go on without those that made them; as long as one waits for a lock
LOOK_SECONDS = 0.002

Result = TypeVar("Result")


def uninterrupted(
    work: Callable[[], Result], undo: Callable[[Result], object] | None = None, *, of: _Owner | None = None
) -> Result:
    """What work() returns, or raises.

    Where an exception of a signal handler ends the wait for it, undo(result) is called once it is done. The
    process may end before that, as it may be killed at any moment. `of` is what wait_for_calls() knows it by.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    call = _Call(work, undo, of)
    try:
        call.start()
        return call.result()
    except BaseException:
        call.give_up()
        raise


def wait_for_calls(of: _Owner) -> None:
    """Let no further call begin with this, which is about to be closed, and wait until those are through that
    go on in other threads."""
    _closing.add(of)
    deadline = monotonic() + CALLS_SECONDS
    while any(call.of is of for call in list(_under_way)) and monotonic() < deadline:
        sleep(LOOK_SECONDS)


class _Owner(Protocol):
    def refusal(self) -> Exception: ...


class _Closed(Protocol):
    def close(self) -> object: ...


def close_all(parts: Iterable[_Closed | None]) -> None:
    """Close them in this order, each whatever the others raise; None stands for one that was not made."""
    with ExitStack() as stack:
        for part in reversed([part for part in parts if part is not None]):
            stack.callback(part.close)


def left_open(close: Callable[[], object], what: object, pid: int) -> None:
    """Called by __del__ of what was opened in process `pid` and not closed: says so, and closes it.

    In another thread, since an object may be dropped in the middle of anything, also in a thread that close()
    waits for: that is why the wait has a limit.
    """
    if pid != os.getpid():
        return
    call = _Call(close, None, None)
    call.start()
    warnings.warn(f"{what!r} was dropped and not closed", ResourceWarning, source=what, stacklevel=3)
    call.wait(DROPPED_SECONDS)


class _Call(Generic[Result]):
    def __init__(
        self, work: Callable[[], Result], undo: Callable[[Result], object] | None, of: _Owner | None
    ) -> None:
        self._work = work
        self._undo = undo
        self.of = of
        self._seconds = time_left()
        self._lock = threading.Lock()  # guards what follows
        self._is_given_up = False
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()
        self._thread = threading.Thread(target=self._run, name="mq-uninterrupted", daemon=True)

    def start(self) -> None:
        # One call of C: an interrupt comes before or after it. Thread.start() has many steps, and interrupted
        # between two of them it leaves a thread that never runs; so another thread calls it.
        try:
            _thread.start_new_thread(_start_or_run, (self._thread,))
        except RuntimeError as error:
            if not str(error).startswith("can't"):
                raise  # By a signal handler.
            self._run()  # There can be no more threads, or the interpreter is about to end.

    def _run(self) -> None:
        _under_way.add(self)
        try:
            if self.of is not None and self.of in _closing:
                raise self.of.refusal()
            if self._seconds is None:
                result = self._work()
            else:
                with time_guard(self._seconds):
                    result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error
        else:
            with self._lock:
                if not self._is_given_up:
                    self._results.append(result)
            if self._is_given_up and self._undo is not None:
                self._undo(result)
        finally:
            _under_way.discard(self)
            self._done.release()

    def result(self) -> Result:
        self._done.acquire()
        self._join()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._results[0]

    def wait(self, seconds: float) -> None:
        if self._done.acquire(timeout=seconds):
            self._join()

    def _join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def give_up(self) -> None:
        """Nobody wants the result any more."""
        with self._lock:
            self._is_given_up = True
            results, self._results = self._results, []
        if results and self._undo is not None:
            self._undo(results[0])


def _start_or_run(thread: threading.Thread) -> None:
    """It knows nothing of the call: what that returns is not kept any longer than its caller wants."""
    try:
        thread.start()
    except RuntimeError:  # There can be no more threads.
        thread.run()


_under_way: set[_Call[Any]] = set()
_closing: WeakSet[_Owner] = WeakSet()
os.register_at_fork(after_in_child=_under_way.clear)  # Their threads are the parent's.
