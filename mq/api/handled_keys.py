"""Keys that make a message one of a kind: the property that has them, and the set of those that were handled.

What a client may ask of any broker about them; mq.api.broker has the calls.
"""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["DEDUP_KEY", "Handled"]

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
        """It is handled: remembered when this returns, whatever process dies, and on disk before any later
        commit of an offset is."""
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
