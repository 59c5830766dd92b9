"""sqlite3, a table as queue, in WAL mode; every send and every read is a transaction.

`exclusive` locking is the fastest setting and shuts all other processes out; without it the table is shared.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Literal

from tests.speed.peers.queue import Peer


class SqliteQueue:
    def __init__(
        self,
        directory: Path,
        body: bytes,
        *,
        synchronous: Literal["NORMAL", "FULL"],
        locking: Literal["NORMAL", "EXCLUSIVE"],
    ) -> None:
        self._body = body
        self._connection = sqlite3.connect(directory / "queue.db", isolation_level=None, timeout=30)
        for setting in (f"locking_mode={locking}", "journal_mode=WAL", f"synchronous={synchronous}"):
            self._connection.execute(f"pragma {setting}")
        self._connection.execute("create table queue (id integer primary key, body blob)")

    def send_each(self, count: int) -> int:
        execute, row = self._connection.execute, (self._body,)
        for _ in range(count):
            execute("insert into queue (body) values (?)", row)
        return count

    def send_batch(self, count: int) -> int:
        self._connection.execute("begin immediate")
        self._connection.executemany("insert into queue (body) values (?)", [(self._body,)] * count)
        self._connection.execute("commit")
        return count

    def read_each(self, count: int) -> int:
        execute = self._connection.execute
        for done in range(count):
            taken = execute(
                "delete from queue where id = (select min(id) from queue) returning body"
            ).fetchall()
            if not taken:
                return done
        return count

    def read_batch(self, count: int) -> int:
        oldest = "select id from queue order by id limit ?"
        taken = self._connection.execute(f"delete from queue where id in ({oldest}) returning body", (count,))
        return len(taken.fetchall())

    def close(self) -> None:
        self._connection.close()


NORMAL = Peer(
    "sqlite3 WAL NORMAL, one process",
    None,
    "sqlite3",
    lambda directory, body: SqliteQueue(directory, body, synchronous="NORMAL", locking="EXCLUSIVE"),
)
NORMAL_SHARED = Peer(
    "sqlite3 WAL NORMAL, shared",
    None,
    "sqlite3",
    lambda directory, body: SqliteQueue(directory, body, synchronous="NORMAL", locking="NORMAL"),
)
FULL = Peer(
    "sqlite3 WAL FULL, one process",
    None,
    "sqlite3",
    lambda directory, body: SqliteQueue(directory, body, synchronous="FULL", locking="EXCLUSIVE"),
)
