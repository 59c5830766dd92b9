"""Bodies in Java's properties format: the settings of brokers and name servers.

One property per line, `name=value` or `name: value`; # and ! begin a comment, a backslash at the end
continues a line, and escapes are Java's. RocketMQ: common/MixAll.java.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["decode_properties", "encode_properties"]

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LINE = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=: \t\f]?[ \t\f]*(.*)", re.DOTALL)


def encode_properties(properties: Mapping[str, str]) -> bytes:
    return "".join(
        f"{_escaped(name, ' =:#!')}={_escaped(value, '')}\n" for name, value in properties.items()
    ).encode()


def decode_properties(body: bytes) -> dict[str, str]:
    properties = {}
    for line in _lines(body.decode("utf-8", "replace")):
        found = _LINE.fullmatch(line)
        if found is not None and found[1]:
            properties[_plain(found[1])] = _plain(found[2])
    return properties


def _lines(text: str) -> list[str]:
    """The logical lines, without comments and leading blanks."""
    lines: list[str] = []
    goes_on = False
    for natural in re.split(r"\r\n|\n|\r", text):
        line = natural.lstrip(" \t\f")
        if goes_on:
            lines[-1] += line
        elif line and line[0] not in "#!":
            lines.append(line)
        else:
            continue
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        if goes_on:
            lines[-1] = lines[-1][:-1]
    return lines


def _escaped(text: str, special: str) -> str:
    names = {value: name for name, value in _ESCAPES.items()}
    pieces = [
        f"\\{names[one]}" if one in names else f"\\{one}" if one == "\\" or one in special else one
        for one in text
    ]
    if pieces and pieces[0] == " ":
        pieces[0] = "\\ "
    return "".join(pieces)


def _plain(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        escape = found[1]
        if len(escape) == 5:
            made = chr(int(escape[1:], 16))
            return "?" if "\ud800" <= made <= "\udfff" else made
        return _ESCAPES.get(escape, escape)

    return _ESCAPE.sub(character, text)
