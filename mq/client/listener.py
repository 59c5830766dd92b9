"""What may be a listener, and what it means that one returned. Pure.

An async function or a generator function that is merely called does not run: it returns an object that
somebody must drive. Where nobody does, it is refused when it is given. What hides one, such as a decorator,
is found out by what it returns: that is a failure, never a success.
"""

from __future__ import annotations

import functools
import inspect
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType, MethodType
from typing import Any, Final

from mq.client.retry import Retry

__all__ = ["check_function", "check_listener", "close_unrun", "name_of", "raise_returned"]

DEPTH_MAX: Final = 16  # of partials and objects around a function


def name_of(function: Any) -> str:
    """What the log calls a function; of a partial the function, of any other callable object its class."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


def check_listener(listener: Any, *, awaits: bool) -> None:
    """Raises TypeError for what cannot be a listener. `awaits`: of asyncio, where it may be async."""
    if not callable(listener):
        raise TypeError(f"a listener is called with messages: {listener!r} cannot be")
    kind, name = _kind_of(listener), name_of(listener)
    if kind == "an async function" and not awaits:
        raise TypeError(
            f"the listener {name} is an async function, which the threads of a PushConsumer cannot run: give"
            " it to run() of an mq.aio.Consumer, or give a plain function here"
        )
    if kind and kind != "an async function":
        way_out = "a plain function or an async one" if awaits else "a plain function"
        raise TypeError(
            f"the listener {name} is {kind}, of which nothing runs when it is called: give {way_out}, with"
            " batch_size if it is to have lists of messages"
        )


def check_function(what: str, function: Any, *, may_yield: bool = False) -> None:
    """Raises TypeError for a callback, such as `check`, that is none, or that does not run when called."""
    if not callable(function):
        raise TypeError(f"{what} is a function, not {type(function).__name__}")
    kind = _kind_of(function)
    if kind and not (may_yield and kind == "a generator function"):
        raise TypeError(
            f"{what} is {kind}, {name_of(function)}, of which nothing runs when it is called: give a plain"
            " function"
        )


def raise_returned(result: object, name: str) -> None:
    """For what a listener returned: raises a Retry, and TypeError for what says that it has not run."""
    if isinstance(result, Retry):
        raise result.with_traceback(None)  # One that is returned often keeps no frames.
    if isinstance(result, type) and issubclass(result, Retry):
        raise result
    if close_unrun(result):
        raise TypeError(
            f"the listener {name} returned {_article(type(result).__name__)}, which nobody runs: it has not"
            " consumed its messages. Give a plain function, or give an async one to run() of an"
            " mq.aio.Consumer"
        )


def close_unrun(result: object) -> bool:
    """Whether this is a coroutine, a generator, another awaitable, or a map, filter or zip, which calls its
    function once it is iterated over. Closes it, since nobody will run it."""
    if isinstance(result, (CoroutineType, GeneratorType)):
        result.close()
        return True
    return isinstance(result, (AsyncGeneratorType, filter, map, zip)) or hasattr(type(result), "__await__")


def _kind_of(function: Any) -> str:
    """What is special about a function; nothing about a plain one."""
    for _ in range(DEPTH_MAX):
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, (MethodType, staticmethod, classmethod)):
            function = function.__func__
        else:
            break
    if not isinstance(function, (FunctionType, type)):
        # Of an object that can be called, its class says what happens then.
        call = inspect.getattr_static(type(function), "__call__", None)
        function = getattr(call, "__func__", call) if not inspect.iscoroutinefunction(function) else function
    if inspect.iscoroutinefunction(function):
        return "an async function"
    if inspect.isasyncgenfunction(function):
        return "an async generator function"
    return "a generator function" if inspect.isgeneratorfunction(function) else ""


def _article(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiouAEIOU' else 'a'} {noun}"
