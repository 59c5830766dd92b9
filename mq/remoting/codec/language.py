"""The language and the RocketMQ version of a frame's sender, which each header contains."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final

__all__ = [
    "STANDARD_JSON_VERSION",
    "VERSION",
    "WHOLE_SIGNATURE_VERSION",
    "Language",
    "language_of",
    "version_name",
    "version_of",
]

_RELEASE = re.compile(r"([45])\.(\d{1,2})\.(\d)(-SNAPSHOT)?", re.ASCII)
OLD: Final = " (before 4.0)"
_FIRST: Final = {5: 413, 4: 213}  # the release x.0.0
# Each release has two numbers, its snapshot's and its own. This client claims 5.3.3: a broker that shuts down
# sends GO_AWAY to versions over 475.
VERSION: Final = 479
STANDARD_JSON_VERSION: Final = 401  # 4.9.4: clients from here on ask for routes in standard JSON
WHOLE_SIGNATURE_VERSION: Final = 433  # 5.1.0: servers from here on sign every field of QUERY_MESSAGE


class Language(IntEnum):
    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


_BY_NAME = {language.name: language for language in Language}
_BY_NUMBER = {language.value: language for language in Language}


def language_of(told: object) -> Language:
    """The language of a name or number; OTHER if it is unknown."""
    if isinstance(told, str):
        return _BY_NAME.get(told, Language.OTHER)
    return _BY_NUMBER.get(told, Language.OTHER) if isinstance(told, int) else Language.OTHER


def version_name(version: int) -> str:
    """A RocketMQ version as text. From 4.0 on, a minor version has ten releases of two numbers each."""
    for major, first in _FIRST.items():
        if version >= first - 1:
            minor, rest = divmod(version - first + 1, 20)
            return f"{major}.{minor}.{rest // 2}" + ("" if rest % 2 else "-SNAPSHOT")
    return f"{version}{OLD}"


def version_of(name: str) -> int:
    """The RocketMQ version with this name; 0 if there is none."""
    if found := _RELEASE.fullmatch(name):
        major, minor, patch = (int(found[number]) for number in (1, 2, 3))
        return _FIRST[major] + 20 * minor + 2 * patch - bool(found[4])
    number = name.removesuffix(OLD)
    return int(number) if number != name and number.isdecimal() and len(number) < 5 else 0
