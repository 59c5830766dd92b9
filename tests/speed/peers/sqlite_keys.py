"""sqlite3, a table of the keys that were handled: a row each, put in if it is not there, in a transaction."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Literal

from tests.speed.peers.queue import Peer


class SqliteKeys:
    def __init__(self, directory: Path, *, synchronous: Literal["NORMAL", "FULL"], locking: str) -> None:
        self._connection = sqlite3.connect(directory / "keys.db", isolation_level=None, timeout=30)
        for setting in (f"locking_mode={locking}", "journal_mode=WAL", f"synchronous={synchronous}"):
            self._connection.execute(f"pragma {setting}")
        self._connection.execute("create table handled (key text primary key) without rowid")
        self._next = 0

    def handle_each(self, count: int) -> int:
        execute = self._connection.execute
        for number in range(self._next, self._next + count):
            assert execute("insert or ignore into handled values (?)", (f"orders/key-{number}",)).rowcount
        self._next += count
        return count

    def close(self) -> None:
        self._connection.close()


NORMAL = Peer(
    "sqlite3 insert or ignore, WAL NORMAL, one process",
    None,
    "sqlite3",
    lambda directory, _: SqliteKeys(directory, synchronous="NORMAL", locking="EXCLUSIVE"),
)
NORMAL_SHARED = Peer(
    "sqlite3 insert or ignore, WAL NORMAL, shared",
    None,
    "sqlite3",
    lambda directory, _: SqliteKeys(directory, synchronous="NORMAL", locking="NORMAL"),
)
