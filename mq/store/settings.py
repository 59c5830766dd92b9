"""What a store says of itself, for all processes and for good: its identity, and settings that all agree on.

On disk: mq/settings.json, one JSON object. Members that are unknown here are kept as they are.

    store_id        32 hex digits, random: the store's own identity
    had_messages    whether the log had messages when the store got its identity: it is older than that

The identity is made once, by the first process that opens the store for writing, and goes with a copy of the
directory. The file is replaced as a whole, under the lock of mq/settings.lock; settings.json.bak is the state
before. A member that neither has intact begins anew, which a warning in the log (mq.store) says.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mq.store.commitlog import segment_files
from mq.store.configfile import write_config
from mq.store.directory import size_of
from mq.store.locks import lock_byte, open_own_file, unlock_byte

__all__ = ["Settings", "SettingsFile"]

logger = logging.getLogger("mq.store")

LOCK_TIMEOUT = 10.0
SIZE_MAX = 1 << 20  # bytes; what is longer is none of ours
STORE_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Settings:
    """store_id is "" where a store has none yet. others: members of the file that are unknown here."""

    store_id: str = ""
    had_messages: bool = False
    others: Mapping[str, Any] = field(default_factory=dict)


def _check_store_id(value: Any) -> None:
    if not isinstance(value, str) or not STORE_ID.fullmatch(value):
        raise ValueError(f"store_id is {value!r:.100}: it has 32 hex digits")


def _check_had_messages(value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"had_messages is {value!r:.100}: it is true or false")


# What each member of the file must be: a function that raises ValueError for anything else.
CHECKS: dict[str, Callable[[Any], None]] = {"store_id": _check_store_id, "had_messages": _check_had_messages}


class SettingsFile:
    """mq/settings.json of one store."""

    def __init__(self, root: Path) -> None:
        self.path = root / "mq" / "settings.json"

    def read(self) -> Settings:
        """What the file says; what is damaged in it, as the state before had it.

        Writes nothing; the log tells of damage.
        """
        table: dict[str, Any] = {}
        for path in (self.path, self.path.with_name("settings.json.bak")):
            try:
                members, problems = _parsed(path)
            except FileNotFoundError:
                continue
            table = {**members, **table}
            if not problems:
                break
            logger.warning(
                "%s is damaged (%s): the state before it counts there, or the defaults",
                path,
                "; ".join(problems),
            )
        known = {name: table.pop(name) for name in CHECKS if name in table}
        return Settings(**known, others=table)

    def update(self, **changes: Any) -> Settings:
        """Change members, for all processes; the settings as they are then.

        Raises ValueError for a value that a member cannot have, TypeError for a member that there is not.
        """
        for name, value in changes.items():
            if name not in CHECKS:
                raise TypeError(f"there is no setting {name!r}: there are {', '.join(CHECKS)}")
            CHECKS[name](value)
        with self._changing():
            settings = replace(self.read(), **changes)
            self._save(settings)
        return settings

    def identified(self) -> Settings:
        """The settings, with an identity made now if the store has none. Called under the open gate."""
        settings = self.read()
        if settings.store_id:
            return settings
        # What was there and is damaged says nothing of that.
        is_new = self.path.exists() or not any(
            map(size_of, segment_files(self.path.parents[1] / "commitlog"))
        )
        return self.update(store_id=secrets.token_hex(16), had_messages=not is_new)

    def _save(self, settings: Settings) -> None:
        table = asdict(settings)
        table = {**table.pop("others"), **table}
        write_config(self.path, json.dumps(table, indent=1, sort_keys=True))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One process at a time changes settings; the lock is dropped by the kernel if it dies."""
        fd = open_own_file(self.path.with_name("settings.lock"))
        try:
            if not lock_byte(fd, 0, timeout=LOCK_TIMEOUT):
                raise TimeoutError(
                    f"{self.path}: another process has been changing settings for {LOCK_TIMEOUT:.0f} s"
                )
            yield
            unlock_byte(fd, 0)
        finally:
            os.close(fd)


def _parsed(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The sound members of a file, and what is wrong with it."""
    with path.open("rb") as file:
        data = file.read(SIZE_MAX + 1)
    try:
        table = json.loads(data) if len(data) <= SIZE_MAX else None
    except (ValueError, RecursionError) as error:
        return {}, [str(error)]
    if not isinstance(table, dict):
        return {}, [f"it is no JSON object of at most {SIZE_MAX:,} bytes"]
    problems = []
    for name, check in CHECKS.items():
        try:
            if name in table:
                check(table[name])
        except ValueError as error:
            problems.append(str(error))
            del table[name]
    return table, problems
