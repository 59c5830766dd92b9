"""Compressed bodies: what is stored, what comes back, and bytes that claim to be more than they are."""

from __future__ import annotations

import sys
import zlib
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

import mq
from mq.compression import FLAGS, compressor, decompress

KINDS = ["zlib", "lz4", "zstd"]
BOMB_SIZE = 1 << 20


def compressed(kind: str, body: bytes) -> tuple[bytes, int]:
    stored, flags = compressor(kind)(body)
    assert flags == FLAGS[kind]
    return stored, flags


def test_the_flags_are_rocketmqs() -> None:
    assert FLAGS == {"lz4": 0x101, "zstd": 0x201, "zlib": 0x301}


@pytest.mark.parametrize("kind", KINDS)
@given(body=st.binary(min_size=1, max_size=100).map(lambda part: part * 100))
def test_a_body_comes_back(kind: str, body: bytes) -> None:
    stored, flags = compressor(kind)(body)
    assert decompress(stored, flags) == body
    assert len(stored) <= len(body)


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_would_not_shrink_is_stored_as_it_is(kind: str) -> None:
    noise = zlib.compress(bytes(range(256)) * 20)[10:60]
    assert compressor(kind)(noise) == (noise, 0)
    assert decompress(noise, 0) is noise


def test_zlib_without_a_kind_is_what_old_clients_wrote() -> None:
    assert decompress(zlib.compress(b"body"), 0x1) == b"body"


def test_other_flags_do_not_matter() -> None:
    stored, flags = compressed("zlib", b"x" * 100)
    assert decompress(stored, flags | 0x10 | 0x20 | 0x8) == b"x" * 100
    assert decompress(b"plain", 0x300 | 0x30) == b"plain"


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_grows_over_the_limit_is_refused(kind: str) -> None:
    stored, flags = compressed(kind, bytes(BOMB_SIZE))
    assert decompress(stored, flags, BOMB_SIZE) == bytes(BOMB_SIZE)
    with pytest.raises(mq.MessageInvalid, match="more than"):
        decompress(stored, flags, BOMB_SIZE - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_half_of_a_body_is_corrupt(kind: str) -> None:
    stored, flags = compressed(kind, b"some body" * 100)
    for size in (0, 1, len(stored) // 2, len(stored) - 1):
        with pytest.raises(mq.StoreCorrupted):
            decompress(stored[:size], flags)


@pytest.mark.parametrize("kind", KINDS)
@given(garbage=st.binary(max_size=200))
def test_garbage_never_passes_silently(kind: str, garbage: bytes) -> None:
    try:
        body = decompress(garbage, FLAGS[kind])
    except (mq.StoreCorrupted, mq.MessageInvalid):
        return
    # What does pass was a whole frame by luck: nothing but what a correct one holds.
    assert isinstance(body, bytes)
    assert garbage


@pytest.mark.parametrize("flags", [0x401, 0x501, 0x601, 0x701])
def test_an_unknown_compressor_is_corrupt(flags: int) -> None:
    with pytest.raises(mq.StoreCorrupted):
        decompress(b"body", flags)


def test_an_unknown_compression_is_a_value_error() -> None:
    kind: Any = "gzip"
    with pytest.raises(ValueError, match="compression is 'gzip', must be one of lz4, zlib, zstd"):
        compressor(kind)


@pytest.mark.parametrize(("kind", "module"), [("lz4", "lz4.frame"), ("zstd", "zstandard")])
def test_a_missing_package_is_named(kind: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'mq\[{kind}\]'"):
        compressor(kind)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'mq\[{kind}\]'"):
        decompress(b"body", FLAGS[kind])
