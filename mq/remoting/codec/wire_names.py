"""The name of an attribute on the wire: its name in camelCase, or the name given by wire()."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["wire", "wire_name"]

_WIRE = "wire"


def wire(name: str, *, default: Any = dataclasses.MISSING) -> Any:
    """A field with another name on the wire."""
    return dataclasses.field(default=default, metadata={_WIRE: name})


def wire_name(declared: dataclasses.Field[Any]) -> str:
    named = declared.metadata.get(_WIRE)
    if named is not None:
        return str(named)
    first, *others = declared.name.split("_")
    return first + "".join(word.capitalize() for word in others)
