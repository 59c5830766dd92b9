"""What a case asks of a queue, ours or a peer's; each returns how many messages it did."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar


class Sender(Protocol):
    def send_each(self, count: int) -> int:
        """Send `count` messages, one call each."""

    def close(self) -> None: ...


class BatchSender(Protocol):
    def send_batch(self, count: int) -> int:
        """Send `count` messages in one call or one transaction."""

    def close(self) -> None: ...


class Reader(Sender, Protocol):
    def read_each(self, count: int) -> int:
        """Take up to `count` messages, one call each; what was taken does not come again, kill -9 or not."""


class BatchReader(BatchSender, Protocol):
    def read_batch(self, count: int) -> int:
        """Take up to `count` messages in one call or one transaction."""


QueueT_co = TypeVar("QueueT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Peer(Generic[QueueT_co]):
    """How a peer is called, what must be installed for it, and how it is opened: open(directory, body)."""

    title: str
    distribution: str | None
    module: str
    open: Callable[[Path, bytes], QueueT_co]

    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    def version(self) -> str:
        if self.distribution is not None:
            return importlib.metadata.version(self.distribution)
        return sqlite3.sqlite_version if self.module == "sqlite3" else ""

    def __str__(self) -> str:
        return self.title
