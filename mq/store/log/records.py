"""Records one after the other, as they come from elsewhere or go there; each length is verified first."""

from __future__ import annotations

from mq.errors import StoreCorrupted
from mq.store.native import ffi, lib

__all__ = ["split_records", "with_store_host"]


def split_records(content: bytes, *, verified: bool = True) -> list[bytes]:
    """The bytes of each. Raises StoreCorrupted where one is not whole or, if `verified`, its CRC is wrong."""
    records: list[bytes] = []
    view = ffi.from_buffer(content)
    record = ffi.new("mq_record *")
    at, end = 0, len(content)
    while at < end:
        size = lib.mq_record_parse(view + at, end - at, record)
        if size <= 0 or (verified and lib.mq_record_verify(view + at, record) < 0):
            raise StoreCorrupted(
                f"record {len(records)}, at byte {at:,} of {end:,}, is"
                f" {'no record' if size <= 0 else 'not what its checksum says'}"
            )
        records.append(content[at : at + size])
        at += size
    return records


def with_store_host(records: bytes, host: bytes) -> bytes:
    """The same records with another store host (an IPv4 address and a port, 8 bytes), and checksums that fit;
    unchanged where one of the addresses is IPv6."""
    changed = bytearray(records)
    lib.mq_records_set_store_host(ffi.from_buffer("uint8_t[]", changed), len(changed), host)
    return bytes(changed)
