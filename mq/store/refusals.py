"""Why a store is of no use any more, as the error that every later call raises."""

from __future__ import annotations

from pathlib import Path

from mq.errors import BrokerClosed, ForkedBroker, MQError, StoreCorrupted

__all__ = ["refusal"]


def refusal(root: Path, state: str) -> MQError:
    """state: "moved", "forked", or any other for a store that was closed."""
    if state == "moved":
        return StoreCorrupted(
            f"{root} was moved, deleted or replaced while it was open here: what was sent is in the"
            " directory that was opened, wherever it is now; call mq.open() again where it is",
            path=str(root),
        )
    if state == "forked":
        return ForkedBroker(
            f"{root} was opened by the parent process: call mq.open() again in the forked child"
        )
    return BrokerClosed(f"the broker of {root} is closed: call mq.open() again")
