"""What the options of a consumer that asks for messages may be."""

from __future__ import annotations

from typing import Any, Final

from mq.client.engine.agreement import check_consume_from
from mq.client.engine.rebalance import AnyStrategy, strategy_of
from mq.client.listener import check_function
from mq.names import check_group

__all__ = ["check_consumer", "check_count"]

PULL_COUNT_MAX: Final = 65_536


def check_count(option: str, value: int) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{option} is an int, not {type(value).__name__}")
    if not 1 <= value <= PULL_COUNT_MAX:
        raise ValueError(f"{option} is {value}, must be 1 to {PULL_COUNT_MAX:,}")


def check_consumer(
    group: str,
    consume_from: str | int,
    pull_count: int,
    auto_commit_interval: float,
    strategy: AnyStrategy,
    listener: Any,
) -> None:
    """Raises TypeError, ValueError, GroupInvalid."""
    check_group(group)
    check_consume_from(consume_from)
    check_count("pull_count", pull_count)
    if auto_commit_interval < 0:
        raise ValueError(f"auto_commit_interval is {auto_commit_interval} s, must be 0 or more")
    strategy_of(strategy)
    if listener is not None:
        check_function("assignment_listener", listener)
