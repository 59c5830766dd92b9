"""A condition as a Python function over the encoded properties of a message.

The function is written out as Python and compiled once. It looks up a property where the condition first
needs it, in the encoded bytes, and converts it where it is compared with a number. What the user wrote
never becomes part of the code: names, texts and numbers are constants beside it.

A condition is true, false or unknown, but mostly it is enough to know whether it is true, or whether it is
false; these are two-valued and become plain `and` and `or`. In full it is evaluated only where an unknown
part must not hide that a part behind it is no number: RocketMQ looks at that part, and so do we.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

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
    Leaf,
    Negated,
    Not,
    Number,
    Operand,
    Ordered,
    Property,
    Search,
    Text,
    Truth,
)
from mq.filter.sql.numbers import NotANumber, number

Matches = Callable[[bytes], bool]


def matcher(condition: Condition) -> Matches:
    """Whether the condition is true of the message with this property string."""
    namespace: dict[str, Any] = {}
    exec(compile(source_of(condition, namespace), "<SQL92 expression>", "exec"), namespace)
    matches: Matches = namespace["matches"]
    return matches


def source_of(condition: Condition, namespace: dict[str, Any]) -> str:
    """The function as Python; what it refers to is put into the namespace."""
    namespace.update(number=number, equal=_equal, mixed=_mixed, truth=_truth)
    code = _Code(namespace).holds(condition, True, strict=False)
    return f"""
def matches(encoded):
    encoded = b"\\x02%b\\x02" % encoded
    try:
        if {code}:
            return True
    except ValueError:
        pass
    return False
