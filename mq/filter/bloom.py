"""Which SQL92 consumers of a topic a message may concern, in a few bits beside its queue entry.

RocketMQ can evaluate the expressions of all consumers once, when a message arrives, and keep the outcome as
a Bloom filter: each consumer (the text `group#topic`) owns hash_count positions, and those of a consumer
that wants the message are set. A consumer whose positions are not all set does not want it, and passes over
it without reading the log; one whose positions are all set has to look.

Bits are numbered from the lowest of the first byte: bit p is 1 << p % 8 of byte p / 8. The positions come
from Murmur3's 128 bits for x64 with seed 0, of which the low 64 are used, as two signed numbers of 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, e, log

ERROR_PERCENT = 20
EXPECTED_COUNT = 32


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """How many positions a text has, among how many bits; equal parameters make equal positions."""

    hash_count: int
    bit_count: int

    @classmethod
    def of(cls, error_percent: int = ERROR_PERCENT, expected_count: int = EXPECTED_COUNT) -> BloomFilter:
        """The filter in which, with so many texts set, another seems set in so many of a hundred cases."""
        if not 1 <= error_percent <= 99:
            raise ValueError(f"error_percent {error_percent} must be 1 to 99")
        if expected_count < 1:
            raise ValueError(f"expected_count {expected_count} must be 1 or more")
        error_rate = error_percent / 100
        # In this order, since the last bit of a quotient decides what is rounded up.
        bit_count = ceil(expected_count * (log(1 / error_rate) / log(2)) * (log(e) / log(2)))
        return cls(ceil(log(error_rate) / log(0.5)), -(-bit_count // 8) * 8)

    def positions(self, text: str) -> tuple[int, ...]:
        """The bits of a text, in the order in which RocketMQ lists them; the same one may come twice."""
        low = murmur3(text.encode())[0]
        first, second = low & _MASK_32, low >> 32
        found = []
        for turn in range(1, self.hash_count + 1):
            mixed = (first + turn * second) & _MASK_32
            # Seen as a signed number, what is negative is complemented.
            found.append((mixed ^ _MASK_32 if mixed >> 31 else mixed) % self.bit_count)
        return tuple(found)

    def bits(self, wanted_by: Iterable[str]) -> bytes:
        """The bits with the positions of all these texts set."""
        bits = bytearray(self.bit_count // 8)
        for text in wanted_by:
            for position in self.positions(text):
                bits[position >> 3] |= 1 << (position & 7)
        return bytes(bits)

    def may_hold(self, bits: bytes, positions: Iterable[int]) -> bool:
        """False where a text with these positions is surely not set. Bits of another size say nothing."""
        if len(bits) * 8 != self.bit_count:
            return True
        return all(bits[position >> 3] >> (position & 7) & 1 for position in positions)


_MASK_32 = (1 << 32) - 1
_MASK_64 = (1 << 64) - 1
_FIRST, _SECOND = 0x87C37B91114253D5, 0x4CF5AD432745937F


def murmur3(data: bytes) -> tuple[int, int]:
    """Murmur3, the 128-bit variant for x64, seed 0: its low and its high 64 bits."""
    low = high = 0
    whole = len(data) & ~15
    for at in range(0, whole, 16):
        low ^= _mixed(int.from_bytes(data[at : at + 8], "little"), _FIRST, 31, _SECOND)
        low = ((_rotated(low, 27) + high) * 5 + 0x52DCE729) & _MASK_64
        high ^= _mixed(int.from_bytes(data[at + 8 : at + 16], "little"), _SECOND, 33, _FIRST)
        high = ((_rotated(high, 31) + low) * 5 + 0x38495AB5) & _MASK_64
    low ^= _mixed(int.from_bytes(data[whole : whole + 8], "little"), _FIRST, 31, _SECOND)
    high ^= _mixed(int.from_bytes(data[whole + 8 :], "little"), _SECOND, 33, _FIRST)
    low ^= len(data)
    high ^= len(data)
    low = (low + high) & _MASK_64
    high = (high + low) & _MASK_64
    low, high = _finished(low), _finished(high)
    low = (low + high) & _MASK_64
    return low, (high + low) & _MASK_64


def _mixed(word: int, before: int, bits: int, after: int) -> int:
    return _rotated(word * before & _MASK_64, bits) * after & _MASK_64


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK_64


def _finished(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK_64
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK_64
    return word ^ word >> 33
