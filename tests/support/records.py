"""Records of the commit log, encoded in plain Python, for tests of what takes them apart."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from itertools import count

from mq.message import MessageExt

STORE_HOST = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")

_unique = count()


def encode_record(
    topic: str,
    queue_id: int,
    queue_offset: int,
    log_offset: int,
    body: bytes,
    properties: bytes,
    *,
    flag: int = 0,
    sys_flag: int = 0,
    born_time_ms: int = 0,
    born_host: bytes = STORE_HOST,
    store_time_ms: int = 0,
    store_host: bytes = STORE_HOST,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
    checksum: bool = True,
) -> bytes:
    """One record of the commit log, as RocketMQ lays it out."""
    name = topic.encode()
    if checksum and properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    long_name = len(topic) > 127
    tail = struct.pack(">i", len(body)) + body + struct.pack(">H" if long_name else ">B", len(name)) + name
    tail += struct.pack(">H", len(properties) + 20 * checksum) + properties
    size = 68 + len(born_host) + len(store_host) + len(tail) + 20 * checksum
    magic = 0xDAA320AB if long_name else 0xDAA320A7
    crc = zlib.crc32(body) & 0x7FFFFFFF
    begin = struct.pack(">iIiii", size, magic, crc, queue_id, flag)
    offsets = struct.pack(">qqiq", queue_offset, log_offset, sys_flag, born_time_ms)
    stored = born_host + struct.pack(">q", store_time_ms) + store_host
    record = begin + offsets + stored + struct.pack(">iq", reconsume_times, prepared_offset) + tail
    if checksum:
        digits = f"{zlib.crc32(record) & 0x7FFFFFFF:010}"[::-1]
        record += b"__CRC32#\x01" + digits.encode() + b"\x02"
    assert len(record) == size
    return record


def encoded(properties: Mapping[str, object]) -> bytes:
    """Properties as a record has them."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


def unique_id() -> str:
    """An id in RocketMQ's layout."""
    place = next(_unique)
    return struct.pack(">4sHIIH", STORE_HOST[:4], 1, 0x6D71, place >> 16, place & 0xFFFF).hex().upper()


def fields_of(message: MessageExt) -> dict[str, int]:
    """What a message keeps of its fixed fields when it is stored again."""
    names = "flag", "sys_flag", "born_time_ms", "reconsume_times"
    return {name: getattr(message, name) for name in names}
