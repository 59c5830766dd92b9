"""Objects that others keep, to be listed while other threads add some: of a WeakSet that is an error."""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import WeakValueDictionary

__all__ = ["WeakList"]

T = TypeVar("T")


class WeakList(Generic[T]):
    def __init__(self) -> None:
        self._refs: WeakValueDictionary[int, T] = WeakValueDictionary()

    def add(self, item: T) -> None:
        self._refs[id(item)] = item

    def items(self) -> list[T]:
        """Those that are alive, in the order in which they were added."""
        return [item for ref in self._refs.valuerefs() if (item := ref()) is not None]
