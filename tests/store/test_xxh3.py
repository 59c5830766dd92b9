"""XXH3 in C gives what the package xxhash gives, for every size from the smallest on that it is made for."""

from __future__ import annotations

import random

import xxhash

from mq.store.native import ffi, lib

BLOCK = 1024  # after each of these it is stirred


def test_all_sizes_give_what_the_package_gives() -> None:
    data = random.Random(16).randbytes(3 * BLOCK)
    digest = ffi.new("uint8_t[]", 16)
    for size in (
        *range(4, 700),
        *range(BLOCK - 70, BLOCK + 70),
        *range(2 * BLOCK - 2, 2 * BLOCK + 3),
        len(data),
    ):
        part = ffi.from_buffer(data[:size])  # so that a byte too many is found by the sanitizers
        lib.mq_xxh3_128(part, size, digest)
        assert bytes(digest) == xxhash.xxh3_128_digest(data[:size]), size
        if size >= 17:
            assert lib.mq_xxh3_64(part, size) == xxhash.xxh3_64_intdigest(data[:size]), size
