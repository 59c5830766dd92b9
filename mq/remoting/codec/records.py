"""Bodies with stored messages: a sequence of records in the format of a broker's log."""

from __future__ import annotations

from mq.errors import RemotingError, StoreCorrupted
from mq.message import MessageExt
from mq.store.log.records import split_records

__all__ = ["decode_records", "with_names"]

# The layout of a record: see store-format; both addresses are IPv4 unless a flag is set.
MAGIC_V2 = b"\xda\xa3\x20\xab"  # the topic's size has two bytes
SYS_FLAG_AT = 36
BORN_V6, STORED_V6 = 0x10, 0x20
FIXED_SIZE = 84  # before the size of the body


def decode_records(body: bytes, broker_name: str, *, rewritten: bool = False) -> list[MessageExt]:
    """The messages. Raises RemotingError if a record is incomplete or its checksum is wrong.

    rewritten: the broker has changed the record, as for CHECK_TRANSACTION_STATE, but not its checksum.
    """
    try:
        return [MessageExt(record, broker_name) for record in split_records(body, verified=not rewritten)]
    except StoreCorrupted as error:
        raise RemotingError(f"broker {broker_name!r} sent messages that are damaged: {error}") from error


def with_names(record: bytes, topic: bytes, properties: bytes) -> bytes:
    """The record with another topic and other properties, and its size adjusted."""
    sys_flag = int.from_bytes(record[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big")
    body_at = FIXED_SIZE + 12 * bool(sys_flag & BORN_V6) + 12 * bool(sys_flag & STORED_V6)
    topic_at = body_at + 4 + int.from_bytes(record[body_at : body_at + 4], "big")
    count_size = 2 if record[4:8] == MAGIC_V2 else 1
    tail = (
        len(topic).to_bytes(count_size, "big"),
        topic,
        len(properties).to_bytes(2, "big"),
        properties,
    )
    changed = record[4:topic_at] + b"".join(tail)
    return (len(changed) + 4).to_bytes(4, "big") + changed
