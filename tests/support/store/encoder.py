"""RocketMQ's bytes, encoded a second time: plain Python, from the format's description alone.

The oracle for what mq writes, and the maker of stores that mq did not write.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
BORN_V6, STORE_V6 = 0x10, 0x20


@dataclass(frozen=True)
class Record:
    """One message of the commit log; the hosts are address and port as they lie there."""

    topic: str
    body: bytes
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    log_offset: int = 0
    sys_flag: int = 0
    born_time: int = 0
    born_host: bytes = bytes.fromhex("7f00000100002a9f")
    store_time: int = 0
    store_host: bytes = bytes.fromhex("7f00000100002a9f")
    reconsume_times: int = 0
    prepared_offset: int = 0

    def encode(self, *, property_crc: bool = False) -> bytes:
        topic = self.topic.encode()
        long = len(topic) > 127
        properties = self.properties
        if property_crc:
            if properties and not properties.endswith(b"\2"):
                properties += b"\2"
            properties += bytes(20)
        fixed = struct.pack(
            ">iiqqiq",
            self.queue_id,
            self.flag,
            self.queue_offset,
            self.log_offset,
            self.sys_flag,
            self.born_time,
        )
        fixed += self.born_host + struct.pack(">q", self.store_time) + self.store_host
        fixed += struct.pack(">iqi", self.reconsume_times, self.prepared_offset, len(self.body))
        tail = struct.pack(">H" if long else ">B", len(topic)) + topic
        tail += struct.pack(">H", len(properties)) + properties
        size = 12 + len(fixed) + len(self.body) + len(tail)
        head = struct.pack(">III", size, V2 if long else V1, crc(self.body))
        record = head + fixed + self.body + tail
        if property_crc:
            digits = f"{crc(record[:-20]):010}"[::-1]
            # Least significant digit first, zeros behind it.
            record = record[:-20] + b"__CRC32#\1" + digits.encode() + b"\2"
        return record


def crc(data: bytes) -> int:
    return zlib.crc32(data) & 0x7FFFFFFF


def blank(left: int) -> bytes:
    """The end of a file with so many bytes left."""
    return struct.pack(">II", left, BLANK)


def unit(log_offset: int, size: int, tags_code: int) -> bytes:
    """One place of a consume queue."""
    return struct.pack(">qiq", log_offset, size, tags_code)


def string_hash(text: str) -> int:
    """Java's String.hashCode."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def properties(**values: str) -> bytes:
    return b"".join(f"{name}\1{value}\2".encode() for name, value in values.items())
