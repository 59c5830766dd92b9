"""The unique ids of rows that a cluster stores: the same for the same row, however often its task runs.

An id is made from the query (or txnAppId), the epoch, the task, what the row holds, and how many rows of the
task held the same before it. So a task that runs again gives its rows the ids they had, in whichever order
they come: after a shuffle that is another one each time. Rows that hold something else have other ids: no row
goes by the id of another one, and is taken for it by a reader that leaves out what it knows.
"""

from __future__ import annotations

import hashlib

__all__ = ["RowIds"]

ID_BYTES = 16  # in hexadecimal digits as long as RocketMQ's own


class RowIds:
    """Those of one task. Keeps a number for each different row."""

    def __init__(self, query: str, epoch: int, partition: int) -> None:
        self._task = hashlib.blake2b(f"{query}\0{epoch}\0{partition}\0".encode(), digest_size=ID_BYTES)
        self._seen: dict[int, int] = {}

    def of(self, topic: bytes, body: bytes, properties: bytes) -> str:
        """The id of the next row. properties: as encoded, without the id."""
        # Lengths first, lest what ends one field could begin the next.
        content = self._task.copy()
        content.update(b"%d %d " % (len(topic), len(body)))
        content.update(topic)
        content.update(body)
        content.update(properties)
        found = content.digest()
        short = int.from_bytes(found[:8], "big")
        before = self._seen.get(short, 0)
        self._seen[short] = before + 1
        if before:
            found = hashlib.blake2b(b"%d " % before + found, digest_size=ID_BYTES).digest()
        return found.hex().upper()
