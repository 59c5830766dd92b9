"""Records that came from elsewhere, one after the other: taken apart only once every length is verified."""

from __future__ import annotations

from mq.errors import StoreCorrupted
from mq.store.native import ffi, lib

__all__ = ["split_records"]


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
