"""A goal: a bound that the median of a case must keep."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Bound(Enum):
    AT_LEAST = "≥"
    AT_MOST = "≤"


@dataclass(frozen=True, slots=True)
class Goal:
    """`unit` is that of the case: x for a ratio, otherwise a unit of time."""

    bound: Bound
    value: float
    unit: str = "x"

    def met_by(self, figure: float) -> bool:
        return figure >= self.value if self.bound is Bound.AT_LEAST else figure <= self.value

    def __str__(self) -> str:
        gap = "" if self.unit == "x" else " "
        return f"{self.bound.value} {self.value:g}{gap}{self.unit}"


def at_least(value: float, unit: str = "x") -> Goal:
    return Goal(Bound.AT_LEAST, value, unit)


def at_most(value: float, unit: str = "x") -> Goal:
    return Goal(Bound.AT_MOST, value, unit)
