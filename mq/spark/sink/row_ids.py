"""The unique ids of rows that a cluster stores: the same for the same row, however often its task runs.

An id is a hash of the query (or txnAppId), the epoch, the task, the row's content, and the number of equal
rows before it in the task. So a repeated task gives its rows the same ids in any order; after a shuffle the
order differs each time. Rows with other content get other ids, so a deduplicating consumer never drops one
for another.
"""

from __future__ import annotations

import hashlib

__all__ = ["RowIds"]

ID_BYTES = 16  # in hexadecimal digits as long as RocketMQ's own


class RowIds:
    """The ids of the rows of one task. Keeps a counter for each distinct row."""

    def __init__(self, query: str, epoch: int, partition: int) -> None:
        self._task = hashlib.blake2b(f"{query}\0{epoch}\0{partition}\0".encode(), digest_size=ID_BYTES)
        self._seen: dict[int, int] = {}

    def of(self, topic: bytes, body: bytes, properties: bytes) -> str:
        """The id of the next row. properties: as encoded, without the id."""
        # The lengths come first, so that no two different rows hash the same bytes.
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
