"""A frame's header as JSON in UTF-8, RocketMQ's default.

    {"code":105,"extFields":{"topic":"orders"},"flag":0,"language":"PYTHON","opaque":1,
     "remark":"…","serializeTypeCurrentRPC":"JSON","version":479}

Keys may be in any order, and may be unknown; extFields and remark may be absent or null. Values of extFields
are texts; clients in other languages send numbers and booleans, which are converted as Java would write them.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring as quote
from typing import Any, Protocol

from mq.errors import RemotingError
from mq.remoting.codec.language import Language, language_of

__all__ = ["Headed", "Header", "decode", "encode"]

# code, fields, empty body, opaque, flags, remark, language, version: the arguments of Frame.
Header = tuple[int, dict[str, str], bytes, int, int, str, Language, int]
_decoder = json.JSONDecoder(strict=False)
_INT32_LIMIT = 1 << 31
_NAMES_MAX = 1000
_names: dict[str, str] = {}


class Headed(Protocol):
    """The parts of a frame that its header contains: see frame.py."""

    @property
    def code(self) -> int: ...
    @property
    def fields(self) -> dict[str, str]: ...
    @property
    def opaque(self) -> int: ...
    @property
    def flags(self) -> int: ...
    @property
    def remark(self) -> str: ...
    @property
    def language(self) -> Language: ...
    @property
    def version(self) -> int: ...


def encode(frame: Headed) -> bytes:
    pieces = [f'{{"code":{frame.code}']
    if frame.fields:
        inside = ",".join([f"{_quoted(name)}:{quote(value)}" for name, value in frame.fields.items()])
        pieces.append(f'"extFields":{{{inside}}}')
    pieces.append(f'"flag":{frame.flags},"language":"{frame.language.name}","opaque":{frame.opaque}')
    if frame.remark:
        pieces.append(f'"remark":{quote(frame.remark)}')
    pieces.append(f'"serializeTypeCurrentRPC":"JSON","version":{frame.version}}}')
    return ",".join(pieces).encode()


def decode(header: bytes) -> Header:
    try:
        return _header(_decoder.decode(header.decode()), header)
    except (ValueError, RecursionError) as error:
        raise RemotingError(f"the header of a frame is no JSON: {_short(error)}; {header[:80]!r}") from None


def _header(members: Any, header: bytes) -> Header:
    if not isinstance(members, dict):
        raise RemotingError(f"the header of a frame is no JSON object: {header[:80]!r}")
    fields = members.get("extFields") or {}
    if not isinstance(fields, dict):
        raise RemotingError(f"extFields in the header of a frame is no JSON object: {_short(fields)}")
    remark = members.get("remark") or ""
    if b"\\u" in header:
        fields, remark = _without_surrogates(fields), _without_surrogates(remark)
    return (
        _int32(members, "code"),
        _texts(fields),
        b"",
        _int32(members, "opaque"),
        _int32(members, "flag"),
        remark if isinstance(remark, str) else str(remark)[:1000],
        language_of(members.get("language")),
        _int32(members, "version"),
    )


def _quoted(name: str) -> str:
    """The name of a field in quotes. Cached, since the same few names occur often."""
    quoted = _names.get(name)
    if quoted is None:
        quoted = quote(name)
        if len(_names) < _NAMES_MAX:
            _names[name] = quoted
    return quoted


def _texts(fields: dict[str, Any]) -> dict[str, str]:
    for value in fields.values():
        if type(value) is not str:
            return {name: text for name, value in fields.items() if (text := _text(value)) is not None}
    return fields


def _int32(members: dict[str, Any], name: str) -> int:
    value = members.get(name)
    if value is None:
        return 0
    if type(value) is not int or not -_INT32_LIMIT <= value < _INT32_LIMIT:
        raise RemotingError(
            f"{name} in the header of a frame is {_short(value)}, must be a whole number of 32 bits"
        )
    return value


def _text(value: Any) -> str | None:
    if type(value) is str:
        return value
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _without_surrogates(value: Any) -> Any:
    """The value with ? for each lone surrogate: JSON escapes can contain them, UTF-8 cannot."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode() if not value.isascii() else value
    if isinstance(value, dict):
        return {_without_surrogates(name): _without_surrogates(inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(inside) for inside in value]
    return value


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else text[:97] + "..."
