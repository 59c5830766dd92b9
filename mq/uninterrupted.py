"""Calls that an interrupt cannot cut short: opening, closing, joining, leaving.

A signal handler runs in the main thread, between any two instructions of Python, and may raise there: Ctrl-C,
or a time limit by SIGALRM. What is half open or half closed then belongs to nobody. So the main thread has
such work done by another thread and waits for it: the exception ends the wait, and the work goes on. The
other thread has the time limit for locks that the main thread has, and is refused a lock of that one at once:
a signal handler made the call then, and nobody gives the lock back before it is done.

A worker thread is started by the first call, takes one call after the other, and ends when there was none for
a moment. A call whose wait was ended may keep its worker busy; the next call then gets another one.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from time import monotonic, sleep
from typing import Any, Generic, Protocol, TypeVar, cast
from weakref import WeakSet

from mq.errors import ForkedBroker
from mq.fastpath import HandedOver, bind_hand_over, done_for, held_here, time_guard, time_left

__all__ = ["close_all", "closed_when_dropped", "handed_over", "left_open", "uninterrupted", "wait_for_calls"]

DROPPED_SECONDS = 1.0  # for the closing of what nobody has any more
CALLS_SECONDS = 10.0  # for calls that go on without those that made them; as long as one waits for a lock
LOOK_SECONDS = 0.002
IDLE_SECONDS = 0.1  # after which a worker ends
TAKEN_SECONDS = 0.02  # within which an idle worker takes a call

Result = TypeVar("Result")
Method = TypeVar("Method", bound=Callable[..., Any])


def uninterrupted(
    work: Callable[[], Result], undo: Callable[[Result], object] | None = None, *, of: _Owner | None = None
) -> Result:
    """What work() returns, or raises.

    Where an exception of a signal handler ends the wait for it, undo(result) is called once it is done. The
    process may end before that, as it may be killed at any moment. `of` is what wait_for_calls() knows it by.
    """
    # While the interpreter ends, no other thread runs.
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        return work()
    call = _Call(work, undo, of, waiter=held_here())
    try:
        _hand_over(call)
        return call.result()
    except BaseException:
        call.give_up()
        raise


def handed_over(method: Method) -> Method:
    """A method that is done as uninterrupted() does its work, from before its first instruction on.

    It is begun for sure: a signal handler cannot raise between the call of it and the other thread. So where
    it is close() or __exit__, what it closes does not stay open for ever, though the caller has no other time
    to close it.
    """
    return cast("Method", HandedOver(method))


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
    waits for: that is why the wait has a limit. What a signal handler raises here goes nowhere.
    """
    if pid != os.getpid():
        return
    try:
        call = _Call(close)
        _hand_over(call)
    except BaseException:
        _calls.append(_Call(close))  # Twice is fine, and there is no later time for it.
        _start_worker()
        raise
    warnings.warn(f"{what!r} was dropped and not closed", ResourceWarning, source=what, stacklevel=3)
    call.wait(DROPPED_SECONDS)


