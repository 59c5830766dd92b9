"""Lists of functions that a producer calls around each attempt to send."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

from mq.client.listener import check_function

__all__ = ["Hooks"]

Hook = Callable[..., object]


class Hooks(list[Hook]):
    """Takes plain functions alone: nothing of an async or a generator function would run when it is called.
    Raises TypeError for another."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def append(self, hook: Hook) -> None:
        super().append(self._checked(hook))

    def insert(self, at: SupportsIndex, hook: Hook) -> None:
        super().insert(at, self._checked(hook))

    def extend(self, hooks: Iterable[Hook]) -> None:
        super().extend([self._checked(hook) for hook in hooks])

    def __iadd__(self, hooks: Iterable[Hook]) -> Hooks:  # type: ignore[override,misc]  # as wide as list's own
        self.extend(hooks)
        return self

    def __setitem__(self, at: Any, hook: Any) -> None:
        super().__setitem__(at, [*map(self._checked, hook)] if isinstance(at, slice) else self._checked(hook))

    def _checked(self, hook: Hook) -> Hook:
        check_function(f"a hook of {self._name}", hook)
        return hook
