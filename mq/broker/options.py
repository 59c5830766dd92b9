"""What the options of a broker may be, said before anything is opened; and which of them the store keeps.

What duties go by is the store's, and not the process's (USUAL in mq/store/directory/settings.py). The first
process that gives such an option settles it; what decides about deletion, the first that takes part in the
duties, as usual if it says nothing. One that asks for something else later is told so in the log, and the
store's counts, unless it was opened with change_settings=True.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mq.store.directory.delay_levels import DELAY_MAX_MS
from mq.store.directory.settings import CHECKS, USUAL, Settings, check_count, check_number
from mq.store.shared.lease import LEASE_MAX

__all__ = ["QUEUE_COUNT_MAX", "check_count", "check_kept", "check_options", "settle"]

QUEUE_COUNT_MAX = 65_536
MESSAGE_SIZE_MAX = (1 << 31) - (1 << 17)
LEASE_MIN = 0.1  # seconds
OF_RETENTION = ("retention_hours", "disk_ratio_max")

retention_log, store_log = logging.getLogger("mq.retention"), logging.getLogger("mq.store")


def check_options(
    flush: str,
    default_queue_count: int,
    message_size_max: int,
    timer_max_delay_ms: int,
    leases: Mapping[str, float],
    kept: Mapping[str, Any],
) -> None:
    """leases: in seconds, by the name of the option. kept: the options that the store keeps, as far as they
    are given. Raises TypeError, ValueError."""
    if flush not in ("async", "sync"):
        raise ValueError(f"flush is {flush!r}: give 'async' or 'sync'")
    check_count("default_queue_count", default_queue_count, QUEUE_COUNT_MAX)
    check_count("message_size_max", message_size_max, MESSAGE_SIZE_MAX)
    check_count("timer_max_delay_ms", timer_max_delay_ms, DELAY_MAX_MS)
    for name, seconds in leases.items():
        check_number(name, seconds, LEASE_MIN, LEASE_MAX)
    check_kept(kept)


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
