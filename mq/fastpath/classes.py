"""What lets help(), subclasses, copy and pickle find a class whose __init__ is in C like any other."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import inspect

__all__ = ["Signature", "added_state"]


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
