"""Bloom filters with RocketMQ's parameters, hash and order of bits."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mq.filter.bloom import BloomFilter, murmur3

OURS = BloomFilter.of()


@pytest.mark.parametrize(
    ("error_percent", "expected_count", "hash_count", "bit_count"),
    [(20, 32, 3, 112), (1, 64, 7, 616), (10, 100, 4, 480), (50, 10, 1, 16), (99, 1, 1, 8)],
)
def test_bloom_filter_parameters_are_rocketmqs(
    error_percent: int, expected_count: int, hash_count: int, bit_count: int
) -> None:
    assert BloomFilter.of(error_percent, expected_count) == BloomFilter(hash_count, bit_count)


@pytest.mark.parametrize(("error_percent", "expected_count"), [(0, 1), (100, 1), (20, 0), (-1, -1)])
def test_bloom_filter_parameters_have_bounds(error_percent: int, expected_count: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        BloomFilter.of(error_percent, expected_count)


@pytest.mark.parametrize(
    ("text", "positions", "low"),
    [
        ("CID_abc#TopicTest", (103, 61, 29), 0x69F37BB54D7BC883),
        ("g1#t1", (19, 102, 73), 0x0ECD611D7446589F),
    ],
)
def test_bloom_filter_positions_are_rocketmqs(text: str, positions: tuple[int, ...], low: int) -> None:
    assert murmur3(text.encode())[0] == low
    assert OURS.positions(text) == positions


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"", "00000000000000000000000000000000"),
        (b"hello", "cbd8a7b341bd9b025b1e906a48ae1d19"),
        (b"hello, world", "342fac623a5ebc8e4cdcbc079642414d"),
        (b"19 Jan 2038 at 3:14:07 AM", "b89e5988b737affc664fc2950231b2cb"),
        (b"The quick brown fox jumps over the lazy dog.", "cd99481f9ee902c9695da1a38987b6e7"),
    ],
)
def test_murmur3_is_the_published_one(data: bytes, digest: str) -> None:
    low, high = murmur3(data)
    assert f"{low:016x}{high:016x}" == digest


def test_a_bit_is_counted_from_the_lowest_of_its_byte() -> None:
    bits = OURS.bits(["g1#t1"])
    assert len(bits) == 14
    assert {at for at in range(112) if bits[at // 8] & 1 << at % 8} == {19, 102, 73}


@given(st.lists(st.text(), max_size=40), st.integers(1, 99), st.integers(1, 200))
def test_what_was_set_is_never_denied(texts: list[str], error_percent: int, expected_count: int) -> None:
    bloom = BloomFilter.of(error_percent, expected_count)
    bits = bloom.bits(texts)
    assert all(bloom.may_hold(bits, bloom.positions(text)) for text in texts)


def test_what_was_not_set_is_mostly_denied() -> None:
    bits = OURS.bits(f"group{number}#orders" for number in range(32))
    others = [OURS.positions(f"other{number}#orders") for number in range(1000)]
    assert sum(OURS.may_hold(bits, positions) for positions in others) < 300


def test_bits_of_another_size_say_nothing() -> None:
    assert OURS.may_hold(b"", OURS.positions("g1#t1"))
    assert OURS.may_hold(bytes(15), OURS.positions("g1#t1"))
    assert not OURS.may_hold(bytes(14), OURS.positions("g1#t1"))
