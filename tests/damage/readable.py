"""What can still be read of a damaged queue."""

from __future__ import annotations

from collections.abc import Iterator

import mq


def readable(queue: mq.Queue) -> Iterator[mq.MessageExt]:
    """The messages of a queue, those behind damaged ones too."""
    offset = queue.min_offset
    while offset < queue.max_offset:
        try:
            result = queue.read(offset)
        except mq.StoreCorrupted:
            offset += 1
            continue
        yield from result.messages
        offset = result.next_offset
