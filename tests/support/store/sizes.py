"""Sizes of files for stores of many processes."""

from typing import Any

SMALL: dict[str, Any] = {
    "commitlog_file_size": 65536,
    "queue_file_units": 50,
    "index_slot_count": 101,
    "index_unit_count": 400,
}

SIZES: dict[str, Any] = {
    "commitlog_file_size": 4 << 20,
    "queue_file_units": 1000,
    "index_slot_count": 1009,
    "index_unit_count": 40_000,
}
