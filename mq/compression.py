"""Compressed bodies: RocketMQ's flags, and the three compressors behind them.

Bit 0 of sys_flag says that the body is compressed, bits 8 to 10 by what: 0 zlib (old clients), 1 LZ4
frame, 2 zstd, 3 zlib. zlib is always there; the others need the packages lz4 and zstandard (the extras
of the same names), for reading as well. What is decompressed is bounded: a few bytes can claim to be
gigabytes.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

from mq.errors import MessageInvalid, StoreCorrupted

Compression = Literal["zlib", "lz4", "zstd"]

COMPRESSED = 0x1
COMPRESSION_MASK = 0x700
FLAGS: dict[str, int] = {
    "lz4": COMPRESSED | 1 << 8,
    "zstd": COMPRESSED | 2 << 8,
    "zlib": COMPRESSED | 3 << 8,
}
SIZE_MAX = 64 << 20
_ZLIB_LEVEL = 5
# A zstd block is at most 128 KiB and takes at least 4 bytes, so this much input cannot make more
# than 8 MiB at once.
_ZSTD_STEP = 256


def compressor(kind: str) -> Callable[[bytes], tuple[bytes, int]]:
    """A function from a body to what is stored of it and its flags: the body itself, and 0, where
    compressing it saves nothing."""
    if kind not in FLAGS:
        raise ValueError(f"compression is {kind!r}, must be one of {', '.join(sorted(FLAGS))}")
    squeeze = _squeezer(kind)
    flags = FLAGS[kind]

    def compress(body: bytes) -> tuple[bytes, int]:
        smaller = squeeze(body)
        return (smaller, flags) if len(smaller) < len(body) else (body, 0)

    return compress


def decompress(body: bytes, sys_flag: int, size_max: int = SIZE_MAX) -> bytes:
    """The body as its producer gave it.

    Raises StoreCorrupted where the bytes are not what the flags say, MessageInvalid where they come to
    more than size_max, ModuleNotFoundError where the package for them is missing.
    """
    if not sys_flag & COMPRESSED:
        return body
    kind = (sys_flag & COMPRESSION_MASK) >> 8
    if kind in (0, 3):
        whole, plain = _zlib_inflate(body, size_max)
    elif kind == 1:
        whole, plain = _lz4_inflate(body, size_max)
    elif kind == 2:
        whole, plain = _zstd_inflate(body, size_max)
    else:
        raise StoreCorrupted(f"sys_flag {sys_flag:#x} names no known compression")
    if len(plain) > size_max:
        raise MessageInvalid(
            f"the body of {len(body):,} bytes decompresses to more than {size_max:,}:"
            " mq.compression.decompress(message.stored_body, message.sys_flag, size_max=...) allows more"
        )
    if not whole:
        raise _broken(sys_flag, "it ends early")
    return plain


def _zlib_inflate(body: bytes, size_max: int) -> tuple[bool, bytes]:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, size_max + 1)
    except zlib.error as error:
        raise _broken(FLAGS["zlib"], str(error)) from error
    return inflater.eof, plain


def _lz4_inflate(body: bytes, size_max: int) -> tuple[bool, bytes]:
    inflater: Any = _package("lz4.frame", "lz4").LZ4FrameDecompressor()
    try:
        plain: bytes = inflater.decompress(body, max_length=size_max + 1)
    except RuntimeError as error:
        raise _broken(FLAGS["lz4"], str(error)) from error
    return inflater.eof, plain


def _zstd_inflate(body: bytes, size_max: int) -> tuple[bool, bytes]:
    zstandard: Any = _package("zstandard", "zstd")
    inflater = zstandard.ZstdDecompressor().decompressobj()
    pieces = []
    size = 0
    try:
        for at in range(0, len(body), _ZSTD_STEP):
            piece = inflater.decompress(body[at : at + _ZSTD_STEP])
            pieces.append(piece)
            size += len(piece)
            if inflater.eof or size > size_max:
                break
    except zstandard.ZstdError as error:
        raise _broken(FLAGS["zstd"], str(error)) from error
    return inflater.eof, b"".join(pieces)


def _squeezer(kind: str) -> Callable[[bytes], bytes]:
    if kind == "zlib":
        return lambda body: zlib.compress(body, _ZLIB_LEVEL)
    if kind == "lz4":
        frame: Any = _package("lz4.frame", "lz4")
        return lambda body: bytes(frame.compress(body))
    zstandard: Any = _package("zstandard", "zstd")
    # One compressor must not be used by two threads at a time, and making one costs little.
    return lambda body: bytes(zstandard.ZstdCompressor().compress(body))


def _package(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"a body compressed with {extra} needs the package {module.partition('.')[0]}:"
            f" pip install 'mq[{extra}]'",
            name=error.name,
        ) from error


def _broken(sys_flag: int, why: str) -> StoreCorrupted:
    return StoreCorrupted(f"a body with sys_flag {sys_flag:#x} does not decompress: {why}")
