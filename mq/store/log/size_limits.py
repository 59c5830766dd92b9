"""What of a message has no room in the log: what its sender is told.

A property string has a size of 16 bits with a sign, and no record or batch crosses files of the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from mq.errors import MessageTooLarge
from mq.properties import CRC_PROPERTY_SIZE, PROPERTIES_SIZE_MAX, UNIQUE_PROPERTY_SIZE

__all__ = ["ROOM_MAX", "batch_too_large", "bulk_too_large", "check_size", "message_too_large"]

ROOM_MAX = 1024  # what a record has besides body and properties, with a margin
# What it has at the least, and its topic.
OVERHEAD = 88 + 1 + 2 + UNIQUE_PROPERTY_SIZE + CRC_PROPERTY_SIZE
LARGER_FILES = "or make another directory with a larger commitlog_file_size"


def message_too_large(
    body_size: int, properties_size: int | None, log_file_size: int, which: str = ""
) -> MessageTooLarge:
    """For one message; `which` one of many. Of some it is not known how large their properties got."""
    limit = log_file_size - ROOM_MAX
    if body_size > limit:
        return _told(
            body_size,
            limit,
            f"a body of {body_size:,} bytes{which}",
            f"send a reference to it, {LARGER_FILES}",
        )
    if properties_size is None or properties_size > PROPERTIES_SIZE_MAX:
        size = PROPERTIES_SIZE_MAX + 1 if properties_size is None else properties_size
        more = " or more" if properties_size is None else ""
        return _told(
            size,
            PROPERTIES_SIZE_MAX,
            f"tags, keys and properties of {size:,} bytes{more}{which}",
            "move what is large into the body",
        )
    size = body_size + properties_size
    return _told(
        size,
        limit,
        f"a message of {size:,} bytes{which}, {body_size:,} of its body and {properties_size:,} of its tags,"
        " keys and properties,",
        f"send a reference to what is large, {LARGER_FILES}",
    )


def check_size(body_size: int, properties_size: int, log_file_size: int) -> None:
    """Raises MessageTooLarge for a message that no file of the log has room for, whatever its topic is."""
    size = OVERHEAD + body_size + properties_size
    if size > log_file_size or properties_size > PROPERTIES_SIZE_MAX:
        raise message_too_large(body_size, properties_size, log_file_size)


def batch_too_large(
    topic: str, body_sizes: Sequence[int], properties_sizes: Sequence[int], log_file_size: int
) -> MessageTooLarge:
    """For a batch, which lies in one file of the log as a whole."""
    count = len(body_sizes)
    longest = max(range(count), key=properties_sizes.__getitem__)
    if properties_sizes[longest] > PROPERTIES_SIZE_MAX or count == 1:
        return message_too_large(
            body_sizes[longest], properties_sizes[longest], log_file_size, _which(longest, count)
        )
    size = sum(body_sizes) + sum(properties_sizes) + count * (OVERHEAD + len(topic))
    return _told(
        size,
        log_file_size - ROOM_MAX,
        f"a batch of {count:,} messages, {size:,} bytes as they are stored,",
        f"send it in several parts, {LARGER_FILES}",
    )


def bulk_too_large(
    body_sizes: Sequence[int], properties_sizes: Sequence[int], log_file_size: int
) -> MessageTooLarge:
    """For a bulk, of which each message lies in one file of the log."""
    count = len(body_sizes)
    at = max(range(count), key=properties_sizes.__getitem__)
    if properties_sizes[at] <= PROPERTIES_SIZE_MAX:
        at = max(range(count), key=lambda each: body_sizes[each] + properties_sizes[each])
    return message_too_large(body_sizes[at], properties_sizes[at], log_file_size, _which(at, count))


def _which(place: int, count: int) -> str:
    return f" in message {place + 1:,} of {count:,}" if count > 1 else ""


def _told(size: int, limit: int, what: str, way_out: str) -> MessageTooLarge:
    return MessageTooLarge(size, limit, f"{what} is over the limit of {limit:,}: {way_out}")