"""


class _Code:
    """Writes expressions. `seen` are the variables that are surely set by what was written before."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace: Final = namespace
        self._constants: Final[dict[tuple[type, Any], str]] = {}
        self._numbered: Final[dict[str, int]] = {}
        self._seen: set[str] = set()
        self._kept_count = 0

    def holds(self, condition: Condition, wanted: bool, strict: bool) -> str:
        """Whether it is true, or false, as wanted: an expression that is two-valued. Strict: a part that
        raises must do so, even where the answer is no anyway."""
        if isinstance(condition, Truth):
            return repr(condition.value is wanted)
        if isinstance(condition, Not):
            return self.holds(condition.condition, not wanted, strict)
        if isinstance(condition, Junction):
            return self._junction(condition, wanted, strict)
        if isinstance(condition, Equal) or (
            isinstance(condition, IsNull) and not isinstance(condition.operand, Property)
        ):
            return f"{self.value(condition)} is {wanted}"
        return self._leaf(condition, wanted)

    def _junction(self, junction: Junction, wanted: bool, strict: bool) -> str:
        parts = junction.conditions
        if (junction.kind == "OR") is wanted:
            # The first part that is as wanted decides; a part before the last one may raise instead.
            last = parts[-1]
            return self._joined(
                " or ", parts, lambda part: self.holds(part, wanted, strict or part is not last)
            )
        if strict and any(part.raises for part in parts[1:]):
            # An unknown part decides nothing yet: what is behind it may raise.
            return f"{self.value(junction)} is {wanted}"
        return self._joined(" and ", parts, lambda part: self.holds(part, wanted, strict))

    def value(self, condition: Condition) -> str:
        """True, False or None for unknown; raises whatever RocketMQ would."""
        if isinstance(condition, Truth):
            return repr(condition.value)
        if isinstance(condition, Not):
            kept = self._kept()
            return f"(None if ({kept} := {self.value(condition.condition)}) is None else not {kept})"
        if isinstance(condition, Junction):
            decides = condition.kind == "OR"
            names = [self._kept() for _ in condition.conditions]
            names_left = iter(names)
            one = self._joined(
                " or ",
                condition.conditions,
                lambda part: f"({next(names_left)} := {self.value(part)}) is {decides}",
            )
            return f"({decides} if {one} else None if None in ({', '.join(names)}) else {not decides})"
        if isinstance(condition, Equal):
            return self._equal(condition)
        if isinstance(condition, IsNull) and not isinstance(condition.operand, Property):
            return f"({self.value(condition.operand)} is None)"
        return self._leaf(condition, None)

    def _joined(self, word: str, parts: Iterable[Condition], write: Callable[[Condition], str]) -> str:
        """The parts in a row. Each is reached only through all before it; the first one always is."""
        written: list[str] = []
        seen_after_first: set[str] = set()
        for part in parts:
            written.append(f"({write(part)})")
            if len(written) == 1:
                seen_after_first = set(self._seen)
        self._seen = seen_after_first
        return word.join(written)

    def _leaf(self, leaf: Leaf, wanted: bool | None) -> str:
        """Whether it is as wanted; with None its value."""
        if isinstance(leaf, IsNull):
            assert isinstance(leaf.operand, Property)
            text = self._text(leaf.operand)
            return text if wanted is False else f"(not {text})"
        if isinstance(leaf, Search):
            found = self._found(leaf)
            return f"(not ({found}))" if wanted is False else f"bool({found})" if wanted is None else found
        text = self._text(leaf.left if not isinstance(leaf, Cast | In) else leaf.operand)
        if isinstance(leaf, Ordered) and isinstance(leaf.right, Property):
            text = f"{text} and {self._text_once(leaf.right)}"
        test = self._test(leaf, wanted is not False)
        return f"({test} if {text} else None)" if wanted is None else f"{text} and {test}"

    def _test(self, leaf: Cast | In | Ordered | EqualsText | EqualsNumber | EqualsTruth, holds: bool) -> str:
        """Whether it holds, or does not, of properties that are there."""
        if isinstance(leaf, Cast):
            return repr(not holds)
        if isinstance(leaf, In):
            texts = self._constant(frozenset(map(_encoded, leaf.texts)))
            return f"{self._variable(leaf.operand)} {'in' if holds is not leaf.negated else 'not in'} {texts}"
        variable = self._variable(leaf.left)
        if isinstance(leaf, EqualsText):
            return f"{variable} {'==' if holds else '!='} {self._constant(_encoded(leaf.right))}"
        if isinstance(leaf, EqualsTruth):
            return f"{variable}.lower() {'==' if holds is leaf.right else '!='} b'true'"
        if isinstance(leaf, EqualsNumber):
            return f"{self._number(leaf.left)} {'==' if holds else '!='} {self._constant(leaf.right)}"
        if isinstance(leaf.right, Property):
            test = f"{_converted(variable)} {leaf.order} {_converted(self._variable(leaf.right))}"
        else:
            test = f"{self._number(leaf.left)} {leaf.order} {self._constant(leaf.right.value)}"
        return test if holds else f"(not {test})"

    def _found(self, search: Search) -> str:
        text, sought = self._text(search.operand), self._constant(_encoded(search.text))
        variable = self._variable(search.operand)
        if search.sought == "CONTAINS":
            test = f"{sought} {'not in' if search.negated else 'in'} {variable}"
        else:
            test = f"{'not ' * search.negated}{variable}.{search.sought.lower()}({sought})"
        return f"{text} and {test}"

    def _equal(self, equal: Equal) -> str:
        left, right = equal.left, equal.right
        codes = [self._operand(left), self._operand(right)]
        if _is_text(left) and not _is_text(right):
            codes[0] = f"truth({codes[0]})"
        name = "mixed" if _is_text(right) and not _is_text(left) else "equal"
        return f"{name}({codes[0]}, {codes[1]})"

    def _operand(self, operand: Operand) -> str:
        if isinstance(operand, Property):
            return f"({self._text(operand)} or None)"
        if isinstance(operand, Negated):
            return "None"
        if isinstance(operand, Text):
            return self._constant(_encoded(operand.value))
        if isinstance(operand, Number):
            return self._constant(operand.value)
        return self.value(operand)

    def _variable(self, operand: Property) -> str:
        return f"text{self._numbered.setdefault(operand.name, len(self._numbered))}"

    def _text(self, operand: Property) -> str:
        """The property's text, empty where it is missing; looked up once."""
        variable = self._variable(operand)
        if variable in self._seen:
            return variable
        code = self._text_once(operand)
        self._seen.add(variable)
        return code

    def _text_once(self, operand: Property) -> str:
        """The same where it is not sure that this is reached."""
        variable = self._variable(operand)
        if variable in self._seen:
            return variable
        begin = b"\x02%b\x01" % operand.name.encode()
        start = f"at + {len(begin)}"
        return (
            f"({variable} := encoded[{start} : encoded.find(b'\\x02', {start})]"
            f" if (at := encoded.rfind({self._constant(begin)})) >= 0 else b'')"
        )

    def _number(self, operand: Property) -> str:
        """The property's number, converted once. Only for where its text is known to be there: so wherever
        the text is, the number is too."""
        text = self._variable(operand)
        variable = f"number_of_{text}"
        if variable in self._seen:
            return variable
        self._seen.add(variable)
        return f"({variable} := {_converted(text)})"

    def _constant(self, value: Any) -> str:
        name = self._constants.setdefault((type(value), value), f"constant{len(self._constants)}")
        self._namespace[name] = value
        return name

    def _kept(self) -> str:
        self._kept_count += 1
        return f"kept{self._kept_count}"


def _converted(text: str) -> str:
    return f"(int({text}) if {text}.isdigit() else number({text}))"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _is_text(operand: Operand) -> bool:
    return isinstance(operand, Property | Negated | Text)


def _equal(left: Any, right: Any) -> bool | None:
    """RocketMQ's equality of two values: of two that are missing it is true."""
    if left is None:
        return True if right is None else None
    return right is not None and left == right


def _truth(text: bytes | None) -> bool | None:
    return None if text is None else text.lower() == b"true"


def _mixed(left: bool | None, right: bytes | None) -> bool | None:
    """A condition compared with a text, which are equal at most by both being unknown."""
    if left is not None and right is not None:
        raise NotANumber("a condition is compared with a text")
    return _equal(left, right)
