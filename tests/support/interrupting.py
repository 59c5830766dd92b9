"""Calls that are cut short: at every instruction of the library, one after the other, or by alarms.

An exception of a signal handler comes where Python looks for signals: behind a call, where a function begins
or a round of a loop ends. Here it comes before any instruction at all, which is more, but for those that end
a with statement whose body is through. Python does not look there, and a lock of the threading module, which
is taken and given back by such a statement, would stay locked.
"""

from __future__ import annotations

import ctypes
import dis
import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import CodeType, FrameType
from typing import Any

# What calls __exit__ with three times None, in the Pythons that there are.
LOADS = {"LOAD_CONST", "DUP_TOP", "POP_BLOCK", "SWAP", "ROT_TWO", "NOP"}
CALLS = {"CALL", "PRECALL", "CALL_FUNCTION"}


_set_handled = ctypes.pythonapi.PyErr_SetExcInfo
_set_handled.argtypes, _set_handled.restype = [ctypes.c_void_p] * 3, None


class Interrupted(BaseException):
    """Raised as KeyboardInterrupt is, and never for another reason."""


@cache
def _exits(code: CodeType) -> frozenset[int]:
    """Where the instructions lie that end a with statement whose body is through, or do nothing: Python takes
    a try statement's first one out of the with statement that it stands in."""
    found: set[int] = set()
    run: list[int] = []
    for instruction in dis.get_instructions(code):
        name, nothing = instruction.opname, instruction.opname != "LOAD_CONST" or instruction.argval is None
        if name == "NOP":
            found.add(instruction.offset)
        if (name in LOADS and nothing) or (name in CALLS and len(run) >= 3 and instruction.arg in (2, 3)):
            run.append(instruction.offset)
            if name in CALLS:
                found.update(run)
        else:
            run = []
    return frozenset(found)


@cache
def _returns(code: CodeType) -> frozenset[int]:
    return frozenset(each.offset for each in dis.get_instructions(code) if each.opname == "RETURN_VALUE")


def interrupted_at(
    call: Callable[[], object],
    number: int,
    modules: tuple[str, ...] = ("mq.",),
    *,
    at_returns: bool = True,
) -> int | None:
    """Make a call, and interrupt it at the instruction of this number, counted from 0, of those in modules
    whose names begin so. None if it was: else how many it had. What the call raises otherwise is raised.
    at_returns: also before what hands over a result, where Python does not look."""
    count, done = 0, False

    def left_out(code: CodeType) -> frozenset[int]:
        return _exits(code) if at_returns else _exits(code) | _returns(code)

    def each(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count, done
        if event == "opcode" and not done and frame.f_lasti not in left_out(frame.f_code):
            if count == number:
                done = True
                raise Interrupted
            count += 1
        return each

    def begin(frame: FrameType, _event: str, _arg: Any) -> Any:
        if done or not frame.f_globals.get("__name__", "").startswith(modules):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return each

    handled = sys.exc_info()[1]
    with suppress(Interrupted), traced(begin):
        call()
    if handled is None and sys.exc_info()[1] is not None:
        # Before the last instruction of a handler, an interrupt leaves its exception as one that is handled
        # for ever: a consumer that is closed in a later test would not commit. Signals do not come there.
        _set_handled(None, None, None)
    gc.collect(0)  # What was cut short in a cycle goes on until then: a consumer, say.
    # Where an interrupt is swallowed, or comes in a destructor, the call goes on.
    return None if done else count


def called_at(call: Callable[[], object], number: int, handler: Callable[[], object]) -> int:
    """Make a call, and at the instruction of this number another one, as a signal handler would: in the same
    thread, within it. How many instructions came before, or were there."""
    count, done = 0, False

    def each(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count, done
        if event == "opcode" and not done:
            if count == number:
                done = True
                sys.settrace(None)
                handler()
                return None
            count += 1
        return None if done else each

    def begin(frame: FrameType, _event: str, _arg: Any) -> Any:
        if done or not frame.f_globals.get("__name__", "").startswith("mq."):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return each

    with traced(begin):
        call()
    return count


@contextmanager
def traced(begin: Callable[[FrameType, str, Any], Any]) -> Iterator[None]:
    """Trace what this thread calls. The cycle collector does not run meanwhile: the destructors of what
    earlier tests left are none of the call's business."""
    before, is_collecting = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(begin)
    try:
        yield
    finally:
        sys.settrace(before)
        if is_collecting:
            gc.enable()


@contextmanager
def swallowed() -> Iterator[None]:
    """No report of an Interrupted that comes in a destructor or in the callback of a weak reference, where
    Python reports it and goes on."""
    report = sys.unraisablehook

    def each(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, Interrupted):
            report(unraisable)

    sys.unraisablehook = each
    try:
        yield
    finally:
        sys.unraisablehook = report


@contextmanager
def alarms() -> Iterator[Callable[[float], None]]:
    """A function that has an Interrupted raised in so many seconds; 0: no more."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    def set_alarm(seconds: float) -> None:
        while True:
            try:
                signal.setitimer(signal.ITIMER_REAL, seconds)
            except Interrupted:
                if seconds == 0.0:
                    continue
                raise
            return

    with swallowed():
        before = signal.signal(signal.SIGALRM, late)
        try:
            yield set_alarm
        finally:
            set_alarm(0.0)
            signal.signal(signal.SIGALRM, before)


def interrupted_after(call: Callable[[], object], seconds: float) -> None:
    """Make a call, and interrupt it after so many seconds, if it takes so long."""
    with alarms() as set_alarm, suppress(Interrupted):
        try:
            set_alarm(seconds)
            call()
        finally:
            set_alarm(0.0)
