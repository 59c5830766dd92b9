"""The body of SEND_BATCH_MESSAGE: a sequence of messages for one topic and queue.

Integers big-endian; for each message

    offset  size  field
         0     4  size             of the whole entry
         4     4  magic            0
         8     4  body_crc         0
        12     4  flag
        16     4  body_size
        20     n  body
               2  properties_size
               n  properties       in the format of mq/properties.py

RocketMQ: common/message/MessageDecoder.java.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from mq.errors import RemotingError

__all__ = ["BatchEntry", "decode_batch", "encode_batch"]

_HEAD = Struct(">iiiii")
_PROPERTIES_SIZE = Struct(">h")
ENTRY_SIZE_MIN: Final = _HEAD.size + _PROPERTIES_SIZE.size
PROPERTIES_SIZE_MAX: Final = 32_767


class BatchEntry(NamedTuple):
    body: bytes
    properties: bytes
    flag: int = 0


def encode_batch(entries: Iterable[tuple[bytes, bytes, int]]) -> bytes:
    """Encode messages, each given as body, properties and flag."""
    pieces: list[bytes] = []
    for body, properties, flag in entries:
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise RemotingError(
                f"a message of a batch has {len(properties):,} bytes of properties,"
                f" over {PROPERTIES_SIZE_MAX:,}"
            )
        size = ENTRY_SIZE_MIN + len(body) + len(properties)
        pieces += (
            _HEAD.pack(size, 0, 0, flag, len(body)),
            body,
            _PROPERTIES_SIZE.pack(len(properties)),
            properties,
        )
    return b"".join(pieces)


def decode_batch(body: bytes) -> list[BatchEntry]:
    """The messages. Raises RemotingError if the sizes are inconsistent."""
    entries: list[BatchEntry] = []
    at = 0
    while at < len(body):
        if len(body) - at < ENTRY_SIZE_MIN:
            raise RemotingError(f"a batch ends with {len(body) - at} bytes, too few for a message")
        size, _, _, flag, body_size = _HEAD.unpack_from(body, at)
        end = at + size
        if not ENTRY_SIZE_MIN <= size <= len(body) - at or not 0 <= body_size <= size - ENTRY_SIZE_MIN:
            raise RemotingError(
                f"message {len(entries)} of a batch says that it has {size:,} bytes, {body_size:,} of them"
                f" body, where {len(body) - at:,} are left"
            )
        body_at = at + _HEAD.size
        properties_at = body_at + body_size + _PROPERTIES_SIZE.size
        (properties_size,) = _PROPERTIES_SIZE.unpack_from(body, properties_at - _PROPERTIES_SIZE.size)
        if properties_at + properties_size != end:
            raise RemotingError(
                f"message {len(entries)} of a batch says that it has {properties_size:,} bytes of properties,"
                f" where {end - properties_at:,} are left"
            )
        entries.append(BatchEntry(body[body_at : body_at + body_size], body[properties_at:end], flag))
        at = end
    return entries
