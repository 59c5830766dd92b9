"""The JSON dialect of the library fastjson, in which keys that are not strings are written without quotes.

    {0:"10.0.0.5:10911"}                                        an integer as a key
    {{"brokerName":"a","queueId":0,"topic":"orders"}:{…}}       an object as a key

read() accepts both besides strict JSON, and write() writes them: Java's clients expect the second form, and
accept integers with and without quotes. Keys are sorted, null members left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]  # in no stub
from json.encoder import encode_basestring as quote
from typing import Any, Final

from mq.errors import RemotingError

__all__ = ["DEPTH_MAX", "ObjectKey", "read", "write"]

DEPTH_MAX: Final = 64
_NUMBER = re.compile(r"-?\d{1,20}(\.\d{1,40})?([eE][+-]?\d{1,4})?", re.ASCII)
_WORD = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_BLANKS = re.compile(r"[ \t\r\n]*", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None}
_decoder = json.JSONDecoder(strict=False)


class ObjectKey(tuple[tuple[str, Any], ...]):
    """An object as a key: its members, sorted by name."""

    __slots__ = ()


def read(text: bytes) -> Any:
    """The value: dicts have keys of str, int and ObjectKey. b"" is None. Raises RemotingError."""
    try:
        decoded = text.decode("utf-8", "replace")
        if "\\u" in decoded:  # An escape may stand for a lone surrogate, which UTF-8 cannot encode.
            decoded = re.sub(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}", _whole_pair(decoded), decoded)
        try:
            return _decoder.decode(decoded) if decoded.strip() else None
        except json.JSONDecodeError:
            return _Reader(decoded).document()
    except (ValueError, RecursionError, IndexError) as error:
        raise RemotingError(f"a body is no JSON: {str(error)[:100]}; it begins with {text[:80]!r}") from None


def _whole_pair(text: str) -> Any:
    pairs = {
        at
        for found in re.finditer(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}", text)
        for at in (found.start(), found.start() + 6)
    }
    return lambda found: found[0] if found.start() in pairs else "?"


class _Reader:
    """Parses the dialect. Slower than the decoder for strict JSON, which is tried first."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def document(self) -> Any:
        value = self._value()
        self._skip()
        if self._at < len(self._text):
            raise ValueError(f"trailing text at {self._at}")
        return value

    def _skip(self) -> str:
        """Skip blanks; returns the next character, "" at the end."""
        found = _BLANKS.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._text[self._at : self._at + 1]

    def _value(self) -> Any:
        character = self._skip()
        if character in {"{", "["}:
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise ValueError(f"more than {DEPTH_MAX} nested objects or arrays")
            self._at += 1
            value = self._object() if character == "{" else self._array()
            self._depth -= 1
            return value
        if character == '"':
            text, self._at = scanstring(self._text, self._at + 1, False)
            return text
        if found := _NUMBER.match(self._text, self._at):
            self._at = found.end()
            return float(found[0]) if found[1] or found[2] else int(found[0])
        if (found := _WORD.match(self._text, self._at)) and found[0] in _WORDS:
            self._at = found.end()
            return _WORDS[found[0]]
        raise ValueError(f"no value at {self._at}")

    def _object(self) -> dict[Any, Any]:
        members: dict[Any, Any] = {}
        if self._ends("}"):
            return members
        while True:
            key = self._key()
            if self._skip() != ":":
                raise ValueError(f"no colon at {self._at}")
            self._at += 1
            members[key] = self._value()
            if not self._goes_on("}"):
                return members

    def _array(self) -> list[Any]:
        values: list[Any] = []
        if self._ends("]"):
            return values
        while True:
            values.append(self._value())
            if not self._goes_on("]"):
                return values

    def _key(self) -> Any:
        self._skip()
        if (found := _WORD.match(self._text, self._at)) is not None:
            self._at = found.end()
            return found[0]
        key = self._value()
        if isinstance(key, dict):
            if any(isinstance(value, dict | list) for value in key.values()):
                raise ValueError("a key has an object or an array in it")
            named = {str(name): value for name, value in key.items()}
            return ObjectKey(sorted(named.items()))  # Of different names: values need no order.
        if isinstance(key, list):
            raise ValueError("an array for a key")
        return key

    def _ends(self, bracket: str) -> bool:
        if self._skip() == bracket:
            self._at += 1
            return True
        return False

    def _goes_on(self, bracket: str) -> bool:
        """Whether a comma follows instead of the closing bracket."""
        character = self._skip()
        self._at += 1
        if character not in {",", bracket}:
            raise ValueError(f"no comma at {self._at - 1}")
        return character == ","


def write(value: Any, *, quoted_numbers: bool = False) -> str:
    """Serialize dicts, lists, strings and numbers. A Mapping as a key is written as an object.
    quoted_numbers: write integer keys with quotes, as name servers send routes to newer clients."""
    if isinstance(value, str):
        return quote(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        members = [
            f"{_key_text(key, quoted_numbers)}:{write(inside, quoted_numbers=quoted_numbers)}"
            for key, inside in value.items()
            if inside is not None
        ]
        return f"{{{','.join(members)}}}"
    if isinstance(value, ObjectKey):
        return write(dict(value))
    return f"[{','.join([write(inside, quoted_numbers=quoted_numbers) for inside in value])}]"


def _key_text(key: Any, quoted_numbers: bool) -> str:
    text = write(key)
    return f'"{text}"' if isinstance(key, int) and quoted_numbers else text


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "null"
    return repr(value)