def closed_when_dropped(close_of: Callable[[Any], Callable[[], object] | None]) -> Callable[[Any], None]:
    """Make a __del__ of a function that returns how to close `self`, or None where it is not open: the object
    is closed by left_open(). It has the process that opened it as _pid.

    While the interpreter ends this does nothing; modules may be empty by then, so all it needs is its own.
    """

    def __del__(self: Any, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # noqa: N807 - it is one
        close = None if is_finalizing() else close_of(self)
        if close is not None:
            warn_and_close(close, self, self._pid)

    warn_and_close = left_open
    return __del__


class _Call(Generic[Result]):
    def __init__(
        self,
        work: Callable[[], Result],
        undo: Callable[[Result], object] | None = None,
        of: _Owner | None = None,
        seconds: float | None = None,
        waiter: tuple[int, int] | None = None,
    ) -> None:
        self.waiter = waiter  # see held_here; None: nobody waits until it is done
        self._work = work
        self._undo = undo
        self.of = of
        self._pid = os.getpid()
        self._seconds = time_left() if seconds is None else seconds
        self._lock = threading.Lock()  # guards what follows
        self._is_given_up = False
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._is_taken = False
        self._done = threading.Lock()
        self._done.acquire()

    def run(self) -> threading.Lock:
        """Do the work. Returns what is to be released then: the waiting thread alone keeps the result."""
        _under_way.add(self)
        self._is_taken = True
        try:
            if self.of is not None and self.of in _closing:
                raise self.of.refusal()
            if self._seconds is None:
                result = done_for(self, self._work)
            else:
                with time_guard(self._seconds):
                    result = done_for(self, self._work)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error
        else:
            with self._lock:
                is_wanted = not self._is_given_up
                if is_wanted:
                    self._results.append(result)
            if not is_wanted and self._undo is not None:
                self._undo(result)
        finally:
            _under_way.discard(self)
        return self._done

    def result(self) -> Result:
        while not self._done.acquire(timeout=-1 if self._is_taken else TAKEN_SECONDS):
            if self._pid != os.getpid():
                raise _forked()
            _start_worker()  # The idle one was about to end, or has got another call.
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._results[0]

    def forked(self) -> None:
        """In a forked child: the parent's worker has it, and there is none here."""
        self._error = _forked()
        self._done.release()

    def wait(self, seconds: float) -> None:
        self._done.acquire(timeout=seconds)

    def give_up(self) -> None:
        """Nobody wants the result any more."""
        self.waiter = None
        with self._lock:
            self._is_given_up = True
            results, self._results = self._results, []
        if results and self._undo is not None:
            self._undo(results[0])
        if not self._is_taken:
            _start_worker()  # The interrupt may have come before there was one.


def _forked() -> ForkedBroker:
    return ForkedBroker("the process was forked during this call, which goes on in the parent alone")


def _hand_over(call: _Call[Any]) -> None:
    _calls.append(call)  # One call of C: an interrupt comes before or after it.
    _wake_worker()
    if not _idle:
        _start_worker()


def _of_entry(
    entry: dict[str, _Call[Any]],
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    seconds: float | None,
    waiter: tuple[int, int],
) -> _Call[Any]:
    """The one call of an entry: of two threads that ask for it at a time, the first makes it."""
    work = partial(method, *args, **(kwargs or {}))
    return entry.setdefault("call", _Call(work, seconds=seconds, waiter=waiter))


def _begin(*entry: Any) -> None:
    """In the thread that a method in C was handed over to, which the threading module does not know."""
    _hand_over(_of_entry(*entry))


def _wait(*entry: Any) -> Any:
    call = _of_entry(*entry)
    try:
        return call.result()
    except BaseException:
        call.give_up()
        raise


def _bind() -> None:
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    bind_hand_over(_begin, _wait, main_thread)


def _wake_worker() -> None:
    """Wake an idle worker."""
    try:
        _wakeup.release()
    except RuntimeError as error:
        if str(error) != "release unlocked lock":
            raise  # By a signal handler. Else it was released before, and no worker has taken it yet.


def _start_worker() -> None:
    """Start a worker, or do its work here where there can be no more threads."""
    worker = threading.Thread(target=_work, args=(IDLE_SECONDS,), name="mq-uninterrupted", daemon=True)
    # Thread.start() has many steps, and interrupted between two of them it leaves a thread that never runs.
    # So another thread calls it, which one call of C starts.
    try:
        _thread.start_new_thread(_start_or_run, (worker,))
    except RuntimeError as error:
        if not str(error).startswith("can't"):
            raise  # By a signal handler.
        _work(0.0)  # There can be no more threads, or the interpreter is about to end.


def _start_or_run(worker: threading.Thread) -> None:
    try:
        worker.start()
    except RuntimeError:  # There can be no more threads.
        worker.run()


def _work(seconds: float) -> None:
    """Run what is called, until nothing was called for so many seconds."""
    me = object()
    while (call := _next(me, seconds)) is not None:
        done = call.run()
        del call  # What it returns is not kept any longer than its caller wants.
        if seconds:
            _idle.add(me)
        done.release()


def _next(worker: object, seconds: float) -> _Call[Any] | None:
    is_last = False
    while True:
        with suppress(IndexError):
            call = _calls.popleft()
            _idle.discard(worker)
            if _calls:
                _wake_worker()
            return call
        if is_last:
            return None
        if not (seconds and _wakeup.acquire(timeout=seconds)):
            # A thread that found this worker idle has called by now; one that does not starts another.
            _idle.discard(worker)
            is_last = True


def _after_fork() -> None:
    global _wakeup  # noqa: PLW0603 - one of a process
    _wakeup = _made_wakeup()  # Threads that are not there wait for the former.
    _idle.clear()
    _calls.clear()
    _bind()
    # A signal handler may have forked while the main thread waits for one.
    for call in _under_way:
        call.forked()
    _under_way.clear()


def _made_wakeup() -> threading.Lock:
    wakeup = threading.Lock()
    wakeup.acquire()
    return wakeup


_calls: deque[_Call[Any]] = deque()
_wakeup = _made_wakeup()  # Released to wake one of the workers.
_idle: set[object] = set()  # workers that wait for a call
_under_way: set[_Call[Any]] = set()
_closing: WeakSet[_Owner] = WeakSet()
_bind()
os.register_at_fork(after_in_child=_after_fork)
