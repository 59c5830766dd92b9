"""Declarations of JSON bodies: a class each, with a typed attribute for each member.

    class QueueData(JsonBody):
        broker_name: str
        read_queue_nums: int = 4

is a frozen dataclass that is sent as {"brokerName":"a","readQueueNums":4}. A member without a default is
required; None is left out; names follow the rules of header fields (fields.py). Types are str, int, float,
bool, an Enum whose values are its names on the wire, a JsonBody, a MessageQueue, Any, and of those X | None,
tuple[X, ...] and dict[K, X], where K may be str, int or MessageQueue.

The parser accepts the variants of clients in other languages: numbers as texts, enums by their ordinal, null
or nothing for an empty collection, unknown members.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from mq.api.results import MessageQueue
from mq.errors import RemotingError
from mq.remoting.codec import fastjson
from mq.remoting.codec.fastjson import ObjectKey
from mq.remoting.codec.wire_names import wire, wire_name

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[type], type]:
        """Only for type checkers; in the standard library since Python 3.11."""
        return lambda declared: declared


__all__ = ["JsonBody", "from_json", "to_json"]

_Read = Callable[[Any], Any]
_Names = tuple[tuple[str, str], ...]
_names_of: dict[type, _Names] = {}
_readers: dict[type, _Read] = {}
_LONG_LIMIT = 1 << 63
_QUEUE_NAMES = {"topic": "topic", "broker_name": "brokerName", "queue_id": "queueId"}


@dataclass_transform(frozen_default=True, field_specifiers=(wire, dataclasses.field))
class JsonBody:
    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True)(cls)


Declared = TypeVar("Declared", bound=JsonBody)


def to_json(body: JsonBody, *, quoted_numbers: bool = False) -> bytes:
    """Serialize a body with fastjson.write."""
    try:
        return fastjson.write(_plain(body), quoted_numbers=quoted_numbers).encode()
    except UnicodeEncodeError as error:
        raise RemotingError(
            f"{type(body).__name__} has half of a surrogate pair, which UTF-8 cannot hold: {error}"
        ) from None


def from_json(declared: type[Declared], body: bytes) -> Declared:
    """Parse a body. Raises RemotingError, which names the wrong member."""
    value = fastjson.read(body)
    try:
        read: Declared = _reader_of(declared)({} if value is None else value)
    except _WrongMember as wrong:
        raise RemotingError(f"a body is no {declared.__name__}: {wrong.told()}") from None
    return read


def _plain(value: Any) -> Any:
    if isinstance(value, JsonBody):
        return {name: _plain(getattr(value, attribute)) for attribute, name in _names(type(value))}
    if isinstance(value, MessageQueue):
        members = ((name, getattr(value, attribute)) for attribute, name in _QUEUE_NAMES.items())
        return ObjectKey(sorted(members))
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(inside) for key, inside in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inside) for inside in value]
    return value


def _names(declared: type[JsonBody]) -> _Names:
    """The attributes and their names on the wire, sorted as by fastjson."""
    names = _names_of.get(declared)
    if names is None:
        names = _names_of[declared] = _sorted_names(declared)
    return names


def _sorted_names(declared: type[Any]) -> _Names:
    fields = dataclasses.fields(declared)
    return tuple(sorted(((one.name, wire_name(one)) for one in fields), key=lambda names: names[1]))


class _WrongMember(Exception):
    def __init__(self, wanted: str, found: Any) -> None:
        super().__init__(wanted)
        self.path: list[str] = []
        self.wanted, self.found = wanted, found

    def told(self) -> str:
        where = ".".join(reversed(self.path)) or "it"
        return f"{where} must be {self.wanted}, and is {str(self.found)[:80]!r}"


def _reader_of(declared: type[JsonBody]) -> _Read:
    read = _readers.get(declared)
    if read is None:
        read = _readers[declared] = _reader(declared)
    return read


def _reader(hint: Any) -> _Read:
    """The function that reads a value of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        (inner,) = (one for one in arguments if one is not NoneType)
        read = _reader(inner)
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        return _list_reader(_reader(arguments[0]))
    if origin is dict:
        return _dict_reader(_key_reader(arguments[0]), _reader(arguments[1]))
    if hint is MessageQueue:
        return _queue
    if isinstance(hint, type) and issubclass(hint, JsonBody):
        return _object_reader(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_reader(hint)
    return _SCALARS[hint]


def _object_reader(declared: type[JsonBody]) -> _Read:
    hints = get_type_hints(declared)
    members = []
    for one in dataclasses.fields(declared):  # type: ignore[arg-type]  # every subclass of JsonBody is one
        optional = one.default is not dataclasses.MISSING or one.default_factory is not dataclasses.MISSING
        members.append((one.name, wire_name(one), _reader(hints[one.name]), optional))

    def read(value: Any) -> JsonBody:
        if not isinstance(value, dict):
            raise _WrongMember("an object", value)
        values: dict[str, Any] = {}
        for attribute, name, read_member, optional in members:
            member = value.get(name)
            if member is None:
                if optional:
                    continue
                member = _EMPTY.get(get_origin(hints[attribute]))
            try:
                values[attribute] = read_member(member)
            except _WrongMember as wrong:
                wrong.path.append(name)
                raise
        return declared(**values)

    return read


_EMPTY: dict[Any, Any] = {tuple: [], dict: {}}


def _list_reader(read: _Read) -> _Read:
    def read_list(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _WrongMember("an array", value)
        return tuple([read(inside) for inside in value])

    return read_list


def _dict_reader(read_key: _Read, read: _Read) -> _Read:
    def read_dict(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _WrongMember("an object", value)
        return {read_key(key): read(inside) for key, inside in value.items()}

    return read_dict


def _key_reader(hint: Any) -> _Read:
    if hint is MessageQueue:
        return lambda key: _queue(dict(key) if isinstance(key, ObjectKey) else key)
    return _reader(hint)


def _enum_reader(hint: type[Enum]) -> _Read:
    members = list(hint)

    def read(value: Any) -> Enum:
        if isinstance(value, int) and 0 <= value < len(members):
            return members[value]
        try:
            return hint(value)
        except ValueError:
            raise _WrongMember(f"one of {', '.join(str(one.value) for one in members)}", value) from None

    return read


def _queue(value: Any) -> MessageQueue:
    if isinstance(value, str):  # A key that was quoted for strict JSON.
        try:
            value = fastjson.read(value.encode("utf-8", "replace"))
        except RemotingError:
            raise _WrongMember("a queue", value) from None
    if not isinstance(value, dict):
        raise _WrongMember("a queue", value)
    return MessageQueue(
        _text(value.get("topic")), _text(value.get("brokerName")), _whole(value.get("queueId"))
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return fastjson.write(value)
    raise _WrongMember("a text", value)


def _whole(value: Any) -> int:
    if isinstance(value, str) and len(value) <= 20:
        try:
            value = int(value)
        except ValueError:
            raise _WrongMember("a whole number", value) from None
    if type(value) is not int or not -_LONG_LIMIT <= value < _LONG_LIMIT:
        raise _WrongMember("a whole number of 64 bits", value)
    return value


def _real(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise _WrongMember("a number", value) from None


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.lower() in {"true", "1"}
    return _whole(value) != 0


_SCALARS: dict[Any, _Read] = {
    str: _text,
    int: _whole,
    float: _real,
    bool: _truth,
    Any: lambda value: value,
}
