"""The options of consumers, as they are once they were checked: the one place that says what they may be."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mq.api.beginning import first_or_last
from mq.api.group import Model
from mq.client.engine.claimed_queues import AssignmentListener
from mq.client.engine.flow_control import Limits
from mq.client.engine.queue_assignment import AnyStrategy, strategy_of
from mq.client.listener import check_function
from mq.errors import GroupInvalid
from mq.names import check_group

__all__ = ["PullOptions", "PushOptions", "begin_from", "check_int"]

COUNT_MAX: Final = 65_536  # messages that are asked for at a time
INT_MAX: Final = (1 << 31) - 1
TIMES_MAX: Final = {False: 16, True: INT_MAX}  # what -1 stands for, by whether it is in order
RESERVED_GROUPS: Final = {"DEFAULT_CONSUMER", "DEFAULT_PRODUCER"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """Of a consumer that asks for messages: see PullConsumer."""

    group: str
    auto_commit: bool
    consume_from: str | int
    pull_count: int
    auto_commit_interval: float
    allocate: AnyStrategy
    assignment_listener: AssignmentListener | None
    client_id: str | None

    def __post_init__(self) -> None:
        _check_shared(self)
        check_int("pull_count", self.pull_count, 1, COUNT_MAX)
        check_number("auto_commit_interval", self.auto_commit_interval)
        if not self.auto_commit_interval >= 0:
            raise ValueError(f"auto_commit_interval is {self.auto_commit_interval} s, must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """Of a consumer that calls listeners: see PushConsumer."""

    group: str
    model: Model
    consume_from: str | int
    ordered: bool
    threads: int
    pull_count: int
    max_reconsume_times: int
    consume_timeout: float
    allocate: AnyStrategy
    client_id: str | None
    suspend_ms: int
    pull_threshold_for_queue: int
    pull_threshold_for_topic: int | None
    pull_threshold_size_for_queue: int
    pull_threshold_size_for_topic: int | None
    consume_message_span: int
    assignment_listener: AssignmentListener | None
    offsets_dir: str | os.PathLike[str] | None

    def __post_init__(self) -> None:
        if self.model not in ("clustering", "broadcasting"):
            raise ValueError(f"model is {self.model!r}: give 'clustering' or 'broadcasting'")
        _check_shared(self)
        if self.group in RESERVED_GROUPS:
            raise GroupInvalid(f"{self.group} is a name that RocketMQ keeps for itself: choose another")
        check_int("threads", self.threads, 1, 1000)
        check_int("pull_count", self.pull_count, 1, 1024)
        check_int("max_reconsume_times", self.max_reconsume_times, -1, INT_MAX)
        check_int("suspend_ms", self.suspend_ms, 10, 30_000)
        check_int("pull_threshold_for_queue", self.pull_threshold_for_queue, 1, 65_535)
        if self.pull_threshold_for_topic is not None:
            check_int("pull_threshold_for_topic", self.pull_threshold_for_topic, 1, 6_553_500)
        check_int("pull_threshold_size_for_queue", self.pull_threshold_size_for_queue, 1, 1 << 40)
        if self.pull_threshold_size_for_topic is not None:
            check_int("pull_threshold_size_for_topic", self.pull_threshold_size_for_topic, 1, 1 << 40)
        check_int("consume_message_span", self.consume_message_span, 1, 65_535)
        check_number("consume_timeout", self.consume_timeout)
        if not self.consume_timeout > 0:
            raise ValueError(f"consume_timeout is {self.consume_timeout} s: it must be more than 0")

    @property
    def is_broadcasting(self) -> bool:
        return self.model == "broadcasting"

    @property
    def times_max(self) -> int:
        """How often a message comes again at most."""
        return TIMES_MAX[self.ordered] if self.max_reconsume_times == -1 else self.max_reconsume_times

    @property
    def offsets_path(self) -> Path | None:
        return None if self.offsets_dir is None else Path(self.offsets_dir).expanduser().absolute()

    def limits(self, queue_count: int) -> Limits:
        """The limits of each queue, where the consumer has so many of them."""
        count, size = self.pull_threshold_for_queue, self.pull_threshold_size_for_queue
        if self.pull_threshold_for_topic is not None:
            count = max(1, self.pull_threshold_for_topic // max(1, queue_count))
        if self.pull_threshold_size_for_topic is not None:
            size = max(1, self.pull_threshold_size_for_topic // max(1, queue_count))
        return Limits(count, size, None if self.ordered else self.consume_message_span)


def check_int(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a number of type int, not {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value:,}: it must be from {low:,} to {high:,}")


def check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number, not {type(value).__name__}")


def check_count(name: str, value: int) -> None:
    """Of messages, or calls, at a time."""
    check_int(name, value, 1, COUNT_MAX)


def _check_shared(options: PullOptions | PushOptions) -> None:
    check_group(options.group)
    strategy_of(options.allocate)
    if options.assignment_listener is not None:
        check_function("assignment_listener", options.assignment_listener)
    if options.client_id is not None:
        _check_client_id(options.client_id)


def begin_from(consume_from: Any) -> str | int:
    """The word `first` or `last`, or a time in ms, for what a user gave."""
    if isinstance(consume_from, bool) or not isinstance(consume_from, (int, str)):
        raise TypeError(
            f"consume_from is 'first', 'last', or a time in ms, not a {type(consume_from).__name__}"
        )
    if isinstance(consume_from, str) or consume_from < 0:
        return first_or_last("consume_from", consume_from)
    return consume_from


def _check_client_id(client_id: Any) -> None:
    if not isinstance(client_id, str):
        raise TypeError(f"client_id is a str, not {type(client_id).__name__}")
    if (
        not 1 <= len(client_id) <= 200
        or not client_id.isprintable()
        or "/" in client_id
        or client_id[0] == "."
    ):
        raise ValueError(
            f"client_id {client_id!r} must have 1 to 200 printable characters, none of them /, and not"
            " begin with a dot"
        )
