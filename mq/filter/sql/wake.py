"""What a sender can tell of an SQL92 condition: that a message surely does not make it true.

A consumer that selects by a condition sleeps until a message comes that may be for it. The condition itself
is a Python function of the consumer's process; senders go by a test that C evaluates, which says "no" of some
of the messages that the condition does not select, and of no other. Where the condition asks for more than
the test can say, such as a property that contains a text, the test is only whether the property is there.

The bytes of a test: mq/store/native/control/wake_filter.h.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Final

from mq.filter.sql.conditions import (
    Cast,
    Condition,
    Equal,
    EqualsNumber,
    EqualsText,
    EqualsTruth,
    In,
    IsNull,
    Junction,
    Not,
    Number,
    Ordered,
    Property,
    Search,
    Truth,
)

__all__ = ["TEST_SIZE_MAX", "test_of"]

TEST_SIZE_MAX: Final = 508
MAY, NEVER, ALL, ANY, THERE, TEXT, NUMBER = range(1, 8)
LESS, EQUAL, GREATER = 1, 2, 4
ORDERS: Final = {"<": LESS, "<=": LESS | EQUAL, ">": GREATER, ">=": GREATER | EQUAL}
NAME_SIZE_MAX: Final = 255
EXACT_MAX: Final = 1 << 53  # whole numbers up to it are doubles


def test_of(condition: Condition) -> bytes | None:
    """The test; None where every message may make the condition true, or the test would be too long."""
    test = _true(condition)
    return None if test == _MAY or len(test) > TEST_SIZE_MAX else test


def _node(kind: int, content: bytes = b"") -> bytes:
    return bytes([kind]) + min(3 + len(content), 0x7FFF).to_bytes(2, "big") + content


_MAY: Final = _node(MAY)
_NEVER: Final = _node(NEVER)


def _true(condition: Condition) -> bytes:
    """Whether the condition may be true."""
    if isinstance(condition, Truth):
        return _MAY if condition.value else _NEVER
    if isinstance(condition, Not):
        return _false(condition.condition)
    if isinstance(condition, Junction):
        return (_all if condition.kind == "AND" else _any)(map(_true, condition.conditions))
    if isinstance(condition, Cast):
        return _NEVER
    if isinstance(condition, IsNull | Equal):
        return _MAY
    if isinstance(condition, EqualsText):
        return _about(TEXT, condition.left, _encoded(condition.right))
    if isinstance(condition, In) and not condition.negated:
        return _any(_about(TEXT, condition.operand, _encoded(text)) for text in sorted(condition.texts))
    return _compared(condition, 0)


def _false(condition: Condition) -> bytes:
    """Whether it may be false, which is not the same as not true: it may be unknown."""
    if isinstance(condition, Truth):
        return _MAY if condition.value is False else _NEVER
    if isinstance(condition, Not):
        return _true(condition.condition)
    if isinstance(condition, Junction):
        return (_any if condition.kind == "AND" else _all)(map(_false, condition.conditions))
    if isinstance(condition, Equal | Search):
        return _MAY  # A property that is missing contains no text.
    if isinstance(condition, IsNull):
        return _about(THERE, condition.operand) if isinstance(condition.operand, Property) else _MAY
    if isinstance(condition, In) and condition.negated:
        return _any(_about(TEXT, condition.operand, _encoded(text)) for text in sorted(condition.texts))
    return _compared(condition, LESS | EQUAL | GREATER)


def _compared(
    leaf: Ordered | EqualsNumber | EqualsText | EqualsTruth | Cast | In | Search, turned: int
) -> bytes:
    """Of a comparison, true or false: its property is there. With a number, in which order: `turned` has the
    bits of all orders for those that make it false."""
    if isinstance(leaf, Cast | In | Search):
        return _about(THERE, leaf.operand)
    order = ORDERS[leaf.order] if isinstance(leaf, Ordered) else EQUAL
    right = leaf.right.value if isinstance(leaf.right, Number) else leaf.right
    if isinstance(leaf, EqualsText | EqualsTruth) or isinstance(right, Property | str | bool):
        return _about(THERE, leaf.left)
    if not math.isfinite(right) or (isinstance(right, int) and abs(right) > EXACT_MAX):
        return _about(THERE, leaf.left)
    return _about(NUMBER, leaf.left, bytes([order ^ turned]) + struct.pack(">d", right))


def _about(kind: int, operand: Property, content: bytes = b"") -> bytes:
    name = operand.name.encode("utf-8", "surrogatepass")
    return _MAY if len(name) > NAME_SIZE_MAX else _node(kind, bytes([len(name)]) + name + content)


def _all(parts: Iterable[bytes]) -> bytes:
    found = [part for part in parts if part != _MAY]
    if not found or _NEVER in found:
        return _NEVER if found else _MAY
    return found[0] if len(found) == 1 else _node(ALL, b"".join(found))


def _any(parts: Iterable[bytes]) -> bytes:
    found = [part for part in parts if part != _NEVER]
    if not found or _MAY in found:
        return _MAY if found else _NEVER
    return found[0] if len(found) == 1 else _node(ANY, b"".join(found))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
