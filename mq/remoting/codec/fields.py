"""Declarations of the headers of requests and answers: a class each, with a typed attribute for each field.

    class GetMaxOffset(Request, code=30, name="GET_MAX_OFFSET", answer=OffsetAnswer):
        topic: str
        queue_id: Int
        committed: bool | None = None

is a dataclass that is sent as {"topic": "orders", "queueId": "3"}. One without a default is required.
Its name on the wire is the attribute's in camelCase, the name given by wire(), or a letter (SEND_MESSAGE_V2).

Values are texts: decimal, true or false. Java reads every text but "true" as false; the C++ client sends "1"
for true, which is accepted here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from mq.errors import RemotingError
from mq.remoting.codec.body_kind import NOTHING, BodyKind
from mq.remoting.codec.wire_names import wire, wire_name

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[type], type]:
        """Only for type checkers; in the standard library since Python 3.11."""
        return lambda declared: declared


__all__ = [
    "Answer",
    "Int",
    "Long",
    "NoAnswer",
    "Request",
    "decode_fields",
    "encode_fields",
]

Int = Annotated[int, 32]  # the number of bits
Long = Annotated[int, 64]
_NUMBER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_VALUE_SHOWN_MAX = 80


@dataclass_transform(frozen_default=True, field_specifiers=(wire, dataclasses.field))
class HeaderFields:
    """The base of requests and answers. Type checkers enforce that they are immutable: creating a frozen
    dataclass takes several times as long, and there is one for every message."""

    LETTERS: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(unsafe_hash=True)(cls)


class Answer(HeaderFields):
    """The header of the answer to a request that succeeded."""


class NoAnswer(Answer):
    """An answer without fields."""


class Request(HeaderFields):
    """The header of a request, with its entry in the table of requests.

    CODE and NAME are RocketMQ's; BODY and ANSWER_BODY are the formats of the bodies. LETTERS: the one-letter
    names of the fields on the wire, in order, if it uses letters.
    """

    CODE: ClassVar[int]
    NAME: ClassVar[str]
    BODY: ClassVar[BodyKind]
    ANSWER: ClassVar[type[Answer]]
    ANSWER_BODY: ClassVar[BodyKind]
    TABLE: ClassVar[dict[int, type[Request]]] = {}

    def __init_subclass__(
        cls,
        code: int | None = None,
        name: str = "",
        body: BodyKind = NOTHING,
        answer: type[Answer] = NoAnswer,
        answer_body: BodyKind = NOTHING,
        letters: str = "",
    ) -> None:
        super().__init_subclass__()
        if code is None:  # A base class with fields that several requests share.
            return
        assert code not in Request.TABLE, (code, name)
        cls.CODE, cls.NAME, cls.BODY, cls.ANSWER, cls.ANSWER_BODY = code, name, body, answer, answer_body
        cls.LETTERS = letters
        Request.TABLE[code] = cls


Declared = TypeVar("Declared", bound=HeaderFields)


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    attribute: str
    name: str
    bits: int  # of a number; 1 of a boolean, 0 of a text
    required: bool


_plans_of: dict[type, tuple[_Plan, ...]] = {}


def _plans(declared: type[HeaderFields]) -> tuple[_Plan, ...]:
    plans = _plans_of.get(declared)
    if plans is None:
        plans = _plans_of[declared] = _planned(declared)
    return plans


def _planned(declared: type[Any]) -> tuple[_Plan, ...]:
    hints = get_type_hints(declared, include_extras=True)
    fields = dataclasses.fields(declared)
    assert not declared.LETTERS or len(declared.LETTERS) == len(fields)
    names = declared.LETTERS or [wire_name(one) for one in fields]
    return tuple(
        _Plan(one.name, name, _bits(hints[one.name]), one.default is dataclasses.MISSING)
        for one, name in zip(fields, names, strict=True)
    )


def _bits(hint: Any) -> int:
    if get_origin(hint) is Annotated:
        return int(get_args(hint)[1])
    if hint in {bool, str}:
        return int(hint is bool)
    (inner,) = (one for one in get_args(hint) if one is not type(None))
    return _bits(inner)


_encoders: dict[type, Callable[[Any], dict[str, str]]] = {}


def encode_fields(header: HeaderFields) -> dict[str, str]:
    """The fields of a frame; None is left out. Raises RemotingError for a number that is too large."""
    encoder = _encoders.get(type(header))
    if encoder is None:
        encoder = _encoders[type(header)] = _encoder(type(header))
    return encoder(header)


def _encoder(declared: type[HeaderFields]) -> Callable[[Any], dict[str, str]]:
    """A generated function with a line for each field, like a dataclass's __init__: 3 times as fast as a
    loop."""
    lines = ["def encode(header):", " fields = {}"]
    for plan in _plans(declared):
        limit = 1 << plan.bits - 1 if plan.bits > 1 else 0
        lines.append(f" value = header.{plan.attribute}")
        if plan.bits > 1:
            lines.append(f" if value is not None and not {-limit} <= value < {limit}:")
            lines.append(f"  raise too_large(header, {plan.attribute!r}, value, {plan.bits})")
        text = {0: "value", 1: "'true' if value else 'false'"}.get(plan.bits, "str(value)")
        lines.append(f" if value is not None: fields[{plan.name!r}] = {text}")
    lines.append(" return fields")
    made: dict[str, Any] = {"too_large": _too_large}
    exec("\n".join(lines), made)
    encode: Callable[[Any], dict[str, str]] = made["encode"]
    return encode


def _too_large(header: HeaderFields, attribute: str, value: int, bits: int) -> RemotingError:
    return RemotingError(
        f"{attribute} of {type(header).__name__} is {value}, which does not fit into {bits} bits with a sign"
    )


def decode_fields(declared: type[Declared], fields: Mapping[str, str]) -> Declared:
    """Parse the header from a frame's fields; unknown fields are ignored. Raises RemotingError."""
    values: dict[str, Any] = {}
    for plan in _plans(declared):
        text = fields.get(plan.name)
        if text is None or (not text and plan.bits):
            if plan.required:
                raise RemotingError(f"{declared.__name__} lacks the field {plan.name!r}, which is required")
            continue
        values[plan.attribute] = _value(declared, plan, text)
    return declared(**values)


def _value(declared: type[HeaderFields], plan: _Plan, text: str) -> Any:
    if plan.bits == 0:
        return text
    if plan.bits == 1:
        return text.lower() in {"true", "1"}
    if _NUMBER.fullmatch(text):
        number = int(text)
        if -(1 << plan.bits - 1) <= number < 1 << plan.bits - 1:
            return number
    raise RemotingError(
        f"field {plan.name!r} of {declared.__name__} is {text[:_VALUE_SHOWN_MAX]!r}, must be a whole number"
        f" of {plan.bits} bits"
    )
