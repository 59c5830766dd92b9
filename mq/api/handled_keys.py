"""Keys that make a message one of a kind: the property that has them, and the keys that groups have handled.

The keys that a group has handled are kept in a directory: the one that the group consumes from, or any other
on this machine.
"""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["DEDUP_KEY", "Handled", "HandledKeys"]

DEDUP_KEY: Final = "DEDUP_KEY"  # the property of a message that was sent under a dedup key


class Handled(Protocol):
    """The keys that one group has handled: the last `size` of them. For all threads."""

    @property
    def size(self) -> int: ...

    def begin(self, key: str, wait: float, owner: object = None) -> bool:
        """Whether a key is fresh. Then it is the caller's, until finish or abandon, or the end of the
        process; others that begin it wait for that, up to `wait` seconds. Raises RequestTimeout.

        owner: the key is abandoned with this object, should an interrupt have come before finish."""
        ...

    def finish(self, key: str) -> None:
        """It is handled: remembered when this returns, whatever process dies; and on disk before an offset
        is that was committed later in the same directory."""
        ...

    def abandon(self, key: str) -> None:
        """It is not handled: fresh for the next one."""
        ...

    def seen(self, key: str) -> bool:
        """Whether a key was handled, and not forgotten since."""
        ...

    def clear(self) -> None:
        """Forget all keys."""
        ...


class HandledKeys(Protocol):
    """The keys that all groups have handled: Directory.handled_keys."""

    def of(self, group: str, size: int | None = None) -> Handled:
        """Those of one group; size is how many are kept (None: as it is, or 100,000). Raises ConfigMismatch
        for another size than it has, GroupInvalid, NotPermitted, StoreFull."""
        ...
