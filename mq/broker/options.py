"""What the options of a broker may be, said before anything is opened; and which of them the store keeps.

What duties go by is the store's, and not the process's (USUAL in mq/store/directory/settings.py). The first
process that gives such an option settles it; what decides about deletion, the first that takes part in the
duties, as usual if it says nothing. One that asks for something else later is told so in the log, and the
store's counts, unless it was opened with change_settings=True.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from mq.broker.groups.takeover import LEASE_SECONDS
from mq.store.directory.delay_levels import DELAY_MAX_MS
from mq.store.directory.settings import CHECKS, USUAL, Settings, check_count, check_number
from mq.store.log.replication import REPLICAS_MAX
from mq.store.shared.leader_lock import LEASE
from mq.store.shared.lease import LEASE_MAX

__all__ = [
    "QUEUE_COUNT_MAX",
    "Options",
    "check_count",
    "check_kept",
    "known_options",
    "options_signature",
    "settle",
]

QUEUE_COUNT_MAX = 65_536
MESSAGE_SIZE_MAX = (1 << 31) - (1 << 17)
LEASE_MIN = 0.1  # seconds
RESERVE_SIZE, RESERVE_SIZE_MAX = 1 << 30, 1 << 40  # bytes
OF_RETENTION = ("retention_hours", "disk_ratio_max")

retention_log, store_log = logging.getLogger("mq.retention"), logging.getLogger("mq.store")


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What mq.open takes for a directory, and documents. Raises TypeError, ValueError.

    None is what the store has, or has from now on as usual.
    """

    flush: Literal["async", "sync"] = "async"
    replicas: int = 0
    flush_interval: float | None = None
    commitlog_file_size: int | None = None
    queue_file_units: int | None = None
    index_slot_count: int | None = None
    index_unit_count: int | None = None
    retention_hours: float | None = None
    disk_ratio_max: float | None = None
    auto_create_topics: bool = True
    default_queue_count: int = 4
    message_size_max: int = 4 << 20
    reserve_size: int = RESERVE_SIZE
    message_delay_level: str | None = None
    timer_precision_ms: int | None = None
    timer_max_delay_ms: int = 259_200_000
    transaction_timeout: float | None = None
    transaction_check_interval: float | None = None
    transaction_check_max: int | None = None
    duties_lease: float = LEASE
    queue_lease: float = LEASE_SECONDS
    change_settings: bool = False
    enable_consume_queue_ext: bool = False
    consume_queue_ext_file_size: int | None = None
    read_only: bool = False
    create: bool = True
    duties: bool = True
    progress: Callable[[str, int, int], None] | None = None

    def __post_init__(self) -> None:
        if self.flush not in ("async", "sync"):
            raise ValueError(f"flush is {self.flush!r}: give 'async' or 'sync'")
        if not isinstance(self.replicas, int) or isinstance(self.replicas, bool):
            raise TypeError(f"replicas is a number of type int, not {type(self.replicas).__name__}")
        if not 0 <= self.replicas <= REPLICAS_MAX:
            raise ValueError(f"replicas is {self.replicas}: from 0 to {REPLICAS_MAX} can be waited for")
        if self.replicas and self.flush != "sync":
            raise ValueError(
                f"replicas is {self.replicas}, and flush is {self.flush!r}: a send waits for replicas once"
                " the message is on disk here, so give flush='sync' as well"
            )
        check_count("default_queue_count", self.default_queue_count, QUEUE_COUNT_MAX)
        check_count("message_size_max", self.message_size_max, MESSAGE_SIZE_MAX)
        check_number("reserve_size", self.reserve_size, 0, RESERVE_SIZE_MAX)
        check_count("timer_max_delay_ms", self.timer_max_delay_ms, DELAY_MAX_MS)
        check_number("duties_lease", self.duties_lease, LEASE_MIN, LEASE_MAX)
        check_number("queue_lease", self.queue_lease, LEASE_MIN, LEASE_MAX)
        check_kept(self.kept)

    @property
    def takes_part(self) -> bool:
        """Whether the process does what one does for all, when it is its turn: see leader.py."""
        return self.duties and not self.read_only

    @property
    def kept(self) -> dict[str, Any]:
        """Those that the store keeps, as far as they are given."""
        return {name: value for name in USUAL if (value := getattr(self, name)) is not None}


def known_options(given: Mapping[str, Any], kind: type, what: str) -> Mapping[str, Any]:
    """The same options, of which `kind` has all. Raises TypeError for one that it has not.

    kind is a dataclass; what says of what the options are.
    """
    known = [each.name for each in fields(kind)]
    for name in given:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise TypeError(f"{name!r} is no option of {what}: {hint}")
    return given


def options_signature(first: str, *kinds: type, returns: str, bound: bool = False) -> inspect.Signature:
    """As help() shows a function of the parameter `first`, the path or the address, and the options of these
    dataclasses. bound: that it is a method, which help() shows without its `self`."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("self", kind)] if bound else []
    parameters.append(inspect.Parameter(first, kind, annotation="str | os.PathLike[str]"))
    for each in kinds:
        parameters.extend(inspect.signature(each).parameters.values())
    return inspect.Signature(parameters, return_annotation=returns)


def check_kept(kept: Mapping[str, Any]) -> None:
    """Options that the store keeps. Raises TypeError, also for another name; ValueError."""
    for name, value in kept.items():
        if name not in USUAL:
            raise TypeError(f"{name} is no option that a store keeps: those are {', '.join(USUAL)}")
        CHECKS[name](value)


def settle(
    given: Mapping[str, Any], path: str, settings: Settings, *, takes_part: bool, change: bool
) -> dict[str, Any]:
    """The changes to make in the settings of the store at `path` when it is opened with these options.

    takes_part: in the duties. change: what is given counts from now on, whatever the store had.
    """
    changes = {}
    for name, usual in USUAL.items():
        asked, kept = given.get(name), settings.options.get(name)
        if kept is None:
            if asked is not None:
                changes[name] = asked
            elif takes_part and name in OF_RETENTION:
                changes[name] = usual
        elif asked is not None and asked != kept:
            if change:
                changes[name] = asked
            else:
                _tell(path, name, asked, kept)
    return changes


def _tell(path: str, name: str, asked: Any, kept: Any) -> None:
    (retention_log if name in OF_RETENTION else store_log).warning(
        "%s: %s=%s was asked for, but the store keeps %s=%s, and that counts for all processes."
        " Leave the option out, or change it on purpose: mq DIR settings %s=%s, or"
        " mq.open(..., change_settings=True)",
        path,
        name,
        asked,
        name,
        kept,
        name,
        asked,
    )
