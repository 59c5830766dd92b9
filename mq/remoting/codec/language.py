"""The language and the RocketMQ version of a frame's sender, which each header contains."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = [
    "STANDARD_JSON_VERSION",
    "VERSION",
    "WHOLE_SIGNATURE_VERSION",
    "Language",
    "language_of",
    "version_name",
]

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
    for major, first in ((5, 413), (4, 213)):
        if version >= first - 1:
            minor, rest = divmod(version - first + 1, 20)
            return f"{major}.{minor}.{rest // 2}" + ("" if rest % 2 else "-SNAPSHOT")
    return f"{version} (before 4.0)"
