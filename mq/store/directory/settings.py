"""What a store says of itself, for all processes and for good: its identity, and settings that all agree on.

On disk: mq/settings.json, one JSON object. Members that are unknown here are kept as they are.

    store_id        32 hex digits, random: the store's own identity
    former_ids      those of the stores that this one was copied from, the latest last
    had_messages    whether the log had messages when the store got its identity: it is older than that
    place           inode number and birth time (ns) of this very file: a copy of it lies in another place
    held            "copied" or "lost": nothing is deleted by retention before somebody confirms it; or ""
    away            the latest time, from and to (ms), in which no process had the store open; null if none
    former_away     the times before that one which are spared as well, the latest last
    alive           when the leader was last at work, in ms: at most an hour old, or a minute after a close
    ...             the options of USUAL, which duties go by; absent before a process has settled them

The identity is made by the first process that opens the store for writing, and anew by the first one that
opens a copy of the directory so: from there on the two have messages of their own. The file is replaced as a
whole, under the lock of mq/settings.lock; settings.json.bak is the state before. A member that neither has
intact begins anew, which a warning in the log (mq.store) says.

The mtime of mq/settings.lock is when the leader was last at work, to the second. Anybody may touch that file
or delete it: the earlier one of that and `alive` counts, and what is longer ago was `away`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mq.fastpath import Guard
from mq.store.directory.config_file import write_config
from mq.store.directory.delay_levels import LEVELS, parse_levels
from mq.store.directory.root import size_of
from mq.store.log.commitlog import segment_files
from mq.store.native import lib
from mq.store.os_errors import named_errors
from mq.store.shared.lock_guards import file_lock

__all__ = ["CHECKS", "COPIED", "LOST", "USUAL", "Settings", "SettingsFile", "check_count", "check_number"]

logger = logging.getLogger("mq.store")

SIZE_MAX = 1 << 20  # bytes; what is longer is none of ours
TIME_MAX = 1 << 53
# The one that older versions of mq wrote, and those that no host has.
UNFIT_HOSTS = {b"", b"\x00\x00\x00", b"\x00\x00\x01", b"\xff\xff\xff"}
STORE_PORT: int = lib.MQ_STORE_PORT
FORMER_MAX = 16
AWAY_MAX = 8
STORE_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
COPIED, LOST = "copied", "lost"

# Options that the store keeps, with what they are in a new store.
USUAL: Mapping[str, Any] = {
    "retention_hours": 72,
    "disk_ratio_max": 1.0,
    "flush_interval": 0.5,
    "message_delay_level": LEVELS,
    "timer_precision_ms": 1000,
    "transaction_timeout": 6.0,
    "transaction_check_interval": 30.0,
    "transaction_check_max": 15,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """store_id is "" where a store has none yet. moved: the file lies elsewhere than where it was written.
    options: those of USUAL that are settled. others: members of the file that are unknown here."""

    store_id: str = ""
    former_ids: tuple[str, ...] = ()
    moved: bool = False
    had_messages: bool = False
    held: str = ""
    away: tuple[int, int] | None = None
    former_away: tuple[tuple[int, int], ...] = ()
    alive: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)

    def option(self, name: str) -> Any:
        """What is settled, or usual."""
        return self.options.get(name, USUAL[name])

    @property
    def retention_ms(self) -> int:
        return int(self.option("retention_hours") * 3_600_000)

    @property
    def absences(self) -> tuple[tuple[int, int], ...]:
        """The latest times in which no process had the store open, the latest last."""
        return self.former_away if self.away is None else (*self.former_away, self.away)

    def with_away(self, away: tuple[int, int]) -> dict[str, Any]:
        """What to change when there was one more such time."""
        return {"away": away, "former_away": self.absences[1 - AWAY_MAX :]}

    @property
    def address(self) -> bytes:
        """The four bytes of the address that new records carry as their store host: one of the machine's own,
        127.0.0.0/8, made of the identity, so that the offset id of a message tells which store it is of."""
        return _address_of(self.store_id)

    @property
    def addresses(self) -> set[bytes]:
        """Those that records here may carry: also those of the stores that this one was copied from."""
        return {self.address, *map(_address_of, self.former_ids)}


def _address_of(store_id: str) -> bytes:
    own = bytes.fromhex(store_id[:6])
    return b"\x7f" + (own if own not in UNFIT_HOSTS else b"\x00\x00\x02")


def check_number(name: str, value: Any, low: float, high: float) -> None:
    """Raises TypeError, ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number, not {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value:,}: it must be from {low:,} to {high:,}")


