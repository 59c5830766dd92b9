"""A database file of this example, shared by the threads of a process, and the points at which one may
die."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["POINTS", "Database", "Point"]

BUSY_SECONDS = 60.0

Point = Callable[[str], None]

# The points of a transaction that is committed together with a message.
POINTS = ("half a message", "in the transaction", "between the commits", "both committed")


class Connection(sqlite3.Connection):
    """A connection that reports the points of a transaction."""

    passes: Point

    def __enter__(self) -> Connection:
        self.passes(POINTS[0])
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.passes(POINTS[1])
        super().__exit__(kind, error, trace)
        self.passes(POINTS[2])
        return False


class Database:
    """One connection, for one thread at a time."""

    def __init__(self, path: Path, passes: Point = lambda _: None) -> None:
        self._turn = threading.Lock()
        self._connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, check_same_thread=False, factory=Connection
        )
        self._connection.passes = self.passes = passes
        # This is safe against killed processes. For power cuts use FULL here, and flush="sync" for mq.
        self._connection.execute("PRAGMA synchronous = NORMAL")

    def create(self, schema: str) -> None:
        with self.connection() as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(schema)

    @contextmanager
    def connection(self) -> Generator[sqlite3.Connection, None, None]:
        with self._turn:
            yield self._connection

    def rows(self, query: str, *values: Any) -> list[Any]:
        with self.connection() as database:
            return database.execute(query, values).fetchall()

    def close(self) -> None:
        with self.connection() as database:
            database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
