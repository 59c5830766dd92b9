"""Calls that an interrupt cannot cut short, and the threads that do them."""

from __future__ import annotations

import _thread
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import pytest

from mq.errors import ForkedBroker
from mq.uninterrupted import closed_when_dropped, handed_over, uninterrupted
from tests.support.interrupting import Interrupted, alarms, interrupted_at
from tests.support.processes.no_threads import without_threads

PATIENCE = 60.0


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return found


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mq-uninterrupted"]


@contextmanager
def busy() -> Iterator[threading.Event]:
    """One call is running without a waiter. Setting the event ends it."""
    end = threading.Event()

    def work() -> None:
        set_alarm(0.05)  # Once it has begun: the signal comes to the main thread, which waits for it.
        assert end.wait(PATIENCE)

    with alarms() as set_alarm:
        with suppress(Interrupted):
            uninterrupted(work)
        set_alarm(0.0)
    try:
        yield end
    finally:
        end.set()


def test_calls_one_after_the_other_are_done_by_the_same_thread() -> None:
    threads = [uninterrupted(threading.current_thread) for _ in range(200)]
    assert threading.main_thread() not in threads
    assert len(set(threads)) < 100  # One, unless this machine stands still between two of them.
    assert until(lambda: not workers())  # It ends when there is nothing to do.
    assert uninterrupted(lambda: "again") == "again"


def test_a_call_of_another_thread_or_within_a_call_is_done_there() -> None:
    def work() -> bool:
        return uninterrupted(threading.current_thread) is threading.current_thread()

    assert uninterrupted(work)


def test_a_call_without_a_waiter_holds_up_no_other() -> None:
    with busy() as end:
        assert uninterrupted(lambda: "at once") == "at once"
        assert not end.is_set()


def test_an_interrupt_at_any_instruction_leaves_nothing_half_done() -> None:
    """The work is not begun, or undone, or was returned. In one of a few rounds: where a thread comes late, a
    call has another number of instructions than the one before, and another one is its last."""
    assert any(undone_where_not_returned() for _ in range(3))


def undone_where_not_returned() -> bool:
    made: list[int] = []
    undone: list[int] = []

    def interrupted(number: int) -> int | None:
        def work() -> int:
            made.append(number)
            return number

        return interrupted_at(lambda: uninterrupted(work, undone.append), number)

    size = next(number for number in range(1000) if interrupted(number) is not None)
    assert until(lambda: not workers())
    assert size > 50
    *before, last = sorted(made)
    assert last == size
    assert len(set(made)) == len(made) > 20
    # At the last instruction of all it is as good as returned.
    return sorted(undone) in (before, before[:-1])


def test_an_interrupt_of_the_wait_lets_the_work_be_done_and_undone() -> None:
    end, undone = threading.Event(), threading.Event()

    def work() -> None:
        set_alarm(0.05)
        end.wait(PATIENCE)

    with alarms() as set_alarm:
        with suppress(Interrupted):
            uninterrupted(work, lambda _: undone.set())
        set_alarm(0.0)
    assert not undone.is_set()
    end.set()
    assert undone.wait(PATIENCE)


def test_what_it_returns_is_its_callers_alone() -> None:
    class Thing:
        pass

    for _ in range(50):
        thing = weakref.ref(uninterrupted(Thing))
        assert thing() is None


def test_what_it_raises_is_raised_to_the_caller() -> None:
    def work() -> NoReturn:
        raise ValueError("of the work")

    for _ in range(2):
        with pytest.raises(ValueError, match="of the work"):
            uninterrupted(work)


