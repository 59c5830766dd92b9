"""Strategies for whatever the wire's tables declare: headers of requests and answers, JSON bodies, frames."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from random import Random
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from mq.api.results import MessageQueue
from mq.remoting.codec.fields import HeaderFields
from mq.remoting.codec.frame import Frame, HeaderEncoding
from mq.remoting.codec.json_body import JsonBody
from mq.remoting.codec.language import Language

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# An empty text is no text to the binary encoding.
FILLED = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
QUEUES = st.builds(MessageQueue, TEXTS, TEXTS, INT32)


def headers(declared: type[HeaderFields]) -> st.SearchStrategy[Any]:
    """Values of a header class."""
    hints = get_type_hints(declared, include_extras=True)
    return st.builds(
        declared,
        **{one.name: _of(hints[one.name], FILLED) for one in _fields(declared)},
    )


def bodies(declared: type[JsonBody]) -> st.SearchStrategy[Any]:
    """Values of a JSON body."""
    hints = get_type_hints(declared)
    return st.builds(
        declared,
        **{one.name: _of(hints[one.name], TEXTS) for one in _fields(declared)},
    )


def frames() -> st.SearchStrategy[Frame]:
    return st.builds(
        Frame,
        st.integers(-(1 << 15), (1 << 15) - 1),
        st.dictionaries(FILLED, FILLED, max_size=5),
        st.binary(max_size=100),
        INT32,
        INT32,
        TEXTS,
        st.sampled_from(Language),
        st.integers(0, 30_000),
        st.sampled_from(HeaderEncoding),
    )


def _of(hint: Any, texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return INT32 if arguments[1] == 32 else INT64
    if origin in {Union, UnionType}:
        (inner,) = (one for one in arguments if one is not NoneType)
        return st.none() | _of(inner, texts)
    if origin is tuple:
        return st.lists(_of(arguments[0], texts), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(_of(arguments[0], texts), _of(arguments[1], texts), max_size=3)
    if hint is MessageQueue:
        return QUEUES
    if isinstance(hint, type) and issubclass(hint, JsonBody):
        return bodies(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    return {
        str: texts,
        int: INT64,
        bool: st.booleans(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        Any: st.integers(-5, 5)
        | TEXTS
        | st.lists(TEXTS, max_size=2)
        | st.dictionaries(TEXTS, TEXTS, max_size=2),
    }[hint]


class Values:
    """Values of the same classes by a seeded generator: many, quickly, and the same ones again.

    With `whole` every field has a value and every collection one element, else some have none or more.
    `words` are the values of attributes that not every value is good for.
    """

    def __init__(self, seed: int, *, whole: bool = False, words: Mapping[str, Any] | None = None) -> None:
        self.random = Random(seed)
        self._is_whole = whole
        self._words = words or {}

    def header(self, declared: type[HeaderFields]) -> Any:
        return self._made(declared)

    def body(self, declared: type[JsonBody]) -> Any:
        return self._made(declared)

    def _made(self, declared: type[Any]) -> Any:
        hints = get_type_hints(declared, include_extras=True)
        values = {one.name: self._of(hints[one.name]) for one in _fields(declared)}
        return declared(**{name: self._words.get(name, value) for name, value in values.items()})

    def text(self) -> str:
        return "".join(self.random.choices('abcXYZ019 "\\\n\u00fc\u4f60', k=self.random.randint(1, 9)))

    def _of(self, hint: Any) -> Any:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self._whole(arguments[1])
        if origin in {Union, UnionType}:
            (inner,) = (one for one in arguments if one is not NoneType)
            return self._of(inner) if self._is_whole or self.random.random() < 0.5 else None
        count = 1 if self._is_whole else self.random.randint(0, 2)
        if origin is tuple:
            return tuple(self._of(arguments[0]) for _ in range(count))
        if origin is dict:
            return {self._of(arguments[0]): self._of(arguments[1]) for _ in range(count)}
        if hint is MessageQueue:
            return MessageQueue(self.text(), self.text(), self.random.randint(0, 100))
        if isinstance(hint, type) and issubclass(hint, JsonBody):
            return self._made(hint)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return self.random.choice(list(hint))
        if hint is bool:
            return self.random.random() < 0.5
        if hint is Any:
            return {}
        if hint is float:
            return self.random.randint(-10_000, 10_000) / 8
        return self._whole(31) if hint is int else self.text()

    def _whole(self, bits: int) -> int:
        limit = 1 << self.random.randint(1, bits - 1)
        return self.random.randint(-limit, limit - 1)


def _fields(declared: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(declared)
