"""What an SQL92 expression means: conditions, and the operands that they compare.

The functions here build conditions from parts, and raise Nonsense where the parts do not go together:
a text has no order, NULL is asked for by IS NULL, a condition is no number. Nothing here is deeper than
DEPTH_MAX, so that a walk over a condition may use recursion.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeGuard

from mq.filter.sql.numbers import NotANumber, Numeric, number

DEPTH_MAX = 32

Order = Literal["<", "<=", ">", ">="]
Sought = Literal["CONTAINS", "STARTSWITH", "ENDSWITH"]

COMPARE: Final[dict[Order, Callable[[Numeric, Numeric], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED: Final[dict[Order, Order]] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Negated:
    """A property with a minus sign. RocketMQ has no number for that: it is as if it were missing."""

    at: int


@dataclass(frozen=True, slots=True)
class Text:
    value: str
    at: int


@dataclass(frozen=True, slots=True)
class Number:
    value: int | float
    at: int


@dataclass(frozen=True, slots=True)
class Truth:
    """TRUE, FALSE or NULL (None): written so, or what a condition comes to for every message."""

    value: bool | None
    at: int
    written: bool = False
    depth = 1
    raises = False


@dataclass(frozen=True, slots=True)
class Cast:
    """A property as a condition: a text, therefore not true; unknown where it is missing."""

    operand: Property
    at: int
    depth = 1
    raises = False


@dataclass(frozen=True, slots=True)
class Ordered:
    left: Property
    order: Order
    right: Property | Number
    at: int
    depth = 1
    raises = True


@dataclass(frozen=True, slots=True)
class EqualsText:
    left: Property
    right: str
    at: int
    depth = 1
    raises = False


@dataclass(frozen=True, slots=True)
class EqualsNumber:
    left: Property
    right: int | float
    at: int
    depth = 1
    raises = True


@dataclass(frozen=True, slots=True)
class EqualsTruth:
    left: Property
    right: bool
    at: int
    depth = 1
    raises = False


@dataclass(frozen=True, slots=True)
class Equal:
    """What is left over: properties and conditions, compared with each other by their values."""

    left: Operand
    right: Operand
    at: int
    depth: int
    raises: bool


@dataclass(frozen=True, slots=True)
class Search:
    operand: Property
    sought: Sought
    text: str
    negated: bool
    at: int
    depth = 1
    raises = False


@dataclass(frozen=True, slots=True)
class In:
    operand: Property
    texts: frozenset[str]
    negated: bool
    at: int
    depth = 1
    raises = False


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Property | Condition
    at: int
    depth: int
    raises: bool


@dataclass(frozen=True, slots=True)
class Not:
    condition: Condition
    at: int
    depth: int
    raises: bool


@dataclass(frozen=True, slots=True)
class Junction:
    """All of the conditions, or any of them; looked at from the left, as far as needed."""

    kind: Literal["AND", "OR"]
    conditions: tuple[Condition, ...]
    at: int
    depth: int
    raises: bool


Leaf = Cast | Ordered | EqualsText | EqualsNumber | EqualsTruth | Search | In | IsNull
Condition = Leaf | Truth | Equal | Not | Junction
Operand = Property | Negated | Text | Number | Condition


class Nonsense(Exception):
    """What was found does not go together; at says where that begins."""

    def __init__(self, at: int, problem: str) -> None:
        super().__init__(problem)
        self.at: Final = at
        self.problem: Final = problem


def condition(operand: Operand) -> Condition:
    """The operand as a condition, as AND, OR, NOT and the whole expression need one."""
    if isinstance(operand, Condition):
        return operand
    if isinstance(operand, Property):
        return Cast(operand, operand.at)
    raise Nonsense(operand.at, f"{_named(operand)} is no condition: compare it with something")


def junction(kind: Literal["AND", "OR"], *operands: Operand) -> Condition:
    parts: list[Condition] = []
    for part in map(condition, operands):
        parts += part.conditions if isinstance(part, Junction) and part.kind == kind else (part,)
    at = operands[0].at
    return Junction(kind, tuple(parts), at, _deeper(at, *parts), any(part.raises for part in parts))


def negation(operand: Operand) -> Condition:
    inner = condition(operand)
    return Not(inner, operand.at, _deeper(operand.at, inner), inner.raises)


def ordered(left: Operand, order: Order, right: Operand) -> Condition:
    for operand in (left, right):
        if isinstance(operand, Text):
            raise Nonsense(operand.at, f"a text has no order: {order} compares numbers")
        if isinstance(operand, Truth) and operand.written and operand.value is None:
            raise Nonsense(operand.at, f"nothing is {order} NULL: write IS NULL, or IS NOT NULL")
        if isinstance(operand, Condition):
            problem = f"a condition has no order: {order} compares numbers{_advice(operand)}"
            raise Nonsense(operand.at, problem)
    if isinstance(left, Negated) or isinstance(right, Negated):
        return Truth(None, left.at)
    at = left.at
    if isinstance(left, Number):
        if isinstance(right, Number):
            return Truth(COMPARE[order](left.value, right.value), at)
        left, order, right = right, _MIRRORED[order], left
    assert isinstance(left, Property)
    assert isinstance(right, Property | Number)
    return Ordered(left, order, right, at)


def equal(left: Operand, right: Operand) -> Condition:
    for operand in (left, right):
        if isinstance(operand, Truth) and operand.written and operand.value is None:
            raise Nonsense(operand.at, "nothing equals NULL: write IS NULL, or IS NOT NULL")
    if isinstance(right, Property) and _is_literal(left):
        left, right = right, left
    if isinstance(left, Property) and _is_literal(right):
        if isinstance(right, Text):
            if not right.value:
                return Cast(left, left.at)  # What is there is not empty: the answer is the same.
            return EqualsText(left, right.value, left.at)
        if isinstance(right, Number):
            return EqualsNumber(left, right.value, left.at)
        assert isinstance(right, Truth)
        assert right.value is not None
        return EqualsTruth(left, right.value, left.at)
    if _is_literal(left) and _is_literal(right):
        return Truth(_literals_equal(left, right), left.at)
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Number) and isinstance(other, Condition):
            raise Nonsense(one.at, f"a condition is compared with a number{_advice(other)}")
    parts = [part for part in (left, right) if isinstance(part, Condition)]
    mixed = isinstance(left, Condition) and not isinstance(right, Condition)
    raises = mixed or any(part.raises for part in parts)
    return Equal(left, right, left.at, _deeper(left.at, *parts), raises)


def _is_literal(operand: Operand) -> TypeGuard[Text | Number | Truth]:
    return isinstance(operand, Text | Number) or (isinstance(operand, Truth) and operand.written)


def _literals_equal(left: Text | Number | Truth, right: Text | Number | Truth) -> bool:
    if isinstance(left, Text) and isinstance(right, Number):
        left, right = right, left
    if isinstance(left, Number) and isinstance(right, Text):
        try:
            return left.value == number(right.value.encode("utf-8", "surrogatepass"))
        except NotANumber:
            raise Nonsense(right.at, "this text is compared with a number, and is none") from None
    if isinstance(left, Truth) != isinstance(right, Truth):
        raise Nonsense(right.at, f"{_named(left)} cannot be compared with {_named(right)}")
    return left.value == right.value


def between(operand: Operand, low: Operand, high: Operand, negated: bool) -> Condition:
    for bound in (low, high):
        if isinstance(bound, Text):
            raise Nonsense(bound.at, "a text has no order: the bounds of BETWEEN are numbers")
    if isinstance(low, Number) and isinstance(high, Number) and low.value > high.value:
        raise Nonsense(
            low.at, f"nothing lies between {low.value} and {high.value}: the lower bound comes first"
        )
    if negated:
        return junction("OR", ordered(operand, "<", low), ordered(operand, ">", high))
    return junction("AND", ordered(operand, ">=", low), ordered(operand, "<=", high))


def search(operand: Operand, sought: Sought, text: str, negated: bool) -> Condition:
    """An empty text is found nowhere, and nowhere missing: false both ways."""
    if isinstance(operand, Text):
        found = {
            "CONTAINS": operand.value.__contains__,
            "STARTSWITH": operand.value.startswith,
            "ENDSWITH": operand.value.endswith,
        }[sought]
        return Truth(text != "" and found(text) != negated, operand.at)
    if not isinstance(operand, Property):
        problem = f"{sought} searches the text of a property, not {_named(operand)}{_advice(operand)}"
        raise Nonsense(operand.at, problem)
    if not text:
        return Truth(False, operand.at)
    return Search(operand, sought, text, negated, operand.at)


def among(operand: Operand, texts: Sequence[str], negated: bool) -> Condition:
    if not isinstance(operand, Property):
        problem = f"IN asks for the text of a property, not {_named(operand)}{_advice(operand)}"
        raise Nonsense(operand.at, problem)
    return In(operand, frozenset(texts), negated, operand.at)


def is_null(operand: Operand) -> Condition:
    if isinstance(operand, Property):
        return IsNull(operand, operand.at, 1, raises=False)
    if isinstance(operand, Truth):
        return Truth(operand.value is None, operand.at)
    if isinstance(operand, Text | Number | Negated):
        return Truth(isinstance(operand, Negated), operand.at)
    return IsNull(operand, operand.at, _deeper(operand.at, operand), operand.raises)


def signed(sign: str, operand: Operand, at: int) -> Operand:
    if not isinstance(operand, Property | Number | Negated):
        raise Nonsense(operand.at, f"a {sign} stands before a number, not before {_named(operand)}")
    if sign == "+":
        return operand
    if isinstance(operand, Number):
        return Number(-operand.value, at)
    return Negated(at)


def _deeper(at: int, *parts: Condition) -> int:
    depth = 1 + max((part.depth for part in parts), default=0)
    if depth > DEPTH_MAX:
        raise Nonsense(at, f"conditions are nested more than {DEPTH_MAX} deep")
    return depth


def _advice(operand: Operand) -> str:
    if isinstance(operand, Not):
        return "; NOT binds tighter than that: write NOT (...)"
    return "; conditions are joined by AND and OR" if isinstance(operand, Condition) else ""


def _named(operand: Operand) -> str:
    if isinstance(operand, Text):
        return "a text"
    if isinstance(operand, Number):
        return "a number"
    if isinstance(operand, Property | Negated):
        return "a property with a sign" if isinstance(operand, Negated) else "a property"
    if isinstance(operand, Truth) and operand.written:
        return "NULL" if operand.value is None else "TRUE or FALSE"
    return "a condition"
