"""What lets help(), subclasses, copy and pickle find a class, or a method, that is in C like any other."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mq.fastpath._objects import fast_method

if TYPE_CHECKING:
    import inspect

__all__ = ["Signature", "added_state", "in_c"]

Function = TypeVar("Function", bound=Callable[..., Any])


def in_c(name: str) -> Callable[[Function], Function]:
    """Have the method of this name in C (see objects.c) do the usual case of the one that is decorated, whose
    signature and documentation it has; what the one in C is not for is left to the one in Python."""

    def in_its_place(function: Function) -> Function:
        return cast("Function", _InC(name, function))

    return in_its_place


class _InC:
    """Takes the place of a method until its class is made."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function

    def __set_name__(self, owner: type, attribute: str) -> None:
        function = self._function
        text = f"{attribute}({_parameters(function)})\n--\n\n{function.__doc__ or ''}"
        setattr(owner, attribute, fast_method(self._name, owner, text, function))


def _parameters(function: Any) -> str:
    """As __text_signature__ has them; inspect, which knows more, costs much to import."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    given = dict(zip(reversed(names), reversed(defaults), strict=False))
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    parameters = ["$self", *names[1:], *(["*"] if keywords else []), *keywords]
    given |= function.__kwdefaults__ or {}
    return ", ".join(f"{name}={given[name]!r}" if name in given else name for name in parameters)


class Signature:
    """`__signature__` of a class, told by a function that has the arguments of its __init__.

    A subclass with arguments of its own tells them itself, as every class does.
    """

    def __init__(self, init: Callable[..., None]) -> None:
        self._told = init

    def __set_name__(self, owner: type, name: str) -> None:
        self._init, self._new = owner.__init__, owner.__new__  # type: ignore[misc]  # compared, never called

    def __get__(self, value: object, owner: type) -> inspect.Signature:
        if owner.__init__ is not self._init or owner.__new__ is not self._new:  # type: ignore[misc]  # as above
            raise AttributeError("__signature__")
        from inspect import signature  # which costs more than the rest of this package

        told = signature(self._told)
        return told.replace(parameters=list(told.parameters.values())[1:])


def added_state(value: Any) -> Any:
    """What a subclass in Python added to a value, in the form that __reduce__ hands on; None for nothing."""
    own = getattr(value, "__getstate__", None)
    if own is not None:  # from Python 3.11 on every object has one
        return own()
    slots = {name: getattr(value, name) for name in _slot_names(type(value)) if hasattr(value, name)}
    attributes = getattr(value, "__dict__", None) or None
    return (attributes, slots) if slots else attributes


# What pickle itself asks; the types in C are no part of it, since they declare no __slots__.
_slot_names: Callable[[type], list[str]] = copyreg._slotnames  # type: ignore[attr-defined]  # in no stub