def check_count(name: str, value: Any, high: int) -> None:
    """Raises TypeError, ValueError."""
    check_number(name, value, 1, high)
    if not isinstance(value, int):
        raise TypeError(f"{name} is a number of type int, not {type(value).__name__}")


def _check_store_id(value: Any) -> None:
    if not isinstance(value, str) or not STORE_ID.fullmatch(value):
        raise ValueError(f"store_id is {value!r:.100}: it has 32 hex digits")


def _check_former_ids(value: Any) -> None:
    if not isinstance(value, (list, tuple)) or len(value) > FORMER_MAX:
        raise ValueError(f"former_ids is {value!r:.100}: it has at most {FORMER_MAX} ids")
    for store_id in value:
        _check_store_id(store_id)


def _check_had_messages(value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"had_messages is {value!r:.100}: it is true or false")


def _check_held(value: Any) -> None:
    if value not in ("", COPIED, LOST):
        raise ValueError(f"held is {value!r:.100}: it is '', {COPIED!r} or {LOST!r}")


def _check_away(value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError(f"away is {value!r:.100}: it is two times in ms")
    for time_ms in value:
        check_number("away", time_ms, 0, TIME_MAX)
    if value[0] > value[1]:
        raise ValueError(f"away is {value!r:.100}: it ends before it begins")


def _check_former_away(value: Any) -> None:
    if not isinstance(value, (list, tuple)) or len(value) >= AWAY_MAX or None in value:
        raise ValueError(f"former_away is {value!r:.100}: it has fewer than {AWAY_MAX} pairs of times in ms")
    for away in value:
        _check_away(away)


def _check_alive(value: Any) -> None:
    if value is not None:
        check_number("alive", value, 0, TIME_MAX)


def _number(name: str, low: float, high: float) -> Callable[[Any], None]:
    return lambda value: check_number(name, value, low, high)


def _count(name: str, high: int) -> Callable[[Any], None]:
    return lambda value: check_count(name, value, high)


# What each member of the file must be: a function that raises ValueError or TypeError for anything else.
CHECKS: dict[str, Callable[[Any], object]] = {
    "store_id": _check_store_id,
    "former_ids": _check_former_ids,
    "had_messages": _check_had_messages,
    "held": _check_held,
    "away": _check_away,
    "former_away": _check_former_away,
    "alive": _check_alive,
    "retention_hours": _number("retention_hours", 0, 24 * 365 * 100),
    "disk_ratio_max": _number("disk_ratio_max", 0.0, 1.0),
    "flush_interval": _number("flush_interval", 0.001, 3600.0),
    "message_delay_level": parse_levels,
    "timer_precision_ms": _count("timer_precision_ms", 60_000),
    "transaction_timeout": _number("transaction_timeout", 0.001, 86_400.0),
    "transaction_check_interval": _number("transaction_check_interval", 0.001, 86_400.0),
    "transaction_check_max": _count("transaction_check_max", 1_000_000),
}


class SettingsFile:
    """mq/settings.json of one store."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.path = root / "mq" / "settings.json"
        self.lock_path = root / "mq" / "settings.lock"

    def read(self) -> Settings:
        """What the file says; what is damaged in it, as the state before had it.

        Writes nothing; the log tells of damage. held where the file is not the one that was written here.
        """
        settings, problems = self._load()
        for problem in problems:
            logger.warning("%s", problem)
        return settings

    def problems(self) -> list[str]:
        """What is wrong with the file, in words."""
        return self._load()[1]

    def _load(self) -> tuple[Settings, list[str]]:
        table: dict[str, Any] = {}
        held, found = LOST, []
        for path in (self.path, self.path.with_name("settings.json.bak")):
            try:
                members, problems, in_place = _parsed(path)
            except FileNotFoundError:
                continue
            table = {**members, **table}
            if not problems:
                if path is self.path:
                    held = "" if in_place else COPIED
                break
            why = "; ".join(problems)
            found.append(f"{path} is damaged ({why}): the state before it counts there, or the defaults")
        away, alive = table.pop("away", None), table.pop("alive", None)
        options = {name: table.pop(name) for name in USUAL if name in table}
        settings = Settings(
            store_id=table.pop("store_id", ""),
            former_ids=tuple(table.pop("former_ids", ())),
            moved=held == COPIED,
            had_messages=table.pop("had_messages", False),
            held=table.pop("held", "") or held,
            away=(int(away[0]), int(away[1])) if away else None,
            former_away=tuple((int(begin), int(end)) for begin, end in table.pop("former_away", ())),
            alive=None if alive is None else int(alive),
            options=options,
            others=table,
        )
        return settings, found

    def update(self, **changes: Any) -> Settings:
        """Change members, for all processes; the settings as they are then.

        Raises ValueError for a value that a member cannot have, TypeError for a member that there is not.
        """
        for name, value in changes.items():
            if name not in CHECKS:
                raise TypeError(f"there is no setting {name!r}: there are {', '.join(CHECKS)}")
            CHECKS[name](value)
        options = {name: changes.pop(name) for name in USUAL if name in changes}
        with named_errors(self.path), self._changing():
            settings = self.read()
            settings = replace(settings, **changes, options={**settings.options, **options})
            self._save(settings)
        return settings

    def opened(self, settle: Callable[[Settings], Mapping[str, Any]], *, read_only: bool = False) -> Settings:
        """The settings, with an identity made now if the store has none, and what `settle` adds to them.
        Called under the open open_lock."""
        settings = self.read()
        if read_only:
            return settings
        changes = dict(settle(settings))
        if settings.store_id and not settings.held and self.alive_ms(settings) is None:
            changes["held"] = LOST  # Nobody knows how long it was closed.
        if not settings.store_id:
            has_messages = any(map(size_of, segment_files(self._root / "commitlog")))
            changes["store_id"] = os.urandom(16).hex()
            changes["alive"] = time.time_ns() // 1_000_000
            # What was there and is damaged says nothing of that.
            changes["had_messages"] = has_messages and not self.path.exists()
            if not has_messages:
                changes["held"] = ""  # A new store: nothing is there that anybody could miss.
        elif settings.moved:
            changes["store_id"] = os.urandom(16).hex()
            changes["former_ids"] = (*settings.former_ids, settings.store_id)[-FORMER_MAX:]
        return self.update(**changes) if changes else settings

    def signature(self) -> tuple[int, int, int] | None:
        """Another one after every change; None without a file."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def alive_ms(self, settings: Settings) -> int | None:
        """When the leader was last at work, as these settings and the lock tell; None if neither does."""
        try:
            touched_ms = self.lock_path.stat().st_mtime_ns // 1_000_000
        except OSError:
            return settings.alive
        return touched_ms if settings.alive is None else min(touched_ms, settings.alive)

    def say_alive(self, now_ms: int) -> None:
        """The leader is at work."""
        with suppress(FileNotFoundError):
            os.utime(self.lock_path, ns=(now_ms * 1_000_000, now_ms * 1_000_000), follow_symlinks=False)

    def _save(self, settings: Settings) -> None:
        table = {
            **settings.others,
            **settings.options,
            "store_id": settings.store_id,
            "former_ids": settings.former_ids,
            "had_messages": settings.had_messages,
            "held": settings.held,
            "away": settings.away,
            "former_away": settings.former_away,
            "alive": settings.alive,
        }
        write_config(self.path, partial(_text, table))

    def _changing(self) -> Guard:
        """For a with statement: one process at a time changes settings. Raises StoreLocked."""
        return file_lock(self.lock_path, 0, "changing settings")


def _place_of(fd: int) -> list[int]:
    """What an open file has that no copy of it has, in whatever directory."""
    return [os.fstat(fd).st_ino, int(lib.mq_birth_ns(fd))]


def _text(table: Mapping[str, Any], fd: int) -> str:
    return json.dumps({**table, "place": _place_of(fd)}, indent=1, sort_keys=True)


def _parsed(path: Path) -> tuple[dict[str, Any], list[str], bool]:
    """The sound members of a file, what is wrong with it, and whether it lies where it was written."""
    with path.open("rb") as file:
        data = file.read(SIZE_MAX + 1)
        place = _place_of(file.fileno())
    try:
        table = json.loads(data) if len(data) <= SIZE_MAX else None
    except (ValueError, RecursionError) as error:
        return {}, [str(error)], False
    if not isinstance(table, dict):
        return {}, [f"it is no JSON object of at most {SIZE_MAX:,} bytes"], False
    problems = []
    for name, check in CHECKS.items():
        try:
            if name in table:
                check(table[name])
        except (ValueError, TypeError) as error:
            problems.append(str(error))
            del table[name]
    return table, problems, table.pop("place", None) == place