@pytest.mark.parametrize("which", [1, 2])
def test_without_another_thread_the_main_thread_does_it(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is the one that starts the other."""
    assert until(lambda: not workers())

    def refused(*_arguments: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        if which == 1:
            patched.setattr(_thread, "start_new_thread", refused)
        else:
            patched.setattr(threading.Thread, "start", refused)
        thread = uninterrupted(threading.current_thread)
        assert thread.name != "mq-uninterrupted"
        assert (thread is threading.main_thread()) == (which == 1)


def child(work: Callable[[], bool]) -> int:
    pid = os.fork()
    if not pid:
        code = 9
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return pid


def ends_well(pid: int) -> bool:
    found: list[int] = []

    def ended() -> bool:
        pid_seen, status = os.waitpid(pid, os.WNOHANG)
        if pid_seen:
            found.append(os.waitstatus_to_exitcode(status))
        return bool(found)

    if not until(ended):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return found == [0]


pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def test_a_forked_child_has_a_thread_of_its_own() -> None:
    with busy():
        uninterrupted(lambda: None)  # One is idle now, another one busy.
        parents = [threading.main_thread(), *workers()]

        def is_own() -> bool:
            # How many there are in the child hangs on how long it stands still: an idle one ends soon.
            return threading.current_thread() in workers() and threading.current_thread() not in parents

        assert ends_well(child(lambda: uninterrupted(is_own)))
    assert uninterrupted(lambda: "parent") == "parent"


def test_a_child_that_a_signal_handler_forks_waits_for_nothing_of_the_parent() -> None:
    pids: list[int] = []

    def forks(_number: int, _frame: FrameType | None) -> None:
        pids.append(os.fork())

    def work() -> bool:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return until(lambda: bool(pids))

    own, before = os.getpid(), signal.signal(signal.SIGALRM, forks)
    try:
        result = uninterrupted(work)
    except ForkedBroker:
        os._exit(0 if pids == [0] and uninterrupted(lambda: 5) == 5 else 1)
    finally:
        if os.getpid() != own:
            os._exit(1)
        signal.signal(signal.SIGALRM, before)
    assert result is True
    assert ends_well(pids[0])


@pytest.mark.parametrize(
    "last",
    [
        pytest.param("", id="idle"),
        pytest.param("cut_short(lambda: time.sleep(1000))", id="busy"),
        pytest.param("atexit.register(print, uninterrupted(lambda: 'at exit'))", id="at-exit"),
        pytest.param("sys.modules['late'] = late = Late(); late.circle = late", id="while-it-ends"),
    ],
)
def test_the_interpreter_ends_whatever_the_threads_do(last: str) -> None:
    code = f"""
import atexit, signal, sys, time
from mq.uninterrupted import closed_when_dropped, handed_over, uninterrupted

class Late:
    def __del__(self):
        print("while it ends", uninterrupted(lambda: sys.is_finalizing()))

def cut_short(work):
    def late(number, frame):
        raise TimeoutError
    def begun():
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        work()
    signal.signal(signal.SIGALRM, late)
    try:
        uninterrupted(begun)
    except TimeoutError:
        pass

print(uninterrupted(lambda: "first"))
{last}
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    further = {"at": "at exit\n", "sy": "while it ends True\n"}.get(last[:2], "")
    assert run.stdout == "first\n" + further


class Handed:
    """What has a method that is handed over."""

    def __init__(self) -> None:
        self.done: list[tuple[object, ...]] = []

    @handed_over
    def close(self, *args: object, **options: object) -> threading.Thread:
        """Close it."""
        self.done.append((*args, *options.items()))
        return threading.current_thread()


def test_a_method_that_is_handed_over_is_begun_wherever_an_interrupt_comes() -> None:
    handed = Handed()
    size = next(
        number for number in range(1000) if interrupted_at(partial(handed.close, number), number) is not None
    )
    assert size > 20
    assert until(lambda: sorted(handed.done) == [(number,) for number in range(size + 1)])
    assert until(lambda: not workers())


def test_a_method_that_is_handed_over_is_a_method_as_any() -> None:
    handed = Handed()
    assert handed.close(1, level=2) is not threading.main_thread()
    assert handed.done == [(1, ("level", 2))]
    assert uninterrupted(lambda: handed.close() is threading.current_thread())
    assert handed.close == handed.close
    assert (Handed.close.__name__, Handed.close.__doc__) == ("close", "Close it.")
    assert str(inspect.signature(Handed.close)).startswith("(self, *args")
    assert str(inspect.signature(handed.close)).startswith("(*args")
    with pytest.raises(TypeError, match="missing 1 required positional"):
        Handed.close()  # type: ignore[call-arg]  # what is to be refused


def test_a_method_that_is_handed_over_where_there_is_no_other_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_arguments: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        assert Handed().close() is not threading.main_thread()
    code = """
import threading
from tests.test_uninterrupted import Handed

assert Handed().close() is threading.current_thread()
"""
    run = subprocess.run(without_threads(sys.executable, "-c", code), timeout=PATIENCE, check=False)
    assert run.returncode == 0


class Opened:
    """Something that is open, unless `is_open` says otherwise."""

    def __init__(self, closed: list[str], *, is_open: bool = True, pid: int | None = None) -> None:
        self._closed = closed
        self._is_open = is_open
        self._pid = os.getpid() if pid is None else pid

    @closed_when_dropped
    def __del__(self) -> Callable[[], object] | None:
        return partial(self._closed.append, "closed") if self._is_open else None


def test_what_is_dropped_while_open_is_closed_with_a_warning() -> None:
    closed: list[str] = []
    with pytest.warns(ResourceWarning, match="Opened object .* was dropped and not closed"):
        Opened(closed)
    assert until(lambda: closed == ["closed"])


@pytest.mark.parametrize("options", [{"is_open": False}, {"pid": 1}])
def test_what_is_closed_or_of_another_process_is_dropped_in_silence(options: dict[str, Any]) -> None:
    closed: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Opened(closed, **options)
    assert closed == []
